"""Several tensors in one call, as torch.distributed's coalescing manager and its functional collectives ask for."""

from typing import Any

import torch
import torch.distributed as dist

from collectives.calls.call import Call, numbers
from collectives.calls.functions import Group, Op, all_gather_into_tensor, reduce_scatter_tensor
from collectives.calls.reduction import reduction
from collectives.calls.tensor_checks import assign, check_writable, resolved
from collectives.runtime import Work
from ringsim.schedule import Collective


def all_reduce_coalesced(
    tensors: list[torch.Tensor],
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
    accumulate: torch.dtype | None = None,
    wire: torch.dtype | None = None,
) -> Work | None:
    """Reduce each of `tensors` over all ranks, in place, as one long tensor: so many latencies less.

    tensors: at least one, all of one dtype and on one device. Raises ValueError otherwise.
    """
    dtypes = {each.dtype for each in tensors}
    if len(dtypes) != 1:
        raise ValueError(f"tensors of {sorted(map(str, dtypes))}: must be at least one, all of one dtype")
    for index, each in enumerate(tensors):
        check_writable(f"tensors[{index}]", each)
    if len({each.device for each in tensors}) != 1:
        raise ValueError(f"tensors on {sorted({str(each.device) for each in tensors})}: must all be on the same device")
    states = numbers(tensors[0].dtype, accumulate, wire)
    how = reduction(op, states.state)
    call = Call(Collective.ALL_REDUCE, algorithm, group)
    wholes = [each.detach() for each in tensors]
    lengths = [each.numel() for each in wholes]

    def run() -> None:
        state = call.buffer(sum(lengths), states.state, wholes[0])
        parts = [part.view(each.shape) for part, each in zip(state.split(lengths), wholes, strict=True)]
        for part, each in zip(parts, wholes, strict=True):
            part.copy_(resolved(each))
        call.execute(state, how, states.wire)
        how.finish(state, call.num_ranks)
        for part, each in zip(parts, wholes, strict=True):
            assign(each, part)

    details = (", ", tuple(lengths), " in all, ", how.name, states)
    return call.perform(run, async_op, "all_reduce_coalesced", tensors, tensors[0], details)


def all_gather_into_tensor_coalesced(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], group: Group = None, **how: Any
) -> list[Work]:
    """`all_gather_into_tensor` of each pair, begun in this order."""
    pairs = zip(outputs, inputs, strict=True)
    return _begun([all_gather_into_tensor(*pair, group, async_op=True, **how) for pair in pairs])


def reduce_scatter_tensor_coalesced(
    outputs: list[torch.Tensor],
    inputs: list[torch.Tensor],
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    **how: Any,
) -> list[Work]:
    """`reduce_scatter_tensor` of each pair, begun in this order."""
    pairs = zip(outputs, inputs, strict=True)
    return _begun([reduce_scatter_tensor(*pair, op, group, async_op=True, **how) for pair in pairs])


def _begun(works: list[Work | None]) -> list[Work]:
    return [work for work in works if work is not None]
