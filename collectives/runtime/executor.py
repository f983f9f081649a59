"""`execute`: run a `Schedule` on real tensors, by sends and receives of torch.distributed or through shared memory."""

import weakref
from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from msgspec import Struct
from msgspec.structs import replace

from collectives.runtime.backends import CPU, POSTED, STAGED, Transports, reused_buffer, time_limit_of
from collectives.runtime.chunk_transports import ChunkTransport, GlooTransport, NcclTransport, SharedMemoryTransport
from collectives.runtime.chunks import (
    ChunkLayout,
    ChunkLayouts,
    ChunkMemory,
    ChunkPlaces,
    LayoutKey,
    Reduce,
    Rounding,
    rounding_of,
)
from collectives.runtime.errors import naming_failures
from collectives.runtime.group_state import lazily, resolve, state_of
from collectives.runtime.instructions import RankPart, SharedPlan, shared_plan
from collectives.runtime.messages import UNSTAMPED, CallStamp, PrepostedReceives, Tag
from collectives.runtime.schedule_run import Event, Hook, ScheduleRun, logging_to, naming_spans, profiling
from collectives.runtime.sharing import Sharing, transport_in_use
from ringsim.schedule import Collective, Schedule, held_at_end, rank_program


def execute(
    schedule: Schedule,
    tensor: torch.Tensor,
    *,
    reduce: Reduce = torch.Tensor.add_,
    source: torch.Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    log: list[Event] | None = None,
) -> None:
    """Run `schedule` once on every rank of `group`, each with its own `tensor`, in place.

    tensor, reduce, source, log: as in `Executor.run`, which serves repeated runs.

    Raises ValueError if there is no process group, and the errors of `Executor` and its `run`.

        >>> tensor = torch.tensor([1.0, 2.0]) + rank
        >>> collectives.execute(ringsim.ring_all_reduce(2), tensor)
        >>> tensor
        tensor([3., 5.])
    """
    Executor(schedule, resolve(group)).run(tensor, reduce=reduce, source=source, log=log)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether `tensor` can be sent as it is: contiguous, and neither negated nor conjugated by a view."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


class RunOperands(Struct):
    """The tensors of one run of a schedule on one rank, and their reduction.

    tensor, wire, reduce, source, splits, log: as in `Executor.run`. num_elements: of all chunks together.
    share: the destination of this rank's equal share of the result, in its own memory; None: in `tensor`. Only with
    `source`.
    stamp: of the call, the same on every rank.
    """

    tensor: torch.Tensor
    num_elements: int
    wire: torch.dtype
    reduce: Reduce = torch.Tensor.add_
    source: torch.Tensor | None = None
    share: torch.Tensor | None = None
    splits: tuple[int, ...] | None = None
    log: list[Event] | None = None
    stamp: CallStamp = UNSTAMPED


