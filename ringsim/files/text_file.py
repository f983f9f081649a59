"""Files of text, JSON and TOML: one-line read errors, and files written completely or not at all."""

import errno
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ringsim.suggestions import did_you_mean

MAX_BYTES = 256 * 2**20  # also prevents an endless device, such as /dev/zero, from filling the memory
_TOO_DEEP = "is nested too deeply"


def read_bytes(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file. Raises OSError if unreadable, ValueError if too large."""
    with Path(path).open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path}: must not have more than {max_bytes:,} bytes")
    return data


def read_regular(path: str | os.PathLike[str], place: str) -> bytes:
    """Return the content of a file. Raises ValueError, which begins with `place`, if unreadable."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():  # a pipe would block a rank, a device would fill the memory
            raise ValueError(f"{place}: cannot be read: not a regular file")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{place}: cannot be read: {error.strerror}") from error


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a UTF-8 file. Raises ValueError, which names it, for other text; OSError if unreadable."""
    try:
        text = read_bytes(path).decode("utf-8-sig")  # some editors begin a file with a mark
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from None
    return text.replace("\r\n", "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Return the data of a JSON file. Raises the ValueErrors of `parse_json`, with the file; OSError if unreadable."""
    text = read_text(path)
    with naming_place(path):
        return parse_json(text)


def parse_json(text: str) -> Any:
    """Return the data of a JSON text.

    Raises ValueError for invalid JSON, infinity, NaN, a repeated name in one object, and deep nesting.
    """
    if not text.strip():
        raise ValueError("is empty: must hold JSON")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{place}: is incomplete JSON: {error.msg}; it was cut off or edited") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text. Raises ValueError for invalid TOML and deep nesting."""
    import tomllib  # noqa: PLC0415  most commands read no file

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError as error:
        raise ValueError(f"is not TOML: {error}") from None


def toml_text(table: Mapping[str, Any], place: str = "") -> str:
    """Return the TOML of a table: values, one per line, then tables, without None and empty lists.

    place: of the table in the file, such as "host.". Raises ValueError for None in a list.
    """
    present = {_toml_key(key): value for key, value in table.items() if value not in (None, [], ())}
    inner = {key: value for key, value in present.items() if _holds_tables(value)}
    lines = [f"{key} = {_toml(value)}" for key, value in present.items() if key not in inner]
    for key, value in inner.items():
        for one in [value] if isinstance(value, dict) else value:
            heading = f"[{place}{key}]" if isinstance(value, dict) else f"[[{place}{key}]]"
            lines += ["", heading, toml_text(one, f"{place}{key}.").rstrip()]
    return "\n".join([*lines, ""])


def _holds_tables(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list | tuple) and all(isinstance(one, dict) for one in value))


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        inner = (f"{_toml_key(key)} = {_toml(one)}" for key, one in value.items() if one is not None)
        return f"{{{', '.join(inner)}}}"
    if value is None:
        raise ValueError("a list with None in it: TOML has no such value")
    if isinstance(value, float) and not math.isfinite(value):
        return format(value)  # as in TOML: inf, -inf, nan
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def quoted(value: object, most: int = 60) -> str:
    """Return a value in one line of at most `most` characters."""
    return shortened(repr(value), most)


def shortened(text: str, most: int = 60) -> str:
    """Cut the text to `most` characters, with dots at the end."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def names_in(folder: Path) -> list[str]:
    """Return the names of a folder's presets in alphabetical order."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def read_preset(kind: str, name: str, folder: Path) -> tuple[str, str]:
    """Return the text of a preset, or of a file whose name ends in .toml, and the file's name for messages.

    kind: of what it describes. Raises ValueError for an unknown preset, and OSError for an unreadable file.
    """
    if name.endswith(".toml"):
        return read_text(Path(name)), name
    if name not in (names := names_in(folder)):
        presets = f"{did_you_mean(name, names)}presets are {', '.join(names)}"
        raise ValueError(f"{kind} {name!r}: {presets}; or give a file that ends in .toml")
    return read_text(folder / f"{name}.toml"), f"ringsim/{folder.parent.name}/presets/{name}.toml"


@contextmanager
def naming_place(place: object) -> Iterator[None]:
    """Prefix a ValueError in the block with the place, such as a file or a field."""
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


def _constant(name: str) -> None:
    raise ValueError(f"{name}: must be a finite number")


def finite_or_none(value: Any) -> Any:
    """Replace non-finite numbers by None, also within objects and lists; records become objects."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, dict):
        return {key: finite_or_none(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a new file, which replaces `path` when the block ends without an error; otherwise it is removed.

    It is synced before the replacement, so that a crash of the machine leaves a complete file. A symbolic link's target
    is replaced. Anything but a regular file, such as a FIFO or a device, is written in place. Raises OSError if
    unwritable.
    """
    path = Path(path)
    target = file_to_replace(path)
    if is_read_only(target or path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    try:
        with path.open("wb") if target is None else _replacing(target) as file:
            yield file
    except OSError as error:
        if error.filename not in (None, str(target and _temporary(target))):  # a full disk names no file
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def is_read_only(path: Path) -> bool:
    """Return whether there is a file without write permission, which a rename would still replace."""
    return path.exists() and not os.access(path, os.W_OK)


def save_json(path: str | os.PathLike[str], data: Any) -> None:
    """Write `data` as a JSON file, with the errors of `json_text` and `atomic_file`."""
    with atomic_file(path) as file:
        file.write(json_text(data).encode())


def json_text(data: Any) -> str:
    """Return the contents of a JSON file. Raises ValueError for a number that JSON cannot represent."""
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def file_to_replace(path: Path) -> Path | None:
    """Return `path` without symbolic links, as the target of a rename; None if it is no regular file.

    A link in /proc, such as /dev/stdout, may show a path that is none, if it leads to a pipe or a deleted file.
    """
    target = Path(os.path.realpath(path))
    is_free = not path.exists() and not target.is_symlink()  # links that lead to each other end in a link
    return target if is_free or target.is_file() else None


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    temporary = _temporary(path)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _temporary(path: Path) -> Path:
    """Return a name in the same directory: a rename is atomic only within one file system."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _sync_directory(directory: Path) -> None:
    """Make a rename survive a power failure: the name belongs to the directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
