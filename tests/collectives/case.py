"""`Case`: one call of a collective, carried out by ours, by torch's own, and by replay in one process."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

import collectives
from collectives.calls.reduction import reduction_of
from ringsim import Collective
from ringsim.registry import build
from ringsim.schedule import replay

COLLECTIVE_OF = {
    "all_reduce": Collective.ALL_REDUCE,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "reduce_scatter_tensor": Collective.REDUCE_SCATTER,
    "all_gather": Collective.ALL_GATHER,
    "all_gather_into_tensor": Collective.ALL_GATHER,
    "broadcast": Collective.BROADCAST,
    "reduce": Collective.REDUCE,
}
REDUCING = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)
ALIKE = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST)
UNTOUCHED = 77


@dataclass(frozen=True)
class Case:
    """A call on any number of ranks.

    length: elements of the tensor that is reduced, passed on or gathered; of one rank's share where there are shares.
    layout: how the tensors lie in memory.
    """

    name: str
    algorithm: str
    op: str
    dtype: torch.dtype
    length: int
    layout: str
    root: int
    accumulate: torch.dtype | None
    wire: torch.dtype | None
    asynchronous: bool
    seed: int

    @property
    def collective(self) -> Collective:
        """What it is by contract."""
        return COLLECTIVE_OF[self.name]

    def parts(self, rank: int, num_ranks: int) -> list[torch.Tensor]:
        """What `rank` contributes: one tensor, or a list with one for each rank."""
        count = num_ranks if self.collective is Collective.REDUCE_SCATTER else 1
        generator = torch.Generator().manual_seed(self.seed * 1000 + rank)
        parts = [self._random(generator) for _ in range(count)]
        return [torch.cat(parts)] if self.name == "reduce_scatter_tensor" else parts

    def _random(self, generator: torch.Generator) -> torch.Tensor:
        if self.dtype.is_complex:
            return torch.randn(self.length, generator=generator, dtype=self.dtype)
        if self.dtype.is_floating_point:
            values = torch.randn(self.length, generator=generator, dtype=torch.float64) * 3
            # Some zeros of either sign: MIN and MAX must choose between them alike on all ranks.
            return torch.where(values.abs() < 1, values.sign() * 0.0, values).to(self.dtype)
        if self.dtype == torch.bool:
            return torch.randint(0, 2, (self.length,), generator=generator).bool()
        return torch.randint(-(2**40), 2**40, (self.length,), generator=generator).to(self.dtype)


def laid_out(values: torch.Tensor, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """`values` in that layout, and the elements of the same memory that are none of them."""
    length = len(values)
    if layout == "strided":
        memory = torch.full((2 * length + 1,), UNTOUCHED).to(values.dtype)
        tensor, others = memory[1::2], memory[::2]
    elif layout == "offset":
        memory = torch.full((length + 3,), UNTOUCHED).to(values.dtype)
        tensor, others = memory[1 : length + 1], memory[length + 1 :]
    elif layout == "transposed":
        columns = next(c for c in (3, 2, 1) if length % c == 0)
        tensor, others = torch.empty(columns, length // columns, dtype=values.dtype).t(), values[:0]
    else:
        tensor, others = torch.empty_like(values), values[:0]
    tensor = tensor.conj() if layout == "conjugated" else tensor
    tensor.copy_(values.view(tensor.shape))
    return tensor, others


def bits(tensor: torch.Tensor) -> bytes:
    """The elements as they are, in order, so that -0 is not 0."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes()


def ours(case: Case, group: dist.ProcessGroup) -> bytes:
    """The rank's result; AssertionError if memory was changed that is none of its business."""
    num_ranks, rank = group.size(), group.rank()
    arguments = [laid_out(each, case.layout) for each in case.parts(rank, num_ranks)]
    tensors = [tensor for tensor, _ in arguments]
    results = [laid_out(each, case.layout) for each in _outputs(case, num_ranks)]
    before = [bits(others) for _, others in arguments + results]
    inputs = [bits(tensor) for tensor in tensors]
    returned = _call(collectives, case, group, tensors, [tensor for tensor, _ in results])
    if results or (case.collective is Collective.REDUCE and rank != case.root):
        assert [bits(tensor) for tensor in tensors] == inputs, "an input was changed"
    assert [bits(others) for _, others in arguments + results] == before, "memory beside the tensors was changed"
    return b"".join(bits(tensor) for tensor in returned)