class Executor:
    """One schedule on one process group, to be run any number of times; its buffers are kept between runs.

    Memory: a few times the longest chunk, unless eager (the number of chunks to add in one step, on Gloo at least
    three); for a CUDA tensor on Gloo also its length in pinned memory.

    root: the group's rank that acts as the schedule's rank 0; the others follow in order.
    tag: of the messages, less than 256.
    shares_memory: False for torch.distributed between all ranks, whatever the group's transport.

    Raises ValueError if schedule and group have different numbers of ranks.

        >>> executor = collectives.Executor(ringsim.ring_all_reduce(2), dist.group.WORLD)
        >>> for tensor in (torch.ones(4) * rank, torch.ones(1000)):
        ...     executor.run(tensor)
        >>> tensor[0]
        tensor(2.)
    """

    def __init__(
        self,
        schedule: Schedule,
        group: dist.ProcessGroup,
        root: int = 0,
        tag: int = Tag.COLLECTIVE,
        *,
        shares_memory: bool = True,
    ) -> None:
        if schedule.num_ranks != group.size():
            raise ValueError(f"{schedule}: the group has {group.size()} ranks; build the schedule for {group.size()}")
        self.schedule = schedule
        self._group = weakref.ref(group)  # an executor is kept by its group, and must not keep it
        own = (group.rank() - root) % group.size()
        self._program = rank_program(schedule, own)
        is_whole = schedule.collective.is_whole
        self._places = None if is_whole else ChunkPlaces.of(schedule, self._program, own, root)
        # With another root than 0, all ranks are shifted by the root.
        self._ranks = tuple((rank + root) % group.size() for rank in range(group.size()))
        state = state_of(group)
        self._preposted = state.part(PrepostedReceives)
        self.tag = tag
        self._transports = state.part(Transports)
        self._limit = time_limit_of(group)
        self._shares_memory = shares_memory
        self._layouts = ChunkLayouts(schedule, self._preposted, tag)
        self._staging = self._wire = self._wide = self._host = self._passing = torch.empty(0, dtype=torch.uint8)

    @lazily
    def _posted(self) -> RankPart:
        return RankPart.posted(self.schedule, self._program, self._ranks)

    @lazily
    def _batched(self) -> RankPart:
        return RankPart.batched(self.schedule, self._program, self._ranks)

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group. Raises ValueError once it has been destroyed."""
        group = self._group()
        if group is None:
            raise ValueError(f"{self.schedule}: the process group has been destroyed")
        return group

    def run(
        self,
        tensor: torch.Tensor,
        *,
        reduce: Reduce = torch.Tensor.add_,
        source: torch.Tensor | None = None,
        wire: torch.dtype | None = None,
        splits: tuple[int, ...] | None = None,
        log: list[Event] | None = None,
    ) -> None:
        """Run the schedule on every rank of the group, each with its own `tensor`, in place; one run at a time.

        tensor: contiguous, on the CPU or a CUDA device, of the same length and dtype on every rank. Afterwards the
        chunks that the collective leaves at this rank hold the result; the others are undefined. On CUDA all runs of an
        executor must be on the same current stream, and none waits for NCCL.
        reduce: combines its first argument, a chunk, in place with its second, the arrived data, which it must not
        change.
        source: this rank's contribution, if not in `tensor`; only read. Not with `wire`. In a gather, scatter or
        all_to_all it holds the rank's initial chunks, and `tensor`, in other memory, its final chunks.
        wire: the dtype in which chunks travel; None: that of `tensor`, in which sums are kept. A send rounds the
        sender's chunk too.
        splits: elements of each share, the same on every rank; None: as equal as possible.
        log: gets an `Event` for every send and receive, in order of time.

        Raises ValueError if a tensor does not fit; CollectiveError if a peer fails or exceeds the group's timeout.
        """
        if not is_plain(tensor):
            raise ValueError(f"{self.schedule}: {_refusal(tensor)}")
        if self._places is not None and source is None:
            raise ValueError(f"{self.schedule}: pass source=, the input, in addition to the tensor for the result")
        is_from_shares = self.schedule.collective in (Collective.GATHER, Collective.ALL_TO_ALL)
        own = source if source is not None and is_from_shares else tensor
        num_elements = sum(splits or [own.numel() * (1 if self._places is None else self.schedule.num_ranks)])
        self.carry_out(RunOperands(tensor, num_elements, wire or tensor.dtype, reduce, source, None, splits, log))

    def carry_out(self, operands: RunOperands) -> None:
        """Run the schedule on operands that fit, as in `run`."""
        transport = self._transports.of(operands.tensor)
        if transport is POSTED:
            self._run_posted(operands)
        elif transport is STAGED:
            self._run_staged(operands)
        else:
            self._run_batched(operands)

    def _run_staged(self, operands: RunOperands) -> None:
        tensor, source = operands.tensor, operands.source
        self._host = reused_buffer(self._host, tensor.numel(), tensor.dtype, pinned=True)
        host = self._host[: tensor.numel()]
        if self._places is None:
            host.copy_((tensor if source is None else source).detach().view(-1))  # waits for the copy, both ways
            source = None
        else:
            assert source is not None
            source = source.to(CPU)
        self._run_posted(replace(operands, tensor=host, source=source, share=None))
        tensor.detach().view(-1).copy_(host)
        if operands.share is not None:
            operands.share.detach().view(-1).copy_(tensor.detach().view(self.schedule.num_ranks, -1)[self.group.rank()])

    def _run_batched(self, operands: RunOperands) -> None:
        with naming_failures(f"rank {self.group.rank()}: {self.schedule}: meeting the other ranks failed"):
            self._transports.start_communicator(self.group, operands.tensor.device)
        part, layout = self._batched, self._layout(operands, is_posted=False)
        memory = self._memory(operands, layout, part.num_staging_buffers)
        transport = NcclTransport(part, memory, self.group, layout.portions[0].tags)
        ScheduleRun(self.group, transport, _hooks(operands.log)).run()

    def _run_posted(self, operands: RunOperands) -> None:
        part, (plan, portion_bytes) = self._posted, self._shared
        layout = self._layout(operands, portion_bytes)
        uses_gloo = plan is None or plan.has_remote  # what comes through shared memory needs no place to land
        memory = self._memory(operands, layout, part.num_staging_buffers if uses_gloo else 0)
        group, hooks = self.group, _hooks(operands.log)
        try:
            for cuts, tags in layout.portions:
                portion = memory if cuts is None else memory.cut(cuts)
                by_gloo = None
                if uses_gloo:
                    timeout = timedelta(seconds=self._limit().seconds)
                    by_gloo = GlooTransport(part, portion, group, self._preposted, tags, operands.stamp, timeout)
                transport: ChunkTransport | None = by_gloo
                if plan is not None:
                    is_last = cuts is layout.portions[-1].cuts
                    transport = SharedMemoryTransport(part, portion, plan, layout.token, by_gloo, is_last)
                assert transport is not None
                ScheduleRun(group, transport, hooks).run()
        except BaseException:  # KeyboardInterrupt, too, which may come between two portions
            if plan is not None:
                plan.local.fail()
            raise

    def _layout(
        self, operands: RunOperands, portion_bytes: int | None = None, *, is_posted: bool = True
    ) -> ChunkLayout:
        num_elements, stamp, itemsize = operands.num_elements, operands.stamp, operands.wire.itemsize
        travels = is_posted and stamp.travels
        return self._layouts.of(
            LayoutKey(num_elements, itemsize, is_posted, stamp.number, travels, portion_bytes, operands.splits)
        )

    def _memory(self, operands: RunOperands, layout: ChunkLayout, num_staging_buffers: int) -> ChunkMemory:
        tensor, reduce, wire, lengths = operands.tensor, operands.reduce, operands.wire, layout.lengths
        if self._places is not None:
            chunks, targets = self._placed(self._places, operands, lengths)
        else:
            targets = _cut(tensor, lengths)
            chunks = targets.copy() if operands.source is None else _cut(operands.source, lengths)
        if operands.share is not None:
            targets[self._own] = _cut(operands.share, lengths[self._own])
        for number in self._given if operands.source is not None and self._places is None else ():
            chunks[number] = targets[number].copy_(chunks[number])
        wire_chunks, rounding = chunks, None
        if wire != tensor.dtype:
            rounding = self._rounding
            self._wire = reused_buffer(self._wire, tensor.numel(), wire, tensor.device)
            wire_chunks = _cut(self._wire[: tensor.numel()], lengths)
            reduce = self._widened(reduce, max(lengths, default=0), tensor)
        staging_buffers: Sequence[torch.Tensor] = ()
        if layout.staging_length and num_staging_buffers:
            length = num_staging_buffers * layout.staging_length
            self._staging = reused_buffer(self._staging, length, wire, tensor.device)
            # Not the whole buffer, whose remainder may be half a staging buffer.
            staging_buffers = self._staging[:length].split_with_sizes([layout.staging_length] * num_staging_buffers)
        return ChunkMemory(chunks, targets, wire_chunks, reduce, staging_buffers, rounding)

    def _placed(
        self, places: ChunkPlaces, operands: RunOperands, lengths: list[int]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the initial place and the target of each chunk; empty tensors where there is none."""
        tensor = operands.tensor
        assert operands.source is not None
        targets = [tensor.new_empty(0)] * places.num_chunks
        passing = sum(lengths[chunk] for chunk in places.passing)
        self._passing = reused_buffer(self._passing, passing, tensor.dtype, tensor.device)
        for whole, numbers in ((tensor, places.left), (self._passing[:passing], places.passing)):
            _put(targets, whole, numbers, lengths)
        chunks = targets.copy()
        _put(chunks, operands.source, places.given, lengths)
        for number in places.staying:
            targets[number].copy_(chunks[number])
        return chunks, targets

    def way(self, num_elements: int, bytes_each: int) -> tuple[str, int]:
        """Return the transport of a CPU tensor's chunks, as `transport_in_use`, and their number of portions.

        Collective.
        """
        _, portion_bytes = self._shared
        key = LayoutKey(num_elements, bytes_each, True, 0, False, portion_bytes)
        transport = transport_in_use(self.group) if portion_bytes else "gloo"
        return transport, len(self._layouts.of(key).portions)

    @lazily
    def _rounding(self) -> Rounding:
        return rounding_of(self.schedule, self._ranks.index(self.group.rank()), self._program)

    @lazily
    def _given(self) -> tuple[int, ...]:
        """Return the chunks of the result that this rank has from the start and never receives, such as a root's."""
        own = self._ranks.index(self.group.rank())
        is_left_here = held_at_end(self.schedule.collective, self.schedule.num_ranks, self.schedule.num_chunks)[own]
        received = {receive.chunk for receive in self._program.receives}
        return tuple(number for number in np.flatnonzero(is_left_here).tolist() if number not in received)

    @lazily
    def _own(self) -> slice:
        rank, chunks_of_each = self.group.rank(), self.schedule.num_chunks // self.schedule.num_ranks
        return slice(rank * chunks_of_each, (rank + 1) * chunks_of_each)

    @lazily
    def _shared(self) -> tuple[SharedPlan | None, int | None]:
        """Return the plan for shared memory, and the most bytes of a chunk in one portion; (None, None) without it."""
        if not self._shares_memory:
            return None, None
        sharing = state_of(self.group).part(Sharing).of(self.group)
        portion_bytes = sharing.portion_bytes(self.schedule)
        if portion_bytes == 0:
            return None, None
        plan = None if sharing.local is None else shared_plan(self._posted, sharing.local)
        return plan, portion_bytes

    def _widened(self, reduce: Reduce, longest: int, tensor: torch.Tensor) -> Reduce:
        self._wide = reused_buffer(self._wide, longest, tensor.dtype, tensor.device)
        wide = self._wide
        return lambda chunk, arrived: reduce(chunk, wide[: arrived.numel()].copy_(arrived))


def _hooks(log: list[Event] | None) -> Sequence[Hook]:
    hooks: list[Hook] = [] if log is None else [logging_to(log)]
    return [*hooks, naming_spans] if profiling() else hooks


def _refusal(tensor: torch.Tensor) -> str:
    if not tensor.is_contiguous():
        return f"the tensor has strides {tensor.stride()}: must be contiguous; call contiguous() on it"
    return "the tensor is a conjugated or negated view: call resolve_conj() or resolve_neg() on it"


def _put(chunks: list[torch.Tensor], tensor: torch.Tensor, numbers: Sequence[int], lengths: list[int]) -> None:
    for number, part in zip(numbers, _cut(tensor, [lengths[number] for number in numbers]), strict=True):
        chunks[number] = part


def _cut(tensor: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
    # Not a view: a view of a single element would keep any stride, and could not be viewed as bytes.
    return list(tensor.detach().as_strided((tensor.numel(),), (1,)).split_with_sizes(lengths))
