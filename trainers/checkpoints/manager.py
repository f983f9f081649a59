"""`CheckpointManager`: a run's output directory, which rank 0 writes, and from which a run resumes."""

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from collectives.runtime import gather_objects, naming_failures
from trainers.checkpoints.checkpoint import Checkpoint, checkpoint_of, load_checkpoint, read_checkpoint, save_checkpoint
from trainers.checkpoints.output import FOLDER, LOG, WAIT_S, CheckpointFolder, Mark, OutputLock, StepLog, TensorBoardLog
from trainers.strategies import strategy_info

PIECE_BYTES = 2**26  # sent at once
_Decided = TypeVar("_Decided")


class CheckpointManager:
    """The output directory, constructed on all ranks; only rank 0 uses it, and locks it until `close`.

    trouble: the first error, after which nothing is written; the caller must tell all ranks.

    Raises ValueError on every rank if the directory cannot be made, is in use, or has no room for a checkpoint.
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
            # Every attempt is told to all ranks, so that none waits for rank 0 for longer than one.
            while not first_decides(group, lambda: self._lock.wait(deadline)):
                pass
            first_decides(group, lambda: _prepare(self.folder, model))
        except BaseException:
            self.close()
            raise

    def begin(self, step: int, mark: Mark | None = None, tensorboard: bool = False) -> None:
        """Open the log after `step` steps; collective. Raises ValueError on every rank if it fails."""

        def open_files() -> None:
            self._log = StepLog(self.output / LOG, step, mark, self._say)
            self._board = TensorBoardLog(self.output / FOLDER, step) if tensorboard else None

        first_decides(self._group, open_files)

    @property
    def log_mark(self) -> Mark | None:
        """The mark of the log; None except on rank 0."""
        return self._log.mark if self._log is not None else None

    def log(self, line: dict[str, Any]) -> None:
        for writer in (self._log, self._board):
            if writer is not None:
                self.attempt(partial(writer.write, line))

    def save(self, checkpoint: Checkpoint, keep: int) -> None:
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
        if self.trouble is None:
            try:
                write()
            except (OSError, ValueError) as error:
                self.trouble = error

    def describe_trouble(self) -> str:
        trouble = self.trouble
        assert trouble is not None
        reason = str(trouble)
        if isinstance(trouble, OSError):
            reason = f"{trouble.filename or self.output}: cannot be written: {trouble.strerror}"
        kept = self.folder.newest_first()
        return f"{reason}; {f'`resume` continues from {kept[0].name}' if kept else 'there is no checkpoint yet'}"

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
        if self._board is not None:
            self.attempt(self._board.close)
        self._lock.release()


def _prepare(folder: CheckpointFolder, model: nn.Module) -> None:
    folder.clear_unfinished()
    needed = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    if (free := shutil.disk_usage(folder.folder).free) < needed:
        raise ValueError(f"`output` {folder.folder}: has {free} bytes free, and a checkpoint takes at least {needed}")


def first_decides(group: dist.ProcessGroup, decide: Callable[[], _Decided]) -> _Decided:
    """Return rank 0's result of `decide` on every rank; collective.

    Its ValueError or OSError becomes a ValueError on every rank.
    """
    decision: list[Any] = [None, ""]
    if group.rank() == 0:
        try:
            decision[0] = decide()
        except OSError as error:
            decision[1] = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        except ValueError as error:
            decision[1] = str(error)
    with naming_failures(f"rank {group.rank()}: receiving rank 0's decision failed"):
        dist.broadcast_object_list(decision, group=group, group_src=0)
    if decision[1]:
        raise ValueError(decision[1])
    decided: _Decided = decision[0]
    return decided


def first_fault(fault: str, group: dist.ProcessGroup) -> str:
    """Return on every rank the first fault of a rank, or ""; collective.

    It names the rank unless all have the same.
    """
    faults = gather_objects(fault, group, "receiving the errors of other ranks failed")
    if len(set(faults)) == 1:
        return fault
    return next(f"rank {rank}: {said}" for rank, said in enumerate(faults) if said)


def usable_checkpoints(
    folder: CheckpointFolder, wanted: dict[str, Any], group: dist.ProcessGroup, warn: Callable[[str], None]
) -> Iterator[tuple[Path, Checkpoint]]:
    """Yield the intact checkpoints on every rank, the newest first; collective.

    Only rank 0 reads the files. wanted: see `StepConfig.identity`. warn: gets a message for each bad file. Raises
    ValueError on every rank if all files are bad, if only another rank sees any, and for a checkpoint of other
    settings.
    """
    paths = first_decides(group, folder.newest_first)
    for path in paths:
        fault = ""
        try:
            checkpoint = _checked(checkpoint_of(_content_of_rank_0(path, group), path), path)
        except ValueError as error:  # perhaps on one rank, for lack of memory
            fault = str(error)
        if fault := first_fault(fault, group):
            warn(fault)
            continue
        refuse_other_run(checkpoint.config, wanted, path)
        yield path, checkpoint
    if paths:
        raise ValueError(f"`resume`: none of the checkpoints in {folder.folder} can be read; give another `output`")
    _refuse_other_disks(folder, group)


def _content_of_rank_0(path: Path, group: dist.ProcessGroup) -> bytearray:
    content = bytearray()

    def size_bytes() -> int:
        content.extend(read_checkpoint(path))
        return len(content)

    content.extend(bytes(first_decides(group, size_bytes) - len(content)))
    if content:
        with naming_failures(f"rank {group.rank()}: receiving a checkpoint from rank 0 failed"):
            for piece in torch.frombuffer(content, dtype=torch.uint8).split(PIECE_BYTES):
                dist.broadcast(piece, group=group, group_src=0)
    return content


def _refuse_other_disks(folder: CheckpointFolder, group: dist.ProcessGroup) -> None:
    """Raise ValueError on every rank if a rank, perhaps on another node, sees checkpoints that rank 0 does not see."""
    names: list[str] = []
    with suppress(OSError):  # a rank need not be allowed to look there
        names += [path.name for path in folder.newest_first()[:1]]
    seen = gather_objects((socket.gethostname(), names), group, "receiving the list of checkpoints failed")
    for rank, (host, newest) in enumerate(seen):
        if newest:
            raise ValueError(
                f"`resume`: rank {rank} on {host} sees {newest[0]} in {folder.folder}, rank 0 on {seen[0][0]} sees no "
                f"checkpoint there; give an `output` on a file system that all nodes share"
            )


def _checked(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    if checkpoint.step != (by_name := CheckpointFolder.step_of(path)):
        raise ValueError(f"checkpoint {path}: step: is {checkpoint.step}, must be {by_name} by the name of the file")
    if not all(isinstance(checkpoint.config.get(name), dict) for name in ("task", "training")):
        raise ValueError(f"checkpoint {path}: is not from a training session")
    return checkpoint


def refuse_other_run(then: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Raise ValueError if a run with identity `now` cannot resume from one with `then`."""
    before, after = _flat(then), _flat(now)
    strategies = before.pop("strategy", "none"), after.pop("strategy")
    counts = before.pop("num_ranks", 0), after.pop("num_ranks")
    differing = [
        f"{name} {before.get(name)}, now {after.get(name)}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
    other_strategy, infos = strategies[0] != strategies[1], [strategy_info(name) for name in strategies]
    reason = ""
    if differing:
        reason = f"is of a run with {'; '.join(differing)}"
    elif "none" in strategies and max(counts) > 1:
        reason = "with the strategy none each rank has a different model, and only that of rank 0 was saved"
    elif any(info.keeps_state for info in infos) and (other_strategy or counts[0] != counts[1]):
        run_before, run_now = (f"{name} on {count} ranks" for name, count in zip(strategies, counts, strict=True))
        reason = f"is of the strategy {run_before}, now {run_now}, and each rank has its own state"
    elif other_strategy and any(info.saves_vectors for info in infos):
        reason = f"is of the strategy {strategies[0]}, whose optimizer state does not fit {strategies[1]}"
    if reason:
        raise ValueError(f"checkpoint {path}: {reason}: resume with the original settings, or give another `output`")


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    training: dict[str, Any] = config["training"]
    task: dict[str, Any] = config["task"]
    named = {name if training.get(name, value) == value else f"task's {name}": value for name, value in task.items()}
    return training | named
