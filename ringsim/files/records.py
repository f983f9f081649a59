"""Records describe files for their writer and their reader, which is msgspec.

A `Record` lists the keys of a JSON object, a TOML table or a CSV line. `decode` reads an instance, `encode` returns the
data to write. The annotation of a field is the rule for its value:
- `Annotated[int, whole(1, 8)]`: a number in these bounds, see `ringsim.files.values`;
- `By[float, rate]`: the result of this parser;
- an enum, text, true or false, another record, `tuple[..., ...]`, `dict[str, ...]`, and `... | None` of any of these.

`msgspec.field(name="late_s")` sets a different key. Only `__post_init__`, with the rules between fields, checks
instances made in Python.
"""

import json
import math
import os
import re
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from inspect import ismethod
from types import UnionType
from typing import Annotated, Any, ClassVar, NoReturn, Self, TypeVar, Union, get_args, get_origin

import msgspec

from ringsim.files.text_file import naming_place, quoted, read_json, save_json, shortened
from ringsim.suggestions import did_you_mean, suggestion

_Record = TypeVar("_Record")
_PATH = re.compile(r" - at `\$((?:\.[\w-]+|\[(?:\d+|\.{3})\])*)`$")  # at the end of msgspec's messages
_ABOUT_KEY = re.compile(r"Object (?:(missing) required|contains unknown) field `(.*?)`$", re.DOTALL)
_RULES: dict[Any, str] = {str: "text", bool: "true or false", tuple: "a list", dict: "an object"}


def encode(record: Any) -> Any:
    """Return a record for JSON: an object by field names; enums become their values."""
    return msgspec.to_builtins(record, enc_hook=_without_subclass)


def _without_subclass(value: Any) -> Any:
    """Convert a subclass, such as torch's version, to the plain str, int or float."""
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(f"{value!r}: a file cannot hold a {type(value).__name__}")


_RATES = ("bandwidth", "uplink")  # other keys name the operation, such as copy_bandwidth


