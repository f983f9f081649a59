"""A call that is made, and the bits that every rank must hold after it, by replaying its schedule in one process."""

import torch
import torch.distributed as dist

from collectives.calls.reduction import reduction_of
from ringsim import Collective
from ringsim.registry import build
from ringsim.schedule import replay
from tests.fuzz.calls import REDUCING, Call, Issued, prepare
from tests.fuzz.draws import collective_of
from tests.fuzz.reference import contribution
from tests.fuzz.views import bits

NAMES = (
    "all_reduce", "reduce_scatter", "reduce_scatter_tensor", "all_gather", "all_gather_into_tensor", "broadcast",
    "reduce",
)  # fmt: skip
ALIKE = ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast")  # all ranks hold the same afterwards


def made(call: Call, group: dist.ProcessGroup, seed: int) -> Issued:
    """Make the call, and wait for it."""
    issued = prepare(call, group, seed)
    issued.make_and_wait()
    return issued


def replayed(call: Call, seed: int, num_ranks: int) -> list[bytes]:
    """Return every rank's result of a call with one tensor for its result; reduce: its input, for all but the root."""
    inputs = [_flat(contribution(call, seed, rank, num_ranks)) for rank in range(num_ranks)]
    dtype, root = call.torch_dtype, call.root % num_ranks
    buffers = [_start(call, rank, num_ranks, own).clone() for rank, own in enumerate(inputs)]
    wire = getattr(torch, call.wire) if call.wire else dtype
    is_mean, is_narrow = call.op == "AVG" and call.name in REDUCING, torch.float16 in (dtype, wire)
    if is_mean and is_narrow:
        buffers = [_divided(buffer, num_ranks) for buffer in buffers]
    _replay(call, buffers, wire)
    finished = []
    for rank, buffer in enumerate(buffers):
        share = buffer.view(num_ranks, -1)[rank] if call.name.startswith("reduce_scatter") else buffer
        whole = _divided(share, num_ranks) if is_mean and not is_narrow else share
        unchanged = call.name == "reduce" and rank != root
        finished.append(bits(inputs[rank] if unchanged else whole))
    return finished


def _divided(total: torch.Tensor, num_ranks: int) -> torch.Tensor:
    if total.is_complex():
        return torch.view_as_complex(torch.view_as_real(total) / num_ranks)
    return total / num_ranks


def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _start(call: Call, rank: int, num_ranks: int, own: torch.Tensor) -> torch.Tensor:
    if not call.name.startswith("all_gather"):
        return own
    whole = torch.zeros(num_ranks, len(own)).to(own.dtype)
    whole[rank] = own
    return whole.view(-1)


def _replay(call: Call, buffers: list[torch.Tensor], wire: torch.dtype) -> None:
    """Each message is rounded to `wire`, and what all ranks must hold alike is, at the end."""
    num_ranks, state = len(buffers), buffers[0].dtype
    size_bytes = buffers[0].numel() * wire.itemsize  # as they travel: an algorithm may depend on it
    schedule = build(Collective(collective_of(call.name)), call.algorithm, num_ranks, size_bytes)
    ranks = [(index + call.root) % num_ranks for index in range(num_ranks)]
    combine = reduction_of(getattr(dist.ReduceOp, call.op), call.torch_dtype)[0].combine
    rounded = None if wire == state else lambda chunk: chunk.to(wire)
    replay(schedule, [buffers[rank] for rank in ranks], sent=rounded, combine=combine)
    if wire != state and call.name in ALIKE:
        for buffer in buffers:
            buffer.copy_(buffer.to(wire))
