"""Rates as `tc` takes them, in bits per second, and what the shaper needs for each."""

import re
from decimal import Decimal

MIN_BIT_PER_S, MAX_BIT_PER_S = 64_000, 100_000_000_000
_PREFIXES = {"": 1, **{letter: 1000**power for power, letter in enumerate("kmgt", 1)},
             **{f"{letter}i": 1024**power for power, letter in enumerate("kmgt", 1)}}  # fmt: skip
_RATE = re.compile(r"(\d{1,18}(?:\.\d{0,18})?)((?:[kmgt]i?)?)(bit|bps)?")


def parse_tc_rate(text: str) -> int:
    """Return bits per second: of 1gbit, 250mbit, or bytes as in tc, 125mbps. A bare number is bits, as in tc.

    Raises ValueError for anything else, and outside of 64kbit to 100gbit.
    """
    match = _RATE.fullmatch(text.strip().lower())
    if not match or (match[2] and not match[3]):
        raise ValueError(f"{text!r} is not a rate: write it as tc does, 1gbit or 250mbit")
    rate = int(Decimal(match[1]) * _PREFIXES[match[2]] * (8 if match[3] == "bps" else 1))
    if not MIN_BIT_PER_S <= rate <= MAX_BIT_PER_S:
        raise ValueError(f"{text!r}: a rate must be from 64kbit to 100gbit")
    return rate


def burst_bytes(bit_per_s: int) -> int:
    """Return the tokens that tbf may save up: what goes out at full speed after a pause.

    TCP hands over up to 64 KiB at a time, and a larger packet than the burst is cut up at a cost (measured: 32 KiB
    gives 640 of 1000 Mbit/s, 64 KiB 700 to 950), so there is room for two: tokens go on gathering while one waits for a
    core. Timers wake late on busy cores, hence at least a millisecond at full rate.
    """
    return max(128 * 1024, bit_per_s // 8 // 1000)


def queue_bytes(bit_per_s: int) -> int:
    """Return how much may wait for tokens: 50 ms at full rate, and 1 MiB or more so that many senders lose nothing."""
    return max(1024 * 1024, bit_per_s // 8 // 20)
