"""The reading of text, JSON and TOML files; every error of theirs is one line."""

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Union

MAX_BYTES = 256 * 2**20  # also what keeps a device that never ends, such as /dev/zero, from filling the memory
MAX_DEPTH = 100  # levels; far beyond any format here, and far from what recursive functions of Python can do
MAX_WHOLE = 2**63  # TOML's limit; JSON has none, but no quantity here needs more
_MAX_DIGITS = 100  # longer numbers cannot fit; Python needs quadratic time to read them, and refuses very long ones

_TOML_MARKS = re.compile(r"[={},\[\]\n]")  # between two of these there is at most one key
_PART_OF_KEY = re.compile(r"[^.\s]\s*\.")


def read_bytes(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Returns all of a file. Raises OSError if it cannot be read, ValueError if it is too large."""
    with Path(path).open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path}: must not have more than {max_bytes:,} bytes")
    return data


def read_text(path: str | os.PathLike[str]) -> str:
    """Returns the text of a UTF-8 file.

    Raises ValueError, which names the file, if it is not UTF-8, OSError if it is unreadable.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")  # some editors begin a file with a mark
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from None
    return text.replace("\r\n", "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Returns the data of a JSON file.

    Raises ValueError, in one line that names the file, for what `parse_json` refuses, OSError if it is unreadable.
    """
    text = read_text(path)
    with naming_place(path):
        return parse_json(text)


def parse_json(text: str) -> Any:
    """Returns the data of a JSON text.

    Raises ValueError, in one line with the place, for what is not JSON, for NaN and Infinity, which JSON does not have,
    for whole numbers of more than 64 bits, for a name that is twice in one object, for half a surrogate pair, and for
    more than MAX_DEPTH levels.
    """
    if not text.strip():
        raise ValueError("is empty: must hold JSON")
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_int=_whole)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{place}: is not whole JSON: {error.msg}; it was cut off or edited") from None
    except RecursionError:
        raise ValueError(f"is nested too deeply: at most {MAX_DEPTH} levels") from None
    _require_plain(data)
    return data


def parse_toml(text: str) -> dict[str, Any]:
    """Returns the tables of a TOML text. Raises ValueError as `parse_json` does, but TOML has infinity and NaN."""
    import tomllib  # noqa: PLC0415  most commands read no file

    # A key such as a.a.a of 100,000 parts makes tomllib fill the memory of the machine: it must not be given to it.
    if any(len(_PART_OF_KEY.findall(key)) > MAX_DEPTH for key in _TOML_MARKS.split(text)):
        raise ValueError(f"is nested too deeply: at most {MAX_DEPTH} levels")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"is nested too deeply: at most {MAX_DEPTH} levels") from None
    except ValueError:  # Python reads no number of so many digits
        raise ValueError("is not TOML: a whole number of thousands of digits: must fit 64 bits") from None
    _require_plain(data, finite=False)
    return data


def quoted(value: object, most: int = 60) -> str:
    """Returns a value as messages show it: not more than so many characters of it, in one line."""
    return shortened(repr(value), most)


def shortened(text: str, most: int = 60) -> str:
    """Returns the text, or its beginning and dots if it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


@contextmanager
def naming_place(place: object) -> Iterator[None]:
    """Puts the place, such as a file or one of its fields, before the message of a ValueError of the block."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"{quoted(name)} is there twice in one object: must be there once")
        made[name] = value
    return made


def _whole(digits: str) -> int:
    return int(digits[:_MAX_DIGITS])  # if some are left out it is too large all the same, which is said with its place


class _Place(NamedTuple):
    """Where a value is: under a name or a number in what is at `outer`."""

    outer: Union["_Place", None] = None
    key: str | int = ""
    depth: int = 0

    def __str__(self) -> str:
        names: list[str] = []
        place: _Place | None = self
        while place is not None and place.outer is not None:
            shown = place.key if isinstance(place.key, int) or place.key.isidentifier() else quoted(place.key)
            names.append(f"[{shown}]" if isinstance(place.key, int) else f".{shown}")
            place = place.outer
        return "".join(reversed(names)).removeprefix(".")


def _require_plain(data: Any, finite: bool = True) -> None:
    """Raises ValueError for the first value that no quantity here can be; without recursion, which has its limit."""
    todo: list[tuple[Any, _Place]] = [(data, _Place())]
    while todo:
        value, place = todo.pop()
        if place.depth > MAX_DEPTH:
            raise ValueError(f"is nested too deeply: at most {MAX_DEPTH} levels")
        if fault := _fault(value, finite):
            raise ValueError(f"{place}: {fault}".removeprefix(": "))
        if isinstance(value, dict):
            todo += [(inner, _Place(place, key, place.depth + 1)) for key, inner in reversed(value.items())]
        elif isinstance(value, list):
            inside = reversed(list(enumerate(value)))
            todo += [(inner, _Place(place, key, place.depth + 1)) for key, inner in inside]


def _fault(value: Any, finite: bool) -> str:
    if isinstance(value, int) and not -MAX_WHOLE <= value < MAX_WHOLE:
        return "a whole number must fit 64 bits"
    if finite and isinstance(value, float) and value - value != 0:
        return f"{value}: must be a finite number"
    texts = value if isinstance(value, dict) else [value] if isinstance(value, str) else []
    if any("\ud800" <= letter <= "\udfff" for text in texts for letter in text if letter > "\x7f"):
        return "is no text: it has half of a surrogate pair"
    return ""
