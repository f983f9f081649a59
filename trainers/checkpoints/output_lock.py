"""`OutputLock`: an output directory that one run at a time writes to. Importing this loads no torch."""

import errno
import os
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    HAS_FLOCK = False
else:
    HAS_FLOCK = True

NAME = ".lock"
WAIT_S = 5.0  # for a run that is just ending: torchrun and Slurm start one again as soon as the last one has gone
WRITING_S = 60.0  # for one that writes its results, where that is all that the lock is for
POLL_S = 0.2
WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class OutputLock:
    """A lock (flock) on a file in the directory, which the system opens when the process ends, however it ends.

    missing: why the file system has no locks; "" if it has. A run goes on without one, and is to say so.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.missing = ""
        self._path = folder / NAME
        self._descriptor: int | None = None

    def try_take(self) -> bool:
        """Whether it is ours now, or the file system has none. Raises OSError if the file cannot be made."""
        if not HAS_FLOCK:
            self.missing = "this system has no flock"
            return True
        while self._descriptor is None:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            except OSError as error:
                os.close(descriptor)
                if error.errno not in WITHOUT_LOCKS:
                    raise
                self.missing = error.strerror or str(error)
                return True
            self._keep(descriptor)
        return True

    def _keep(self, descriptor: int) -> None:
        """Unless whoever held it has removed the file meanwhile: then others would lock a new one."""
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                self._descriptor = descriptor
                _held.add(self)
                return
        os.close(descriptor)

    def sign(self) -> None:
        """Say in the file who holds it; as far as there is room on the disk."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.truncate(self._descriptor, 0)
                os.pwrite(self._descriptor, f"process {os.getpid()} on host {socket.gethostname()}".encode(), 0)

    def holder(self) -> str:
        """What the one that holds it has said of itself."""
        with suppress(OSError, UnicodeDecodeError):
            if said := self._path.read_text().strip():
                return said.splitlines()[0]
        return "a process that has not said which"

    def refusal(self) -> str:
        """Why the directory cannot be used, and what to do."""
        return (
            f"--output {self.folder}: {self.holder()} is using it: "
            f"wait until that run has ended, or give another --output"
        )

    def release(self) -> None:
        """Let others have it, and leave no file."""
        if self._descriptor is not None:
            with suppress(OSError):
                self._path.unlink()
            self.forget()

    def forget(self) -> None:
        """Close what is open of it; in a process that was forked the lock stays the parent's."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.discard(self)


_held: "weakref.WeakSet[OutputLock]" = weakref.WeakSet()


def _forget_all() -> None:
    """A child that outlives its parent, such as a worker that loads data, must not keep the directory locked."""
    for lock in list(_held):
        lock.forget()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_all)


@contextmanager
def locked(folder: Path, say: Callable[[str], None], wait_s: float = WAIT_S) -> Iterator[None]:
    """Write to `folder` alone, for the block. Raises ValueError if another does, and has not ended in time."""
    lock, deadline = OutputLock(folder), time.monotonic() + wait_s
    while not lock.try_take():
        if time.monotonic() > deadline:
            raise ValueError(lock.refusal())
        time.sleep(POLL_S)
    if lock.missing:
        say(without_lock(lock))
    lock.sign()
    try:
        yield
    finally:
        lock.release()


def without_lock(lock: OutputLock) -> str:
    """What a user should know where there are no locks."""
    return f"--output {lock.folder}: cannot be locked ({lock.missing}): see to it that no other run writes there"
