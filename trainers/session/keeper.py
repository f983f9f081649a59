"""`Keeper`: the output directory of a run, to which rank 0 writes; what goes wrong there all ranks are to hear."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from trainers.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from trainers.session.checkpoint_folder import CheckpointFolder
from trainers.session.first_rank import first_decides
from trainers.session.step_log import StepLog

LOG = "log.jsonl"
RESULT = "result.json"


class Keeper:
    """Made on all ranks; only rank 0 looks at the directory.

    trouble: the first thing that went wrong, after which nothing more is written; whoever calls must tell all ranks.

    Raises ValueError on every rank if the directory cannot be made, or has no room for a single checkpoint.
    """

    def __init__(self, output: Path, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.output = output
        self.folder = CheckpointFolder(output)
        self.trouble: OSError | ValueError | None = None
        self._group = group
        self._read_back = False
        self._log: StepLog | None = None
        first_decides(group, lambda: _prepare(self.folder, model))

    def begin(self, step: int) -> None:
        """Go on with the log after `step` steps; collective. Raises ValueError on every rank if that cannot be."""
        first_decides(self._group, lambda: self._open(step))

    def _open(self, step: int) -> None:
        self._log = StepLog(self.output / LOG, step)

    def log(self, line: dict[str, Any]) -> None:
        """Add a line to the log."""
        if self._log is not None:
            log = self._log
            self.attempt(lambda: log.write(line))

    def save(self, checkpoint: Checkpoint, keep: int) -> None:
        """Write a checkpoint, and of the older ones delete all but the newest, so that `keep` are left."""
        if self._log is not None:
            log = self._log
            self.attempt(log.sync)
            self.attempt(lambda: self._write(checkpoint, keep))

    def _write(self, checkpoint: Checkpoint, keep: int) -> None:
        path = self.folder.path(checkpoint.step)
        save_checkpoint(path, checkpoint)
        if not self._read_back:
            _read_back(path)
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
        """What went wrong, and from where the run can go on."""
        trouble = self.trouble
        assert trouble is not None
        what = str(trouble)
        if isinstance(trouble, OSError):
            what = f"{trouble.filename or self.output}: cannot be written: {trouble.strerror}"
        kept = self.folder.newest_first()
        return f"{what}; {f'--resume goes on from {kept[0].name}' if kept else 'there is no checkpoint yet'}"

    def close(self) -> None:
        """Nothing is to be logged any more."""
        if self._log is not None:
            self._log.close()


def _read_back(path: Path) -> None:
    """Find out with the first checkpoint, not when it is needed, that none can be read.

    Raises ValueError, and leaves no such file.
    """
    try:
        load_checkpoint(path)
    except ValueError as error:
        path.unlink()
        raise ValueError(
            f"{path}: could not be read back without running code: in the states of model and optimizer must be "
            f"nothing but tensors and Python's own numbers and strings"
        ) from error


def _prepare(folder: CheckpointFolder, model: nn.Module) -> None:
    folder.folder.mkdir(parents=True, exist_ok=True)
    folder.clear_unfinished()
    needed = sum(tensor.nbytes for tensor in model.state_dict().values())
    if (free := shutil.disk_usage(folder.folder).free) < needed:
        raise ValueError(f"--output {folder.folder}: has {free} bytes free, and a checkpoint takes at least {needed}")
