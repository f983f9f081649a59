"""Which checkpoint a run goes on from, and whether it may."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from collectives.runtime import gather_objects, naming_failures
from trainers.checkpoints.checkpoint import Checkpoint, checkpoint_of, read_checkpoint
from trainers.checkpoints.manager import first_decides, first_fault
from trainers.checkpoints.output import CheckpointFolder
from trainers.strategy_names import strategy_info

PIECE_BYTES = 2**26  # sent at once


def usable_checkpoints(
    folder: CheckpointFolder, wanted: dict[str, Any], group: dist.ProcessGroup, warn: Callable[[str], None]
) -> Iterator[tuple[Path, Checkpoint]]:
    """Yield, on every rank, the checkpoints that are whole, the newest first; each is read when it is asked for.

    Collective: all ranks must take as many. Only rank 0 looks for them, and sends the others what is in the file: they
    need not see its directory. Nothing is yielded if there is no checkpoint at all.
    wanted: the identity of this run, as `StepConfig.identity` gives it. warn: told of each file that is no good.

    Raises ValueError on every rank when there are files, but no more that are good, if only another rank than 0 sees
    any, or if the run is one that cannot go on from there.
    """
    paths = first_decides(group, folder.newest_first)
    for path in paths:
        fault = ""
        try:
            checkpoint = _checked(checkpoint_of(_content_of_rank_0(path, group), path), path)
        except ValueError as error:  # a rank may lack the memory for it
            fault = str(error)
        if fault := first_fault(fault, group):
            warn(fault)
            continue
        refuse_other_run(checkpoint.config, wanted, path)
        yield path, checkpoint
    if paths:
        raise ValueError(f"--resume: none of the checkpoints in {folder.folder} can be read; give another --output")
    _refuse_other_disks(folder, group)


def _content_of_rank_0(path: Path, group: dist.ProcessGroup) -> bytearray:
    """Return what rank 0 reads in its file; collective. Raises ValueError on every rank if it cannot be read."""
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
    """Raise ValueError on every rank if one sees checkpoints that rank 0 does not; collective.

    A job that is started again may have its rank 0 on another node, which has its own disk.
    """
    names: list[str] = []
    with suppress(OSError):  # a rank need not be allowed to look there
        names += [path.name for path in folder.newest_first()[:1]]
    seen = gather_objects((socket.gethostname(), names), group, "receiving the list of checkpoints failed")
    for rank, (host, newest) in enumerate(seen):
        if newest:
            raise ValueError(
                f"--resume: rank {rank} on {host} sees {newest[0]} in {folder.folder}, rank 0 on {seen[0][0]} sees no "
                f"checkpoint there; give an --output on a file system that all nodes share"
            )


def _checked(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    """Return it, if it is one of a training session. Raises ValueError, which says what is wrong."""
    if checkpoint.step != (by_name := CheckpointFolder.step_of(path)):
        raise ValueError(f"checkpoint {path}: step: is {checkpoint.step}, must be {by_name} by the name of the file")
    if not all(isinstance(checkpoint.config.get(name), dict) for name in ("task", "training")):
        raise ValueError(f"checkpoint {path}: is not from a training session")
    return checkpoint


def refuse_other_run(then: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Raise ValueError if what differs between the identities of two runs is more than a checkpoint can bridge."""
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
        raise ValueError(f"checkpoint {path}: {reason}: resume with the original settings, or give another --output")


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """Merge the names of task and training into one dict."""
    training: dict[str, Any] = config["training"]
    task: dict[str, Any] = config["task"]
    named = {name if training.get(name, value) == value else f"task's {name}": value for name, value in task.items()}
    return training | named