def without_unit(field: str) -> str:
    """Return the key of a field whose value has a unit in the file."""
    if field.endswith("_bytes_per_s"):
        stem = field.removesuffix("_bytes_per_s")
        return stem if stem in _RATES else f"{stem}_bandwidth"
    return field.removesuffix("_bytes").removesuffix("_s")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record that refuses unknown keys."""


class OpenRecord(msgspec.Struct, frozen=True):
    """A record that ignores unknown keys."""


def decode(kind: Callable[..., _Record], data: Any, place: str = "") -> _Record:
    """Return the record that `encode` wrote. Raises ValueError for missing or impossible values."""
    record: _Record = parsed(kind, data, place)
    return record


def parsed(kind: Any, value: Any, place: str = "") -> Any:
    """Return a value converted to this annotation. Raises ValueError, in one line, with place, value and rule."""
    try:
        return _converted(value, kind)
    except msgspec.ValidationError as error:
        _refuse(error, kind, value, place)
    except UnicodeEncodeError:  # JSON may have one half of a pair of surrogates, which msgspec cannot compare
        try:
            return _converted(_without_surrogates(value), kind)
        except msgspec.ValidationError as error:
            _refuse(error, kind, value, place)


def _converted(value: Any, kind: Any) -> Any:
    return msgspec.convert(value, kind, dec_hook=lambda by, given: by.parse(given))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(inner) for inner in value]
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _refuse(error: msgspec.ValidationError, kind: Any, value: Any, place: str) -> NoReturn:
    about_key = _ABOUT_KEY.match(str(error))
    is_here = about_key and isinstance(value, dict) and about_key[2] in value  # though it may end as a path does
    path = None if is_here else _PATH.search(str(error))
    with suppress(LookupError, TypeError):
        kind, value, place = _followed(path[1] if path else "", kind, value, place)
    if error.__cause__ and isinstance(value, dict) and _has_fields(_bare(kind)):  # its rules name the fields
        raise ValueError(f"{place}: {error.__cause__}".removeprefix(": ")) from None
    if error.__cause__:
        raise refusal(place, value, str(error.__cause__)) from None
    about_key = _ABOUT_KEY.match(str(error).removesuffix(path[0] if path else ""))
    if about_key and about_key[1]:
        raise ValueError(f"{place}: {about_key[2]} is missing".removeprefix(": ")) from None
    if about_key:
        raise unknown_key(place, about_key[2], getattr(_bare(kind), "__struct_encode_fields__", ())) from None
    raise refusal(place, value, _rule(kind, value, place)) from None


def _followed(path: str, kind: Any, value: Any, place: str) -> tuple[Any, Any, str]:
    for name, index in re.findall(r"\.([\w-]+)|\[([\d.]+)\]", path):
        kind = _bare(kind)
        if name:
            kind = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}[name]
            value, place = value[name], _inside(place, name)
        elif index == "...":  # msgspec does not say which key
            for key, inner in value.items():
                parsed(get_args(kind)[1], inner, _inside(place, key))
        else:
            kind, value, place = get_args(kind)[0], value[int(index)], f"{place}[{index}]"
    return kind, value, place


def _has_fields(kind: Any) -> bool:
    return hasattr(kind, "__struct_fields__") or ismethod(getattr(kind, "parse", None))


def _bare(kind: Any) -> Any:
    while get_origin(kind) in (Annotated, Union, UnionType):
        kind = next(inner for inner in get_args(kind) if inner is not type(None))
    return kind


def _rule(kind: Any, value: Any, place: str) -> str:
    while get_origin(kind) in (Union, UnionType):
        kind = next(inner for inner in get_args(kind) if inner is not type(None))
    bounds = kind.__metadata__[0] if get_origin(kind) is Annotated else msgspec.Meta()
    if rule := bounds.description:
        high = bounds.le if isinstance(bounds.le, int | float) and bounds.le < sys.float_info.max else math.inf
        is_above = isinstance(value, int | float) and value > high and " to " not in rule
        return f"{rule} and at most {high if isinstance(high, int) else format(high, 'g')}" if is_above else rule
    is_enum = isinstance(kind, type) and issubclass(kind, Enum)
    if known := [member.value for member in kind] if is_enum else (bounds.extra or {}).get("known"):
        return f"must be one of {', '.join(known)}{suggestion(value, known) if isinstance(value, str) else ''}"
    if get_origin(kind) is tuple and ... not in get_args(kind):
        return f"must be a list of {len(get_args(kind))} values"
    inner = get_args(kind)[0] if get_origin(kind) is tuple else None
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        return f"must be a list of tables{f', [[{place}]]' if isinstance(value, dict) else ''}"
    return f"must be {_RULES.get(get_origin(kind) or kind, 'a table of keys and values')}"


def unknown_key(place: str, name: str, known: Collection[str]) -> ValueError:
    """Return the error about an unknown key of a table."""
    shown = _inside(place, name if name.isidentifier() else _shown(name))  # a quoted key may hold anything
    return ValueError(f"{shown}: unknown key; {did_you_mean(name, known)}known here are {', '.join(known)}")


def refusal(place: str, value: Any, rule: str) -> ValueError:
    """Return the error with place and value as in the file, and the rule."""
    return ValueError(f"{place} = {_shown(value)}: {rule}".removeprefix(" = "))


@dataclass(frozen=True, slots=True)
class FileFormat:
    """The name and version at the beginning of a JSON file.

    older: versions that are still read. made_by: the command that writes it, for messages.
    """

    name: str
    version: int
    older: tuple[int, ...] = ()
    made_by: str = ""

    def write(self, record: Any) -> dict[str, Any]:
        return {"format": self.name, "version": self.version, **encode(record)}

    def read(self, data: Any) -> tuple[dict[str, Any], int]:
        """Return the rest of the file, and its version. Raises ValueError for other formats and versions."""
        if not isinstance(data, dict) or data.get("format") != self.name:
            raise ValueError(f"not a {self.name} file{self.made_by and f'; `{self.made_by}` writes one'}")
        version = data.get("version")
        if version not in (*self.older, self.version) or version is True:
            readable = f"versions up to {self.version}" if self.older else f"version {self.version}"
            raise ValueError(f"version {quoted(version)} of {self.name}: this ringsim reads {readable}")
        return {key: value for key, value in data.items() if key not in ("format", "version")}, version


class JsonFile(Record, frozen=True):
    """A JSON file with the name and version of `FORMAT`."""

    FORMAT: ClassVar[FileFormat]

    def as_dict(self) -> dict[str, Any]:
        return self.FORMAT.write(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Return the record of `as_dict`. Raises ValueError for anything else."""
        return decode(cls, cls.FORMAT.read(data)[0])

    def save(self, path: str | os.PathLike[str]) -> None:
        save_json(path, self.as_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file of `save`. Raises ValueError naming the file for other content, OSError if unreadable."""
        data = read_json(path)
        with naming_place(path):
            return cls.from_dict(data)


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _shown(value: Any) -> str:
    try:
        return shortened(json.dumps(value, ensure_ascii=False, default=str))
    except RecursionError:  # of hundreds of lists in each other
        return "{...}" if isinstance(value, dict) else "[...]"
