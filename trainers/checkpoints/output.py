"""The output directory of a run: its files, its checkpoints, and the lock by which one run at a time writes there.

Importing this loads no torch.
"""

import errno
import fcntl
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ringsim.files import atomic_file

NAME = re.compile(r"checkpoint-(0|[1-9][0-9]*)\.pt")
OPTIONS_FILE = "run.toml"
NAMES = ("checkpoint-*.pt", "log.jsonl", "result.json", OPTIONS_FILE)
UNFINISHED = tuple(f".{name}.*.tmp" for name in NAMES)  # by `atomic_file`, when killed
LOCK = ".lock"
WAIT_S = 5.0  # for a run that is just ending: torchrun and Slurm start one again as soon as the last one has gone
POLL_S = 0.2
WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def save_options(output: Path, text: str) -> None:
    """Write the options of a run. Raises OSError if they cannot be written."""
    with atomic_file(output / OPTIONS_FILE) as file:
        file.write(text.encode(errors="replace"))  # a path may hold bytes that are no text


class CheckpointFolder:
    """The checkpoints of one run, named by their steps; the newest few are kept.

    The directory need not be there before something is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def step_of(path: Path) -> int:
        """Return after how many steps a checkpoint was written, by its name."""
        match = NAME.fullmatch(path.name)
        assert match is not None
        return int(match[1])

    def path(self, step: int) -> Path:
        """Return the path of the checkpoint after `step` steps, whether it is there or not."""
        return self.folder / f"checkpoint-{step}.pt"

    def newest_first(self) -> list[Path]:
        """Return all files with the name of a checkpoint, good or not."""
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted((path for path in paths if NAME.fullmatch(path.name)), key=self.step_of, reverse=True)

    def require_none(self) -> None:
        """Raise ValueError if there is a checkpoint: a run that does not resume would replace those of another."""
        if checkpoints := self.newest_first():
            raise ValueError(
                f"--output {self.folder}: there is {checkpoints[0].name} of a run already: "
                f"continue it with --resume, or give another --output"
            )

    def prune(self, step: int, keep: int) -> None:
        """Delete all but the newest `keep` checkpoints of those up to `step`.

        Later ones are left alone: if they were any good, the run would not have begun before them.
        """
        for path in [path for path in self.newest_first() if self.step_of(path) <= step][keep:]:
            path.unlink(missing_ok=True)

    def clear_unfinished(self) -> None:
        """Delete what a run that was killed while it wrote a file has left.

        A later one may have the number of its process, as in a container, and would take the name for its own.
        """
        with suppress(OSError):
            for path in (path for pattern in UNFINISHED for path in self.folder.glob(pattern)):
                path.unlink(missing_ok=True)


class OutputLock:
    """A lock (lockf) on a file in the directory, which the system opens when the process ends, however it ends.

    say: told in a line if the file system has no locks; the run then goes on without one.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        self._say = say
        self._path = folder / LOCK
        self._descriptor: int | None = None

    def wait(self, deadline: float) -> bool:
        """Return whether it is ours, after a moment if it is not; the directory is made if need be.

        Raises ValueError if another run has it at the deadline, OSError if the directory or the file cannot be made.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._try_to_take():
            return True
        if time.monotonic() > deadline:
            holder = ""
            with suppress(OSError, UnicodeDecodeError):
                holder = self._path.read_text()
            raise ValueError(
                f"--output {self.folder}: {holder or 'another process'} is using it: "
                f"wait until that run has ended, or give another --output"
            )
        time.sleep(POLL_S)
        return False

    def _try_to_take(self) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in WITHOUT_LOCKS:
                reason = f"cannot be locked ({error.strerror}): make sure that no other run writes there"
                self._say(f"--output {self.folder}: {reason}")
            elif error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return error.errno in WITHOUT_LOCKS
        if os.fstat(descriptor).st_nlink == 0:  # its holder has removed it meanwhile: others would lock a new one
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        with suppress(OSError):  # as far as there is room on the disk
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on host {socket.gethostname()}".encode(), 0)
        return True

    def release(self) -> None:
        """Let others have it, and leave no file."""
        if self._descriptor is not None:
            with suppress(OSError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def locked(folder: Path, say: Callable[[str], None], wait_s: float = WAIT_S) -> Iterator[None]:
    """Write to `folder` alone, for the block; it is made if need be.

    Raises ValueError if another run has it, and has not ended in time, OSError if it cannot be made.
    """
    lock, deadline = OutputLock(folder, say), time.monotonic() + wait_s
    while not lock.wait(deadline):
        pass
    try:
        yield
    finally:
        lock.release()
