"""`StepLog`: a line of JSON for every few steps, in a file to be read while it grows; `TensorBoardLog`: as curves."""

import importlib.util
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

from ringsim.files import atomic_file, parse_json
from ringsim.suggestions import to_install

LOG = "log.jsonl"  # in the output directory
FOLDER = "tensorboard"  # in the output directory
ADVICE = f"needs tensorboard, which is not installed: {to_install('tensorboard')}"


class Mark(TypedDict):
    """How many lines there are, and a checksum of all of them. A checkpoint holds it."""

    lines: int
    crc32: int


class StepLog:
    """Each line is a JSON object with its "step", the number of steps done. Written by one rank.

    begin: at which step the run begins; lines of later steps, from a run that went further than its last checkpoint,
    are dropped. mark: what was there then, if it is known. say: told in a line if the file is damaged; then what there
    was is kept beside it, and the run goes on with the good lines.

    Raises OSError if the file cannot be written.
    """

    def __init__(
        self, path: Path, begin: int, mark: Mark | None = None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        content = path.read_bytes() if path.exists() else b""
        good = _good_lines(content)
        kept = [line for line in good if _step_of(line) <= begin] if begin else []
        self.mark = _mark_of(kept)
        if trouble := _damage(content, good, self.mark, mark):
            beside = f" it is kept as {_keep_beside(path, content).name}, and" if content else ""
            say(f"{path}: {trouble}:{beside} the run continues with the {len(kept)} good lines up to step {begin}")
        if not path.exists() or content != b"".join(kept):
            with atomic_file(path) as file:
                file.write(b"".join(kept))
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
    return [parse_json(line.decode()) for line in _good_lines(path.read_bytes())] if path.exists() else []


def _good_lines(content: bytes) -> list[bytes]:
    """Return the lines that are whole, and of a later step than the good ones before them."""
    good, last = [], 0
    for line in content.splitlines(keepends=True):
        if (step := _step_of(line)) > last:
            good.append(line)
            last = step
    return good


def _step_of(line: bytes) -> int:
    """Return the step of a line; -1 if it is no line of a log."""
    try:
        entry = parse_json(line.decode()) if line.endswith(b"\n") else None
    except ValueError:
        return -1
    step = entry.get("step") if isinstance(entry, dict) else None
    return step if isinstance(step, int) and not isinstance(step, bool) else -1


def _mark_of(lines: list[bytes]) -> Mark:
    return Mark(lines=len(lines), crc32=zlib.crc32(b"".join(lines)))


def _damage(content: bytes, good: list[bytes], mark: Mark, expected: Mark | None) -> str:
    """Say what is wrong with a log; "" if nothing is."""
    if expected and expected["lines"] != mark["lines"]:
        return f"has {mark['lines']} good lines of the {expected['lines']} that the run had written by then"
    if expected and expected["crc32"] != mark["crc32"]:
        return "its lines differ from those that the run had written by then"
    num_bad = len(content.splitlines()) - len(good)
    return f"{num_bad} of its lines {'is' if num_bad == 1 else 'are'} damaged" if num_bad else ""


def _keep_beside(path: Path, content: bytes) -> Path:
    """Write to a new file, such as log.jsonl.damaged, or log.jsonl.damaged.2; none that is there is overwritten."""
    names = itertools.chain([f"{path.name}.damaged"], (f"{path.name}.damaged.{n}" for n in itertools.count(2)))
    for beside in (path.with_name(name) for name in names):
        try:
            with beside.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            continue
        return beside
    raise AssertionError


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
        for name, value in _named(line):
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, line["step"])
        self._writer.flush()

    def close(self) -> None:
        """Write no more lines."""
        self._writer.close()


def _named(line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in line.items():
        if isinstance(value, dict):
            yield from ((f"{name}/{inner}", number) for inner, number in value.items())
        else:
            yield name, value
