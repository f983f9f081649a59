"""Sizes, rates and times in text: 64MiB, 1.25GB/s, 10Gbit/s, 10us."""

import re
from collections.abc import Mapping
from decimal import Decimal, DecimalException

_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
             "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}  # fmt: skip
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "µs": 10**6, "ns": 10**9}
MAX_VALUE = 2**60  # far beyond any machine, and small enough for 64-bit arithmetic
ROUNDING = 1e-9  # quantities that differ by a smaller fraction are equal but for rounding
MIN_RATE = 1e-6  # bytes a second; with less, seconds would overflow a float
MAX_DIGITS = 18  # of a whole number: more may not fit 64 bits
_NUMBER = r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*"
_SIZE = re.compile(_NUMBER + r"([kKMGT]?i?)(?:B|iB)?\s*")
_RATE = re.compile(_NUMBER + r"([kKMGT]?i?)(B|bit|bps|b)(?:/s)?\s*")
_FLOPS = re.compile(_NUMBER + r"([kKMGTP]?)(?:FLOPS?(?:/s)?|FLOPs/s)?\s*")
_TIME = re.compile(_NUMBER + r"(s|ms|us|µs|ns)\s*")


def whole_number(text: str) -> int | None:
    """Return the number that is written in digits alone; None for other text or too many digits.

    >>> whole_number("12"), whole_number("-1"), whole_number("1_2")
    (12, None, None)
    """
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None


def decimal_number(text: str) -> float:
    """Return a number such as 12, 1.5e-3 or inf. Raises ValueError for other text.

    >>> decimal_number("1.5e-3")
    0.0015
    """
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number: write it as 12 or 1.5e-3") from None


def parse_size(text: str) -> int:
    """Return the bytes of 1500, 64KiB (1024s) or 64MB (1000s). Raises ValueError for other or negative sizes."""
    size, _ = _quantity(_SIZE, text, _PREFIXES, "a size: write bytes as 1500, 64KiB or 64MB")
    if size < 0:
        raise ValueError(f"{text!r}: a size must not be negative")
    if size != int(size):
        raise ValueError(f"{text!r} is {size} bytes: a size must be a whole number of bytes")
    return int(size)


def parse_size_of_nccl_tests(text: str) -> int:
    """Return the bytes of a size of nccl-tests, where 8K, 8M and 8G are 1024s; otherwise like `parse_size`.

    >>> parse_size_of_nccl_tests("8M"), parse_size_of_nccl_tests("8MB")
    (8388608, 8000000)
    """
    binary = text.strip()[-1:] in ("k", "K", "m", "M", "g", "G")
    return parse_size(f"{text.strip()[:-1]}{text.strip()[-1:].upper()}iB" if binary else text)


def parse_rate(text: str) -> float:
    """Return the bytes per second of 1.25GB/s or 10Gbit/s. Raises ValueError for other rates, or not above 0."""
    value, match = _quantity(_RATE, text, _PREFIXES, "a rate: write it as 1.25GB/s or 10Gbit/s")
    rate = float(value) / (8 if match[3].startswith("b") else 1)
    if not rate > 0:
        raise ValueError(f"{text!r}: a rate must be greater than 0")
    if rate < MIN_RATE:
        raise ValueError(f"{text!r}: a rate must be at least {MIN_RATE:g} bytes a second")
    return rate


def parse_flops(text: str) -> float:
    """Return the FLOP per second of 400TFLOP/s or 19.5T. Raises ValueError for other rates, or below 1."""
    flops_per_s, _ = _quantity(_FLOPS, text, _PREFIXES, "a rate of computing: write it as 400TFLOP/s")
    if not flops_per_s >= 1:
        raise ValueError(f"{text!r}: a rate of computing must be at least 1 FLOP/s")
    return float(flops_per_s)


def parse_time(text: str) -> float:
    """Return the seconds of 10us, 1.5ms or 2s. Raises ValueError for other or negative times."""
    value, match = _quantity(_TIME, text, dict.fromkeys(_PER_SECOND, 1), "a time: write it as 10us, 1.5ms or 2s")
    time = float(value) / _PER_SECOND[match[2]]
    if time < 0:
        raise ValueError(f"{text!r}: a time must not be negative")
    return time


def _quantity(
    pattern: re.Pattern[str], text: str, prefixes: Mapping[str, int], rule: str
) -> tuple[Decimal, re.Match[str]]:
    match = pattern.fullmatch(text)
    if not match or match[2] not in prefixes:
        raise ValueError(f"{text!r} is not {rule}")
    try:
        value = Decimal(match[1]) * prefixes[match[2]]
    except DecimalException:  # an exponent of many digits
        raise ValueError(f"{text!r} is not {rule}") from None
    if abs(value) > MAX_VALUE:
        raise ValueError(f"{text!r} is too large a number")
    return value, match


def format_size(size_bytes: float) -> str:
    """Return a text such as 64 MiB or 1500 B."""
    for prefix in ("Ti", "Gi", "Mi", "Ki"):
        if size_bytes >= _PREFIXES[prefix]:
            return f"{size_bytes / _PREFIXES[prefix]:.4g} {prefix}B"
    return f"{size_bytes:g} B"


def format_rate(bytes_per_s: float) -> str:
    """Return a text such as 1.25 GB/s."""
    shown = float(f"{bytes_per_s:.3g}")  # 999.9 MB/s is shown as 1 GB/s, not as 1e+03 MB/s
    for prefix in ("T", "G", "M", "k"):
        if shown >= _PREFIXES[prefix]:
            return f"{bytes_per_s / _PREFIXES[prefix]:.3g} {prefix}B/s"
    return f"{bytes_per_s:.3g} B/s"


def plural(count: int, name: str) -> str:
    """Return a text such as 1 rank or 2 ranks.

    >>> plural(1, "rank"), plural(1024, "rank")
    ('1 rank', '1024 ranks')
    """
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def format_duration(time_s: float) -> str:
    """Return a clock's text, such as 0:07 or 1:02:03.

    >>> format_duration(7.4), format_duration(3723)
    ('0:07', '1:02:03')
    """
    whole_s = round(time_s)
    hours, minutes, seconds = whole_s // 3600, whole_s // 60 % 60, whole_s % 60
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def time_unit(time_s: float) -> tuple[float, str]:
    """Return the largest unit in which a time is at least 1, or ns: its number per second, and its name.

    >>> time_unit(0.0015)
    (1000, 'ms')
    """
    return next(
        ((_PER_SECOND[unit], unit) for unit in ("s", "ms", "us") if time_s * _PER_SECOND[unit] >= 1), (10**9, "ns")
    )


def format_time(time_s: float) -> str:
    """Return a text such as 1.5 ms."""
    scale, unit = time_unit(time_s)
    return f"{time_s * scale:.4g} {unit}"
