"""`CheckpointManager`: the output directory of a run, to which rank 0 writes; all ranks hear what goes wrong there."""

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from torch import nn

from collectives.runtime import gather_objects, naming_failures
from trainers.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from trainers.checkpoints.output import WAIT_S, CheckpointFolder, OutputLock
from trainers.checkpoints.step_log import FOLDER, LOG, Mark, StepLog, TensorBoardLog

RESULT = "result.json"

_Decided = TypeVar("_Decided")


class CheckpointManager:
    """Made on all ranks; only rank 0 looks at the directory, which it locks for this run until `close`.

    say: told, on rank 0, what a user should know.
    trouble: the first thing that went wrong, after which nothing more is written; whoever calls must tell all ranks.

    Raises ValueError on every rank if the directory cannot be made, is another run's, or has no room for a single
    checkpoint.
    """

    def __init__(self, output: Path, model: nn.Module, group: dist.ProcessGroup, say: Callable[[str], None]) -> None:
        self.output = output
        self.folder = CheckpointFolder(output)
        self.trouble: OSError | ValueError | None = None
        self._group = group
        self._read_back = False
        self._log: StepLog | None = None
        self._board: TensorBoardLog | None = None
        self._say = say
        self._lock = OutputLock(output, say)
        try:
            deadline = time.monotonic() + WAIT_S
            # All ranks hear of every try, so that none waits for rank 0 longer than for one of them.
            while not first_decides(group, lambda: self._lock.wait(deadline)):
                pass
            first_decides(group, lambda: _prepare(self.folder, model))
        except BaseException:
            self.close()
            raise

    def begin(self, step: int, mark: Mark | None = None, tensorboard: bool = False) -> None:
        """Go on with the log after `step` steps; collective. Raises ValueError on every rank if that cannot be.

        mark: of the lines that were there then, if it is known. tensorboard: whether to write for TensorBoard as well.
        """

        def open_files() -> None:
            self._log = StepLog(self.output / LOG, step, mark, self._say)
            self._board = TensorBoardLog(self.output / FOLDER, step) if tensorboard else None

        first_decides(self._group, open_files)

    @property
    def log_mark(self) -> Mark | None:
        """The mark of the lines that there are now; None on other ranks than 0."""
        return self._log.mark if self._log is not None else None

    def log(self, line: dict[str, Any]) -> None:
        """Add a line to the log."""
        for writer in (self._log, self._board):
            if writer is not None:
                self.attempt(partial(writer.write, line))

    def save(self, checkpoint: Checkpoint, keep: int) -> None:
        """Write a checkpoint, and of the older ones delete all but the newest, so that `keep` are left."""
        if self._log is not None:
            self.attempt(self._log.sync)
            self.attempt(partial(self._write, checkpoint, keep))

    def _write(self, checkpoint: Checkpoint, keep: int) -> None:
        path = self.folder.path(checkpoint.step)
        save_checkpoint(path, checkpoint)
        if not self._read_back:  # found out with the first checkpoint, not when it is needed
            try:
                load_checkpoint(path)
            except ValueError as error:
                path.unlink()
                raise ValueError(
                    f"{path}: could not be read back without running code: the states of model and optimizer must "
                    f"contain only tensors and Python's numbers and strings"
                ) from error
            self._read_back = True
        self.folder.prune(checkpoint.step, keep)

    def attempt(self, write: Callable[[], object]) -> None:
        """Do that, unless something has gone wrong before."""
        if self.trouble is None:
            try:
                write()
            except (OSError, ValueError) as error:
                self.trouble = error

    def describe_trouble(self) -> str:
        """Say what went wrong, and from where the run can go on."""
        trouble = self.trouble
        assert trouble is not None
        reason = str(trouble)
        if isinstance(trouble, OSError):
            reason = f"{trouble.filename or self.output}: cannot be written: {trouble.strerror}"
        kept = self.folder.newest_first()
        return f"{reason}; {f'--resume continues from {kept[0].name}' if kept else 'there is no checkpoint yet'}"

    def close(self) -> None:
        """Write no more, so that another run may have the directory."""
        if self._log is not None:
            self._log.close()
        if self._board is not None:
            self.attempt(self._board.close)
        self._lock.release()


def _prepare(folder: CheckpointFolder, model: nn.Module) -> None:
    folder.clear_unfinished()
    needed = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    if (free := shutil.disk_usage(folder.folder).free) < needed:
        raise ValueError(f"--output {folder.folder}: has {free} bytes free, and a checkpoint takes at least {needed}")


def first_decides(group: dist.ProcessGroup, decide: Callable[[], _Decided]) -> _Decided:
    """Return on every rank what `decide` returns on rank 0; collective.

    If it raises ValueError or OSError there, every rank raises ValueError with its words.
    """
    told: list[Any] = [None, ""]
    if group.rank() == 0:
        try:
            told[0] = decide()
        except OSError as error:
            told[1] = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        except ValueError as error:
            told[1] = str(error)
    with naming_failures(f"rank {group.rank()}: receiving rank 0's decision failed"):
        dist.broadcast_object_list(told, group=group, group_src=0)
    if told[1]:
        raise ValueError(told[1])
    decided: _Decided = told[0]
    return decided


def first_fault(fault: str, group: dist.ProcessGroup) -> str:
    """Return, on every rank, what went wrong on the first one that says so; "" if nothing did; collective.

    fault: what went wrong on this rank, or "". The rank is named unless all ranks say the same.
    """
    faults = gather_objects(fault, group, "receiving the errors of other ranks failed")
    if len(set(faults)) == 1:
        return fault
    return next(f"rank {rank}: {said}" for rank, said in enumerate(faults) if said)
