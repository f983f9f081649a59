"""The output directory of a run: its files, its log and its lock; loads no torch."""

import errno
import fcntl
import importlib.util
import json
import os
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypedDict

from ringsim.files import atomic_file, parse_json
from ringsim.suggestions import to_install

NAME = re.compile(r"checkpoint-(0|[1-9][0-9]*)\.pt")
OPTIONS_FILE = "run.toml"
RESULT = "result.json"
LOG = "log.jsonl"
DAMAGED = f"{LOG}.damaged"
FOLDER = "tensorboard"
NAMES = ("checkpoint-*.pt", LOG, RESULT, OPTIONS_FILE)
UNFINISHED = tuple(f".{name}.*.tmp" for name in NAMES)  # left by a killed `atomic_file`
LOCK = ".lock"
ADVICE = f"needs tensorboard, which is not installed: {to_install('tensorboard')}"
WAIT_S = 5.0  # for a run that is just ending: torchrun and Slurm start one again as soon as the last one has gone
POLL_S = 0.2
LOCKS_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def save_options(output: Path, text: str) -> None:
    """Write the options of a run. Raises OSError."""
    with atomic_file(output / OPTIONS_FILE) as file:
        file.write(text.encode(errors="replace"))  # a path may hold bytes that are no text


class CheckpointFolder:
    """The checkpoints of one run, named by step; the directory need not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def step_of(path: Path) -> int:
        match = NAME.fullmatch(path.name)
        assert match is not None
        return int(match[1])

    def path(self, step: int) -> Path:
        return self.folder / f"checkpoint-{step}.pt"

    def newest_first(self) -> list[Path]:
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted((path for path in paths if NAME.fullmatch(path.name)), key=self.step_of, reverse=True)

    def require_none(self) -> None:
        if checkpoints := self.newest_first():
            raise ValueError(
                f"`output` {self.folder}: there is {checkpoints[0].name} of a run already: "
                f"continue it with `resume`, or give another `output`"
            )

    def prune(self, step: int, keep: int) -> None:
        """Delete all but the newest `keep` checkpoints up to `step`; later checkpoints are damaged, and stay."""
        for path in [path for path in self.newest_first() if self.step_of(path) <= step][keep:]:
            path.unlink(missing_ok=True)

    def clear_unfinished(self) -> None:
        """Delete a killed run's temporary files; in a container a later run may have its process number."""
        with suppress(OSError):
            for path in (path for pattern in UNFINISHED for path in self.folder.glob(pattern)):
                path.unlink(missing_ok=True)


class OutputLock:
    """A lock (lockf) on a file in the directory; `say` gets a warning if the file system has no locks."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        self._say = say
        self._path = folder / LOCK
        self._descriptor: int | None = None

    def wait(self, deadline: float) -> bool:
        """Make the directory and try to lock it; return whether it is locked, after a moment if not.

        Raises OSError, or ValueError if another run has the lock at the deadline.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._try_to_take():
            return True
        if time.monotonic() > deadline:
            holder = ""
            with suppress(OSError, UnicodeDecodeError):
                holder = self._path.read_text()
            raise ValueError(
                f"`output` {self.folder}: {holder or 'another process'} is using it: "
                f"wait until that run has ended, or give another `output`"
            )
        time.sleep(POLL_S)
        return False

    def _try_to_take(self) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in LOCKS_UNSUPPORTED:
                reason = f"cannot be locked ({error.strerror}): make sure that no other run writes there"
                self._say(f"`output` {self.folder}: {reason}")
            elif error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return error.errno in LOCKS_UNSUPPORTED
        if os.fstat(descriptor).st_nlink == 0:  # removed by its last holder: others would lock a new file
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        with suppress(OSError):  # of a full disk
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on host {socket.gethostname()}".encode(), 0)
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def locked(folder: Path, say: Callable[[str], None], wait_s: float = WAIT_S) -> Iterator[None]:
    """Lock the directory for the block. Raises the errors of `OutputLock.wait` after `wait_s`."""
    lock, deadline = OutputLock(folder, say), time.monotonic() + wait_s
    while not lock.wait(deadline):
        pass
    try:
        yield
    finally:
        lock.release()


class Mark(TypedDict):
    """Number and checksum of the log's lines, for checkpoints."""

    lines: int
    crc32: int


class StepLog:
    """The log of one rank: each line is a JSON object whose "step" is the number of steps done.

    begin: the run's first step; later lines are dropped. mark: of the file at that step; None: begin a new file. A file
    that does not match is kept as DAMAGED, and the run continues with its good lines. Raises OSError.
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
        """Wait until all lines are on disk, before a checkpoint stores their mark."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the good lines; [] if there is no file."""
    return [parse_json(line.decode()) for _, line in _good_lines(path.read_bytes())] if path.exists() else []


def _good_lines(content: bytes) -> list[tuple[int, bytes]]:
    """Return step and line of each whole line whose step follows those of the good lines before it."""
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
    """Raise ValueError, with advice, if TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError(f"`tensorboard`: {ADVICE}")


class TensorBoardLog:
    """Writes each number of a line as a scalar at the line's "step"; in a dict, as "evaluation/loss".

    begin: the run's first step, from which TensorBoard hides an earlier run. Raises ValueError or OSError.
    """

    def __init__(self, folder: Path, begin: int) -> None:
        require_tensorboard()
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  an extra, and loads seconds of modules

        folder.mkdir(parents=True, exist_ok=True)
        self._writer: Any = SummaryWriter(str(folder), purge_step=begin + 1)

    def write(self, line: Mapping[str, Any]) -> None:
        for name, value in line.items():
            figures = {f"{name}/{inner}": number for inner, number in value.items()} if isinstance(value, dict) else {}
            for label, number in (figures or {name: value}).items():
                if label != "step" and isinstance(number, int | float):
                    self._writer.add_scalar(label, number, line["step"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
