"""The global norm of gradients of which every rank has other parts, and clipping by it."""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist

import collectives


def norm_over_ranks(parts: Sequence[torch.Tensor], group: dist.ProcessGroup) -> torch.Tensor:
    """The norm of what all ranks have together, (). parts: this rank's; collective."""
    norms = [part.norm().float() for part in parts]
    squares = torch.stack(norms).square().sum() if norms else torch.zeros(())
    collectives.all_reduce(squares, group=group)
    return squares.sqrt()


def clip_parts(parts: Iterable[torch.Tensor], norm: torch.Tensor, max_norm: float) -> None:
    """Scale gradients of that global norm down to one of at most `max_norm`, as torch's clip_grad_norm_ does."""
    for part in parts:
        part.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
