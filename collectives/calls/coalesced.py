"""Several tensors in one call, as torch.distributed's coalescing manager and its functional collectives ask for."""

import torch
import torch.distributed as dist

from collectives.calls.call import CollectiveCall, reduction_dtypes
from collectives.calls.functions import Group, Op, all_gather_into_tensor, reduce_scatter_tensor
from collectives.calls.reduction import reduction_of
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
    _check_alike(tensors)
    dtypes = reduction_dtypes(tensors[0].dtype, accumulate, wire)
    reduction = reduction_of(op, dtypes.state)
    call = CollectiveCall(Collective.ALL_REDUCE, algorithm, group)
    wholes = [tensor.detach() for tensor in tensors]
    lengths = [whole.numel() for whole in wholes]

    def run() -> None:
        state = call.buffer(sum(lengths), dtypes.state, wholes[0])
        parts = [part.view(whole.shape) for part, whole in zip(state.split(lengths), wholes, strict=True)]
        for part, whole in zip(parts, wholes, strict=True):
            part.copy_(resolved(whole))
        call.execute(state, reduction, dtypes.wire)
        reduction.finish(state, call.num_ranks)
        for part, whole in zip(parts, wholes, strict=True):
            assign(whole, part)

    details = ", ", tuple(lengths), " in all, ", reduction.name, dtypes
    fingerprint = call.fingerprint("all_reduce_coalesced", tensors[0], *details)
    return call.perform(run, fingerprint, tensors, async_op=async_op)


def _check_alike(tensors: list[torch.Tensor]) -> None:
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) != 1:
        raise ValueError(f"tensors of {sorted(map(str, dtypes))}: must be at least one, all of one dtype")
    for index, tensor in enumerate(tensors):
        check_writable(f"tensors[{index}]", tensor)
    devices = {str(tensor.device) for tensor in tensors}
    if len(devices) != 1:
        raise ValueError(f"tensors on {sorted(devices)}: must all be on the same device")


def all_gather_into_tensor_coalesced(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], group: Group = None, *, algorithm: str = "ring"
) -> list[Work]:
    """`all_gather_into_tensor` of each pair, begun in this order."""
    pairs = zip(outputs, inputs, strict=True)
    return _begun([all_gather_into_tensor(*pair, group, async_op=True, algorithm=algorithm) for pair in pairs])


def reduce_scatter_tensor_coalesced(
    outputs: list[torch.Tensor],
    inputs: list[torch.Tensor],
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    *,
    algorithm: str = "ring",
    accumulate: torch.dtype | None = None,
    wire: torch.dtype | None = None,
) -> list[Work]:
    """`reduce_scatter_tensor` of each pair, begun in this order."""
    return _begun(
        [
            reduce_scatter_tensor(
                *pair, op, group, async_op=True, algorithm=algorithm, accumulate=accumulate, wire=wire
            )
            for pair in zip(outputs, inputs, strict=True)
        ]
    )


def _begun(works: list[Work | None]) -> list[Work]:
    return [work for work in works if work is not None]
