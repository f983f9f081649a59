"""`atomic_file`: a file that appears complete or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yields a new file to write to, which takes the place of `path` when the block ends without an error.

    After an error, an interrupt included, nothing is left of it and the file that was there before is
    untouched. It is on the disk before it replaces the old one, so a crash of the machine leaves one of the
    two whole. Raises OSError if it cannot be written.
    """
    path = Path(path)
    # In the same directory, because a rename is atomic only within one file system.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):  # a full disk names no file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Make a rename survive a power failure: the name is the directory's content, not the file's."""
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows: a directory cannot be opened, and needs no such thing
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
