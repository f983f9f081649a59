"""Writing files: `atomic_file` appears complete or not at all, and so does the JSON of `save_json`."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a new file to write to, which takes the place of `path` when the block ends without an error.

    After an error, an interrupt included, nothing is left of it and the file that was there before is
    unchanged. It is on the disk before it replaces the old one; a crash of the machine therefore leaves one of the
    two complete. A symbolic link stays, and its target is replaced. Anything but a regular file, such as a FIFO
    or a device, is written to in place and never replaced. Raises OSError if it cannot be written.
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
    """Return whether there is a file that may not be written to; a rename would replace it all the same."""
    return path.exists() and not os.access(path, os.W_OK)


def save_json(path: str | os.PathLike[str], data: Any) -> None:
    """Write `data` as a JSON file, whole or not at all. Raises ValueError for a number that JSON does not have."""
    with atomic_file(path) as file:
        file.write(json_text(data).encode())


def json_text(data: Any) -> str:
    """Return the contents of a JSON file. Raises ValueError for a number that JSON does not have."""
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def file_to_replace(path: Path) -> Path | None:
    """Return the path, perhaps of a file to come, that a rename may replace: `path` without symbolic links.

    None if there is something that is not a regular file. (Where a link in /proc leads to a pipe or to a deleted file,
    as /dev/stdout does then, the path that it shows is none of a file.)
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
    """In the same directory, because a rename is atomic only within one file system."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _sync_directory(directory: Path) -> None:
    """Make a rename survive a power failure: the name is the directory's content, not the file's."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
