"""`StepLog`: a line of JSON for every few steps, in a file to be read while it grows; `TensorBoardLog`: as curves."""

import importlib.util
import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from ringsim.files import atomic_file, parse_json
from ringsim.suggestions import to_install

LOG = "log.jsonl"  # in the output directory
DAMAGED = f"{LOG}.damaged"
FOLDER = "tensorboard"  # in the output directory
ADVICE = f"needs tensorboard, which is not installed: {to_install('tensorboard')}"


class Mark(TypedDict):
    """The number of lines, and a checksum of all of them. A checkpoint holds it."""

    lines: int
    crc32: int


class StepLog:
    """Each line is a JSON object with its "step", the number of steps done. Written by one rank.

    begin: at which step the run begins; later lines, from a run that went further than its last checkpoint, are
    dropped. mark: of the lines that the file had then; None: it begins anew. say: told in a line if they are not what
    they were; then the old file is kept as DAMAGED, and the run goes on with the good lines.

    Raises OSError if the file cannot be written.
    """

    def __init__(
        self, path: Path, begin: int = 0, mark: Mark | None = None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        content = path.read_bytes() if path.exists() else b""
        self.mark = mark or Mark(lines=0, crc32=0)
        kept = b"".join(content.splitlines(keepends=True)[: self.mark["lines"]])
        if zlib.crc32(kept) != self.mark["crc32"]:
            lines = [line for step, line in _good_lines(content) if step <= begin]
            kept = b"".join(lines)
            self.mark = Mark(lines=len(lines), crc32=zlib.crc32(kept))
            if path.exists():
                path.replace(path.with_name(DAMAGED))
            say(
                f"{path}: is not as the run had written it by step {begin}: it is kept as {DAMAGED}, and the run "
                f"continues with its {len(lines)} good lines up to that step"
            )
        if not path.exists() or content != kept:
            with atomic_file(path) as file:
                file.write(kept)
        self._path = path
        self._file = path.open("ab", buffering=0)

    def write(self, line: dict[str, Any]) -> None:
        """Add a line, whole or not at all."""
        size_bytes = self._file.seek(0, os.SEEK_END)
        whole = data = (json.dumps(line, allow_nan=False) + "\n").encode()
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            self._file.truncate(size_bytes)
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self.mark = Mark(lines=self.mark["lines"] + 1, crc32=zlib.crc32(whole, self.mark["crc32"]))

    def sync(self) -> None:
        """Wait until all lines are on the disk, before there is a checkpoint that counts on them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write no more lines."""
        self._file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the good lines; [] if there is no such file."""
    return [parse_json(line.decode()) for _, line in _good_lines(path.read_bytes())] if path.exists() else []


def _good_lines(content: bytes) -> list[tuple[int, bytes]]:
    """Return the lines that are whole, and of a later step than the good ones before them, with their steps."""
    good: list[tuple[int, bytes]] = []
    for line in content.splitlines(keepends=True):
        try:
            entry = parse_json(line.decode()) if line.endswith(b"\n") else None
        except ValueError:
            continue
        step = entry.get("step") if isinstance(entry, dict) else None
        if type(step) is int and step > (good[-1][0] if good else 0):
            good.append((step, line))
    return good


def require_tensorboard() -> None:
    """Raise ValueError, which says how to install it, if it is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError(f"--tensorboard: {ADVICE}")


class TensorBoardLog:
    """Each number of a line is a scalar of the same name at the line's "step", one of a dict "evaluation/loss".

    Written by one rank.

    begin: at which step the run begins. TensorBoard leaves out what an earlier run has written of later steps into the
    same directory, as `StepLog` drops such lines.

    Raises ValueError if TensorBoard is not installed, OSError if the directory cannot be written.
    """

    def __init__(self, folder: Path, begin: int) -> None:
        require_tensorboard()
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  an extra, and loads seconds of modules

        folder.mkdir(parents=True, exist_ok=True)
        self._writer: Any = SummaryWriter(str(folder), purge_step=begin + 1)

    def write(self, line: Mapping[str, Any]) -> None:
        """Add the figures of a line; they are in the file when this returns."""
        for name, value in line.items():
            figures = {f"{name}/{inner}": number for inner, number in value.items()} if isinstance(value, dict) else {}
            for label, number in (figures or {name: value}).items():
                if label != "step" and isinstance(number, int | float):
                    self._writer.add_scalar(label, number, line["step"])
        self._writer.flush()

    def close(self) -> None:
        """Write no more lines."""
        self._writer.close()