def theirs(case: Case, group: dist.ProcessGroup) -> bytes:
    """What torch's own gives this rank, on contiguous copies."""
    tensors = case.parts(group.rank(), group.size())
    returned = _call(dist, case, group, tensors, _outputs(case, group.size()))
    if case.dtype == torch.bool:  # it adds them as bytes: two are 2, which is no bool
        returned = [each.view(torch.uint8) != 0 for each in returned]
    return b"".join(bits(tensor) for tensor in returned)


def _outputs(case: Case, num_ranks: int) -> list[torch.Tensor]:
    """Tensors for the result, where it does not take the place of the input."""
    empty = torch.zeros(case.length).to(case.dtype)
    if case.collective is Collective.REDUCE_SCATTER:
        return [empty]
    if case.name == "all_gather":
        return [empty.clone() for _ in range(num_ranks)]
    return [torch.zeros(case.length * num_ranks).to(case.dtype)] if case.name == "all_gather_into_tensor" else []


def _call(
    library: object, case: Case, group: dist.ProcessGroup, tensors: list[torch.Tensor], results: list[torch.Tensor]
) -> list[torch.Tensor]:
    options: dict[str, object] = {"group": group}
    if library is collectives:
        options |= {"algorithm": case.algorithm, "async_op": case.asynchronous}
        if case.collective in REDUCING:
            options |= {"accumulate": case.accumulate, "wire": case.wire}
    if case.collective in REDUCING:
        options["op"] = getattr(dist.ReduceOp, case.op)
    function = getattr(library, case.name)
    if case.name == "all_reduce":
        work = function(tensors[0], **options)
    elif case.name == "broadcast":
        work = function(tensors[0], group_src=case.root, **options)
    elif case.name == "reduce":
        work = function(tensors[0], group_dst=case.root, **options)
    elif case.name == "reduce_scatter":
        work = function(results[0], tensors, **options)
    elif case.name == "reduce_scatter_tensor":
        work = function(results[0], tensors[0], **options)
    else:
        work = function(results if case.name == "all_gather" else results[0], tensors[0], **options)
    if work is not None:
        work.wait()
    return results or tensors


def expected(case: Case, num_ranks: int) -> list[bytes]:
    """Every rank's result by replaying the schedule; REDUCE: its input, for all but the root."""
    inputs = [torch.cat(case.parts(rank, num_ranks)) for rank in range(num_ranks)]
    state = case.accumulate or case.dtype
    buffers = [_start(case, rank, num_ranks, each).to(state, copy=True) for rank, each in enumerate(inputs)]
    _replay(case, buffers, case.wire or case.dtype)
    finished = []
    for rank, buffer in enumerate(buffers):
        share = buffer.view(num_ranks, -1)[rank] if case.collective is Collective.REDUCE_SCATTER else buffer
        whole = share / num_ranks if case.op == "AVG" and case.collective in REDUCING else share
        unchanged = case.collective is Collective.REDUCE and rank != case.root
        finished.append(bits(inputs[rank] if unchanged else whole.to(case.dtype)))
    return finished


def _start(case: Case, rank: int, num_ranks: int, own: torch.Tensor) -> torch.Tensor:
    if case.collective is not Collective.ALL_GATHER:
        return own
    whole = torch.zeros(num_ranks, case.length).to(case.dtype)
    whole[rank] = own
    return whole.view(-1)


def _replay(case: Case, buffers: list[torch.Tensor], wire: torch.dtype) -> None:
    """Each message is rounded to `wire`, and what all ranks must hold alike is, at the end."""
    num_ranks, state = len(buffers), buffers[0].dtype
    schedule = build(case.collective, case.algorithm, num_ranks, case.length * case.dtype.itemsize)
    ranks = [(index + case.root) % num_ranks for index in range(num_ranks)]
    combine = reduction_of(getattr(dist.ReduceOp, case.op), case.dtype).combine
    rounded = None if wire == state else lambda chunk: chunk.to(wire)
    replay(schedule, [buffers[rank] for rank in ranks], sent=rounded, combine=combine)
    if wire != state and case.collective in ALIKE:
        for buffer in buffers:
            buffer.copy_(buffer.to(wire))
