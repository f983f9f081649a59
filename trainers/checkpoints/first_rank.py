"""What rank 0 decides or reads for all ranks: only it need have the output directory."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from collectives.runtime import naming_failures

PIECE_BYTES = 2**26  # sent at once

_Decided = TypeVar("_Decided")


def first_decides(group: dist.ProcessGroup, decide: Callable[[], _Decided]) -> _Decided:
    """What `decide` returns on rank 0, on every rank; collective.

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
    with naming_failures(f"rank {group.rank()}: hearing what rank 0 decides failed"):
        dist.broadcast_object_list(told, group=group, group_src=0)
    if told[1]:
        raise ValueError(told[1])
    decided: _Decided = told[0]
    return decided


def send_to_all(content: bytearray, group: dist.ProcessGroup) -> None:
    """Bring rank 0's bytes into the `content` of every rank, which is as long everywhere; collective."""
    if not content:
        return
    whole = torch.frombuffer(content, dtype=torch.uint8)
    with naming_failures(f"rank {group.rank()}: receiving a checkpoint from rank 0 failed"):
        for piece in whole.split(PIECE_BYTES):
            dist.broadcast(piece, group=group, group_src=0)
