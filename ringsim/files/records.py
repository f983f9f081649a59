"""Records: a description of what a file holds, for its writer and its reader.

A `Table` lists the keys of an object of JSON, of a table of TOML or of a line of CSV. That of a dataclass follows from
its fields: `decode` reads an instance, `encode` writes one, `check` looks at one that Python made. The annotation of a
field says what the value may be:

- `Annotated[int, whole(1, 8)]`: what this parser of `ringsim.files.values` takes;
- `int`, `float`, `str`, `bool`, an enum: by the type, and seconds and numbers of ranks by the field's name;
- another dataclass, `tuple[..., ...]`, `dict[str, ...]` and `... | None` of any of these; `Any`: anything.

A field with a default may be left out. `field(metadata={"key": "late_s"})` gives the key in files if that is not the
name of the field; a key such as run.name is that of an object within the object.
"""

import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, ClassVar, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from ringsim.files import values
from ringsim.files.text_file import naming_place, quoted, read_json, save_json, shortened
from ringsim.files.values import Parser
from ringsim.suggestions import did_you_mean

_Record = TypeVar("_Record")


Reader = Callable[[Any, str], Any]  # takes a value and its place in the file, such as layer[3].width


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table: it holds a table or what an annotation or a parser says, and becomes a field.

    many: whether it holds a list of tables. is_open: see `decode`.
    """

    field: str
    holds: Any
    required: bool = False
    many: bool = False
    is_open: bool = False

    def read(self, value: Any, place: str) -> Any:
        """Return the value of the field. Raises ValueError with place, value and rule."""
        read = self.holds.read if isinstance(self.holds, Table) else _reader(self.holds, self.field, self.is_open)
        if self.many and not isinstance(value, list):
            raise refusal(place, value, f"must be a list of tables, [[{place}]]")
        return (_many(read) if self.many else read)(value, place)


@dataclass(frozen=True, slots=True)
class Table:
    """The keys that a table may have; is_open: and others, which are passed over."""

    keys: Mapping[str, Key]
    is_open: bool = False

    def read(self, data: Any, place: str) -> dict[str, Any]:
        """Return the fields; those of keys that are left out are left out, so that the defaults stand in one place.

        Raises ValueError with place, value and rule for whatever does not belong there.
        """
        if not isinstance(data, dict):
            raise refusal(place, data, "must be a table of keys and values")
        unknown = None if self.is_open else next((name for name in data if name not in self.keys), None)
        if unknown is not None:
            shown = unknown if unknown.isidentifier() else _shown(unknown)  # a quoted key may hold anything
            known = f"{did_you_mean(unknown, self.keys)}known here are {', '.join(self.keys)}"
            raise ValueError(f"{_inside(place, shown)}: unknown key; {known}")
        read = {}
        for name, key in self.keys.items():
            value = data[name] if name in data else _within(data, name, place)
            if value is not MISSING:
                read[key.field] = key.read(value, _inside(place, name))
            elif key.required:
                raise ValueError(f"{place}: {name} is missing".removeprefix(": "))
        return read


def refusal(place: str, value: Any, rule: str) -> ValueError:
    """Return the error with the place and the value as they stand in the file, and the rule."""
    return ValueError(f"{place} = {_shown(value)}: {rule.removeprefix(': ')}".removeprefix(" = "))


def parsed(parse: Parser, value: Any, place: str) -> Any:
    """Return what the parser makes of a value. Raises ValueError with place, value and rule."""
    try:
        return parse(value)
    except ValueError as error:
        raise refusal(place, value, str(error)) from None


def decode(kind: Callable[..., _Record], data: Any, place: str = "", *, is_open: bool = False) -> _Record:
    """Return the record that `encode` wrote. Raises ValueError, in one line, for what is missing or impossible.

    is_open: whether the record, and those within it, may have keys that are not among its fields.
    """
    fields_read = _table_of(kind, is_open).read(data, place)
    with naming_place(place):
        return kind(**fields_read)


def encode(record: Any) -> Any:
    """Return a record as JSON has it: an object with the keys of its fields; enums become their values."""
    if is_dataclass(record):
        return {_key(field): encode(getattr(record, field.name)) for field in fields(record)}
    if isinstance(record, dict):
        return {key: encode(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [encode(value) for value in record]
    return record.value if isinstance(record, Enum) else record


def check(record: Any, not_empty: Collection[str] = ()) -> None:
    """Raise ValueError for the first field of a dataclass that no file could hold; not_empty: lists with an entry."""
    for name, key in _table_of(record.__class__, False).keys.items():
        key.read(getattr(record, key.field), name)
        if key.field in not_empty and not getattr(record, key.field):
            raise ValueError(f"{name}: must have at least one entry")


@dataclass(frozen=True, slots=True)
class FileFormat:
    """The name and the version that a file of JSON begins with.

    older: versions that are still read. made_by: the command that writes it, for the message about another file.
    is_open: whether a file may have keys that are not among the fields of its record.
    """

    name: str
    version: int
    older: tuple[int, ...] = ()
    made_by: str = ""
    is_open: bool = False

    def write(self, record: Any) -> dict[str, Any]:
        """Return the record for JSON, with name and version before it."""
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

    def decode(self, kind: Callable[..., _Record], data: Any) -> _Record:
        """Return the record of this format. Raises ValueError, in one line, for anything else; see `decode`."""
        body, _ = self.read(data)
        return decode(kind, body, is_open=self.is_open)


class JsonFile:
    """A record that is its own JSON file, which begins with the name and version of `FORMAT`."""

    __slots__ = ()
    FORMAT: ClassVar[FileFormat]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, with the name and version of the format."""
        return self.FORMAT.write(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Return what `as_dict` gave. Raises ValueError, in one line, for anything else."""
        return cls.FORMAT.decode(cls, data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, whole or not at all."""
        save_json(path, self.as_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote. Raises ValueError naming the file if it is not that, OSError if unreadable."""
        data = read_json(path)
        with naming_place(path):
            return cls.from_dict(data)


@cache
def _table_of(kind: Any, is_open: bool) -> Table:
    """Return the table of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    keys = {}
    for field in fields(kind):
        required = field.default is MISSING and field.default_factory is MISSING
        keys[_key(field)] = Key(field.name, hints[field.name], required, is_open=is_open)
    return Table(keys, is_open)


def _key(field: Any) -> str:
    return str(field.metadata.get("key", field.name))


@cache
def _reader(hint: Any, name: str, is_open: bool) -> Reader:
    """Return the reader of a field of this name with this annotation, or with this parser."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return partial(parsed, arguments[1])
    if origin is tuple:
        return _many(_reader(arguments[0], name, is_open))
    if origin is dict:
        return _mapped(_reader(arguments[1], name, is_open))
    if origin in (Union, UnionType):
        inner = _reader(next(kind for kind in arguments if kind is not type(None)), name, is_open)
        return lambda value, place: None if value is None else inner(value, place)
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value, place: value if isinstance(value, hint) else _record(hint, value, place, is_open)
    return partial(parsed, _plain(hint, name) if isinstance(hint, type) else hint)


def _record(kind: Any, value: Any, place: str, is_open: bool) -> Any:
    """Return a record within another; one that is a file elsewhere has a format, and its own reader."""
    if not hasattr(kind, "from_dict"):
        return decode(kind, value, place, is_open=is_open)
    with naming_place(place):
        return kind.from_dict(value)


def _plain(kind: type, name: str) -> Parser:
    """Return the parser for a type without its own bounds.

    Names say what is seconds, and what is a number of ranks.
    """
    if issubclass(kind, Enum):
        return lambda value: value if isinstance(value, kind) else kind(values.one_of(*(m.value for m in kind))(value))
    if kind is int:
        return values.whole(1, values.MAX_RANKS) if name == "num_ranks" else values.whole()
    if kind is float:
        is_time = name.endswith("_s") and not name.endswith("_per_s")
        return values.seconds(0) if is_time else values.number()
    parsers: dict[Any, Parser] = {str: values.text, bool: values.truth, Any: lambda value: value}
    return parsers[kind]


def _many(inner: Reader) -> Reader:
    def read(listed: Any, place: str) -> tuple[Any, ...]:
        if not isinstance(listed, list | tuple):
            raise refusal(place, listed, "must be a list")
        return tuple(inner(value, f"{place}[{index}]") for index, value in enumerate(listed))

    return read


def _mapped(inner: Reader) -> Reader:
    def read(data: Any, place: str) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise refusal(place, data, "must be an object")
        return {key: inner(value, _inside(place, key)) for key, value in data.items()}

    return read


def _within(data: dict[str, Any], path: str, place: str) -> Any:
    """Return the value of a path of keys: `run.name` is the key `name` of the object at `run`.

    MISSING if a key is not there, or an object is null. Raises ValueError if one of them is no object.
    """
    value: Any = data
    for name in path.split("."):
        if value is None or value is MISSING:
            return MISSING
        if not isinstance(value, dict):
            raise refusal(place, value, "must be an object")
        value, place = value.get(name, MISSING), _inside(place, name)
    return value


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _shown(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False, default=str))
