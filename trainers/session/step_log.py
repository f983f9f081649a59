"""`StepLog`: a line of JSON for every few steps, in a file that can be read while it grows."""

import json
import os
from pathlib import Path
from typing import Any

from ringsim.atomic_file import atomic_file
from ringsim.text_file import parse_json


class StepLog:
    """Each line is a JSON object with its "step", the number of steps done. Written by one rank.

    begin: at which step the run begins; lines of later steps, from a run that went further than its last checkpoint,
    are dropped, as is a torn one.

    Raises OSError if the file cannot be written.
    """

    def __init__(self, path: Path, begin: int) -> None:
        kept = b"".join(_lines_until(path, begin)) if begin else b""
        if not path.exists() or path.read_bytes() != kept:
            with atomic_file(path) as file:
                file.write(kept)
        self._path = path
        self._file = path.open("ab", buffering=0)

    def write(self, line: dict[str, Any]) -> None:
        """Add a line, whole or not at all."""
        size_bytes = self._file.seek(0, os.SEEK_END)
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            self._file.truncate(size_bytes)
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def sync(self) -> None:
        """Wait until all lines are on the disk, before there is a checkpoint that counts on them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """No line is to come any more."""
        self._file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines; [] if there is no such file."""
    return [parse_json(line.decode()) for line in _lines_until(path, None)]


def _lines_until(path: Path, step: int | None) -> list[bytes]:
    """The good lines up to that step; all good ones if it is None."""
    if not path.exists():
        return []
    return [line for line in path.read_bytes().splitlines(keepends=True) if _is_wanted(line, step)]


def _is_wanted(line: bytes, step: int | None) -> bool:
    if not line.endswith(b"\n"):
        return False
    try:
        found = parse_json(line.decode())
    except ValueError:
        return False
    return isinstance(found, dict) and isinstance(found.get("step"), int) and (step is None or found["step"] <= step)
