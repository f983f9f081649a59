"""The reading of text, JSON and TOML files; every error of theirs is one line."""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MAX_BYTES = 256 * 2**20  # also what keeps a device that never ends, such as /dev/zero, from filling the memory
MAX_DEPTH = 100  # levels; far beyond any format here, and far from what recursive functions of Python can do
MAX_WHOLE = 2**63  # TOML's limit; JSON has none, but no quantity here needs more
_TOO_DEEP = f"is nested too deeply: at most {MAX_DEPTH} levels"
_SURROGATE = re.compile("[\ud800-\udfff]")
_TOML_MARKS = re.compile(r"[={},\[\]\n]")  # between two of these there is at most one key
_PART_OF_KEY = re.compile(r"[^.\s]\s*\.")


def read_bytes(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Return all of a file. Raises OSError if it cannot be read, ValueError if it is too large."""
    with Path(path).open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path}: must not have more than {max_bytes:,} bytes")
    return data


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a UTF-8 file.

    Raises ValueError, which names the file, if it is not UTF-8, OSError if it is unreadable.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")  # some editors begin a file with a mark
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from None
    return text.replace("\r\n", "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Return the data of a JSON file.

    Raises ValueError, in one line that names the file, for what `parse_json` refuses, OSError if it is unreadable.
    """
    text = read_text(path)
    with naming_place(path):
        return parse_json(text)


def parse_json(text: str) -> Any:
    """Return the data of a JSON text.

    Raises ValueError, in one line, for what is not JSON, for a name that is twice in one object, and for what
    `_require_plain` refuses.
    """
    if not text.strip():
        raise ValueError("is empty: must hold JSON")
    try:
        data = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{place}: is incomplete JSON: {error.msg}; it was cut off or edited") from None
    except (ValueError, RecursionError) as error:
        raise _in_words(error) from None
    _require_plain(data)
    return data


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text. Raises ValueError as `parse_json` does, but TOML has infinity and NaN."""
    import tomllib  # noqa: PLC0415  most commands read no file

    # A key such as a.a.a of 100,000 parts makes tomllib fill the memory of the machine: it must not be given to it.
    if any(len(_PART_OF_KEY.findall(key)) > MAX_DEPTH for key in _TOML_MARKS.split(text)):
        raise ValueError(_TOO_DEEP)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is not TOML: {error}") from None
    except (ValueError, RecursionError) as error:
        raise _in_words(error) from None
    _require_plain(data, finite=False)
    return data


def quoted(value: object, most: int = 60) -> str:
    """Return a value as messages show it: on one line, shortened to at most `most` characters."""
    return shortened(repr(value), most)


def shortened(text: str, most: int = 60) -> str:
    """Return the text, or its beginning and dots if it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


@contextmanager
def naming_place(place: object) -> Iterator[None]:
    """Put the place, such as a file or one of its fields, before the message of a ValueError of the block."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}".removeprefix(": ")) from error


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"{quoted(name)} appears twice in one object: must appear once")
        made[name] = value
    return made


def _in_words(error: Exception) -> ValueError:
    """Return the error of a parser that is not of the syntax."""
    if isinstance(error, RecursionError):
        return ValueError(_TOO_DEEP)
    has_digits = str(error).startswith("Exceeds the limit")  # Python reads no number of thousands of digits
    return ValueError("a whole number must fit 64 bits" if has_digits else str(error))


def _require_plain(value: Any, finite: bool = True, path: tuple[str | int, ...] = ()) -> None:
    """Raise ValueError, with the place, for a value that no quantity here can be, and for too many levels.

    path: the keys and indices that lead to the value, such as ("probes", 0, "times_s", 1).
    """
    if len(path) > MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    if isinstance(value, dict):
        for key, inner in value.items():
            _require_plain(key)
            _require_plain(inner, finite, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _require_plain(inner, finite, (*path, index))
    elif fault := _fault(value, finite):
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
        raise ValueError(f"{place}: {fault}".removeprefix(": "))


def _fault(value: Any, finite: bool) -> str:
    if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
        return f"{quoted(value)}: has half of a surrogate pair"
    if isinstance(value, int) and not -MAX_WHOLE <= value < MAX_WHOLE:
        return "a whole number must fit 64 bits"
    if finite and isinstance(value, float) and not math.isfinite(value):
        return f"{value}: must be a finite number"
    return ""


def finite_or_none(value: Any) -> Any:
    """Return `value` as JSON can hold it: None for a number that is not finite, also within objects and lists."""
    if isinstance(value, dict):
        return {key: finite_or_none(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
