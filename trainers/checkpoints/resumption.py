"""Which checkpoint a run goes on from, and whether it may."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from collectives.runtime import naming_failures
from trainers.checkpoints.checkpoint import Checkpoint, checkpoint_of, read_checkpoint
from trainers.checkpoints.manager import first_decides, first_fault
from trainers.checkpoints.output import CheckpointFolder
from trainers.strategy_names import strategy_info

PIECE_BYTES = 2**26  # sent at once


class OtherRunError(ValueError):
    """A checkpoint is good, but of a run that this one cannot go on with; an older one would be as well."""


class _Whole(NamedTuple):
    """A checkpoint with the bytes of its file."""

    path: Path
    content: bytearray
    checkpoint: Checkpoint


def usable_checkpoints(
    folder: CheckpointFolder,
    wanted: dict[str, Any],
    group: dist.ProcessGroup,
    warn: Callable[[str], None],
) -> Iterator[tuple[Path, Checkpoint]]:
    """Yield, on every rank, the checkpoints that are whole, the newest first; each is read when it is asked for.

    Collective: all ranks must take as many. Only rank 0 looks for them, and sends the others what is in the file: they
    need not see its directory. Nothing is yielded if there is no checkpoint at all.
    wanted: the identity of this run, as `StepConfig.identity` gives it. warn: told on rank 0 of each file that is no
    good.

    Raises ValueError on every rank when there are files, but no more that are good, if only another rank than 0 sees
    any, or if the run is one that cannot go on from there.
    """
    on_rank_0 = _whole_checkpoints(folder, wanted, warn)
    whole: _Whole | None = None

    def choose() -> tuple[str, int] | None:
        nonlocal whole
        whole = next(on_rank_0, None)
        return None if whole is None else (str(whole.path), len(whole.content))

    while (chosen := first_decides(group, choose)) is not None:
        path, size_bytes = chosen
        content = whole.content if whole else bytearray(size_bytes)
        _send_to_all(content, group)
        checkpoint, fault = (whole.checkpoint, "") if whole else _received(content, path)
        if fault := first_fault(fault, group):
            warn(fault)
        else:
            assert checkpoint is not None
            yield Path(path), checkpoint
    _refuse_other_disks(folder, group)


def _received(content: bytearray, path: str) -> tuple[Checkpoint | None, str]:
    """Return the checkpoint that rank 0 has sent, or why this rank cannot read it, as without the memory for it."""
    try:
        return checkpoint_of(content, path), ""
    except ValueError as error:
        return None, str(error)


def _refuse_other_disks(folder: CheckpointFolder, group: dist.ProcessGroup) -> None:
    """Raise ValueError on every rank if one sees checkpoints that rank 0 does not; collective.

    A job that is started again may have its rank 0 on another node, which has its own disk.
    """
    names: list[str] = []
    with suppress(OSError):  # a rank need not be allowed to look there
        names += [path.name for path in folder.newest_first()[:1]]
    seen: list[Any] = [None] * group.size()
    with naming_failures(f"rank {group.rank()}: receiving the list of checkpoints from other ranks failed"):
        dist.all_gather_object(seen, (socket.gethostname(), names), group)
    for rank, (host, newest) in enumerate(seen):
        if newest:
            raise ValueError(
                f"--resume: rank {rank} on {host} sees {newest[0]} in {folder.folder}, rank 0 on {seen[0][0]} sees no "
                f"checkpoint there; give an --output on a file system that all nodes share"
            )


def _send_to_all(content: bytearray, group: dist.ProcessGroup) -> None:
    """Bring rank 0's bytes into the `content` of every rank, which is as long everywhere; collective."""
    if not content:
        return
    whole = torch.frombuffer(content, dtype=torch.uint8)
    with naming_failures(f"rank {group.rank()}: receiving a checkpoint from rank 0 failed"):
        for piece in whole.split(PIECE_BYTES):
            dist.broadcast(piece, group=group, group_src=0)


def _whole_checkpoints(
    folder: CheckpointFolder, wanted: dict[str, Any], warn: Callable[[str], None]
) -> Iterator[_Whole]:
    paths = folder.newest_first()
    for path in paths:
        try:
            content = bytearray(read_checkpoint(path))
            checkpoint = _checked(checkpoint_of(content, path), path, wanted)
        except OtherRunError:
            raise
        except ValueError as error:
            warn(str(error))
        else:
            yield _Whole(path, content, checkpoint)
    if paths:
        raise ValueError(f"--resume: none of the checkpoints in {folder.folder} can be read; give another --output")


def _checked(checkpoint: Checkpoint, path: Path, wanted: dict[str, Any]) -> Checkpoint:
    """Return it, if this run can go on from it. Raises ValueError, which says what is wrong, or OtherRunError."""
    if checkpoint.step != (by_name := CheckpointFolder.step_of(path)):
        raise ValueError(f"checkpoint {path}: step: is {checkpoint.step}, must be {by_name} by the name of the file")
    if not all(isinstance(checkpoint.config.get(name), dict) for name in ("task", "training")):
        raise ValueError(f"checkpoint {path}: is not from a training session")
    refuse_other_run(checkpoint.config, wanted, path)
    return checkpoint


def refuse_other_run(then: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Raise OtherRunError if what differs between the identities of two runs is more than a checkpoint can bridge."""
    before, after = _flat(then), _flat(now)
    strategies = before.pop("strategy", "none"), after.pop("strategy")
    counts = before.pop("num_ranks", 0), after.pop("num_ranks")
    differing = [
        f"{name} {before.get(name)}, now {after.get(name)}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
    if differing:
        raise OtherRunError(
            f"checkpoint {path}: is of a run with {'; '.join(differing)}: "
            f"resume with the original settings, or give another --output"
        )
    if "none" in strategies and max(counts) > 1:
        raise OtherRunError(
            f"checkpoint {path}: with the strategy none each rank has a different model, and only that of rank 0 was "
            f"saved: there is nothing to resume; give another --output"
        )
    if strategies[0] != strategies[1] and any(strategy_info(name).saves_vectors for name in strategies):
        raise OtherRunError(
            f"checkpoint {path}: is of the strategy {strategies[0]}, whose optimizer state does not fit "
            f"{strategies[1]}; resume with {strategies[0]}, or give another --output"
        )
    _refuse_other_ranks(strategies, counts, path)


def _refuse_other_ranks(strategies: tuple[str, str], counts: tuple[int, int], path: Path) -> None:
    """Refuse another strategy or number of ranks if each rank has kept its own state."""
    keeping = [name for name in strategies if strategy_info(name).keeps_state]
    if keeping and (strategies[0] != strategies[1] or counts[0] != counts[1]):
        before, now = (f"{name} on {count} ranks" for name, count in zip(strategies, counts, strict=True))
        raise OtherRunError(
            f"checkpoint {path}: is of the strategy {before}, now {now}, and with {keeping[0]} each rank has its "
            f"own state; resume with the original settings, or give another --output"
        )


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """Merge the names of task and training into one dict."""
    training: dict[str, Any] = config["training"]
    task: dict[str, Any] = config["task"]
    named = {name if training.get(name, value) == value else f"task's {name}": value for name, value in task.items()}
    return training | named
