"""`execute`: a `Schedule` on real tensors, over point-to-point send and receive of torch.distributed.

Each rank runs its own part (`RankProgram`) in one thread, from a list of instructions. On Gloo receives are posted
ahead, because its send is a rendezvous: it writes at once only if the receiver has already said where to. Those of
short messages are posted even before the call (`PrepostedReceives`). Elsewhere, on NCCL, each step is launched as one
group (`BatchedScheduleRun`).
"""

import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from collectives.runtime.batched_schedule_run import BatchedScheduleRun
from collectives.runtime.buffers import reused_buffer
from collectives.runtime.errors import naming_failures
from collectives.runtime.group_state import resolve, state_of
from collectives.runtime.instructions import (
    RankInstruction,
    RankPart,
    batched_instructions_of,
    instructions_of,
    num_staging_buffers,
    num_staging_buffers_in_a_step,
)
from collectives.runtime.preposted import PrepostedReceives, eager_tag, is_eager
from collectives.runtime.schedule_run import Event, Reduce, ScheduleRun, Source
from collectives.runtime.tags import Tag, numbered_tag
from collectives.runtime.transport import POSTED, STAGED, CommunicatorStart, Transport, Transports
from ringsim.schedule import Schedule, rank_program


def execute(
    schedule: Schedule,
    tensor: torch.Tensor,
    *,
    reduce: Reduce = torch.Tensor.add_,
    group: dist.ProcessGroup | None = None,
    log: list[Event] | None = None,
) -> None:
    """Run `schedule` once on every rank of `group`, each with its own `tensor`, in place.

    tensor: contiguous, on the CPU or on a CUDA device, of the same length and dtype on every rank.
    reduce: called with a chunk and what arrived for it, to change the chunk in place where the schedule reduces.
    group: the default process group if None.
    log: gets an `Event` for every send and every receive.

    Raises ValueError if there is no process group, or for a tensor or schedule that does not fit it, and
    CollectiveError when a peer fails or is later than the group's timeout. To run one schedule again and again, make an
    `Executor` of it.

        >>> tensor = torch.tensor([1.0, 2.0]) + rank
        >>> collectives.execute(ringsim.ring_all_reduce(2), tensor)
        >>> tensor
        tensor([3., 5.])
    """
    Executor(schedule, resolve(group)).run(tensor, reduce=reduce, log=log)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the memory of `tensor` can be sent as it is: elements in order, none to be negated when read."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


class ExecutionPlan(NamedTuple):
    """How a rank executes its program on a transport.

    num_staging_buffers: for what arrives and must not land in its chunk.
    """

    run: type[ScheduleRun]
    instructions: tuple[RankInstruction, ...]
    num_staging_buffers: int


class RunOptions(NamedTuple):
    """What `Executor.run` is given beside the tensor, as described there."""

    reduce: Reduce
    source: Source | None
    wire: torch.dtype | None
    log: list[Event] | None
    number: int


class ChunkLayout(NamedTuple):
    """How a tensor is cut.

    lengths, tags: elements of each chunk, and the tag of its messages.
    staging_length: elements that a staging buffer must have for what is not eager; 0 if all is.
    """

    lengths: list[int]
    tags: list[int]
    staging_length: int


class Executor:
    """One schedule on one process group, to be run any number of times; keeps what every run needs.

    Memory: the longest chunk, a few times, for what arrives to be added (as many as one step brings to this rank, and
    on Gloo at least three where there are as many), unless it is short enough to be eager; for a CUDA tensor
    on Gloo also its length in pinned memory of the host. Kept between runs, because fresh memory costs more than the
    sending.

    root: the rank of the group that does what the schedule says of rank 0; the others follow it in order.
    tag: of the messages; others than those of the collectives need another. Less than 256.

    Raises ValueError if the schedule has another number of ranks than the group.

        >>> executor = collectives.Executor(ringsim.ring_all_reduce(2), dist.group.WORLD)
        >>> tensors = [torch.ones(4) * rank, torch.ones(1000)]
        >>> for tensor in tensors:
        ...     executor.run(tensor)
        >>> [tensor[0].item() for tensor in tensors]
        [1.0, 2.0]
    """

    def __init__(self, schedule: Schedule, group: dist.ProcessGroup, root: int = 0, tag: int = Tag.COLLECTIVE) -> None:
        if schedule.num_ranks != group.size():
            raise ValueError(f"{schedule}: the group has {group.size()} ranks; build the schedule for as many")
        self.schedule = schedule
        self._group = weakref.ref(group)  # so that who keeps executors by group does not keep the group
        program = rank_program(schedule, (group.rank() - root) % group.size())
        # With another root than 0, all ranks are moved along by as much.
        peers = tuple((rank + root) % group.size() for rank in range(group.size()))
        self._part = RankPart(schedule, program, tuple(program.sends), peers)
        state = state_of(group)
        self._preposted = state.part(PrepostedReceives)
        self.tag = tag
        self._transports = state.part(Transports)
        self._communicator = state.part(CommunicatorStart)
        self._layouts: dict[tuple[int, int, bool, int], ChunkLayout] = {}
        self._staging = self._wire = self._wide = self._host = torch.empty(0, dtype=torch.uint8)

    @cached_property
    def _posted(self) -> ExecutionPlan:
        program = self._part.program
        return ExecutionPlan(ScheduleRun, instructions_of(program), num_staging_buffers(program))

    @cached_property
    def _batched(self) -> ExecutionPlan:
        program = self._part.program
        return ExecutionPlan(
            BatchedScheduleRun, batched_instructions_of(program), num_staging_buffers_in_a_step(program)
        )

    def _batched_on(self, device: torch.device) -> ExecutionPlan:
        with naming_failures(f"rank {self.group.rank()}: {self.schedule}: meeting the other ranks failed"):
            self._communicator.ensure(self.group, device)
        return self._batched

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
        source: Source | None = None,
        wire: torch.dtype | None = None,
        log: list[Event] | None = None,
        number: int = 0,
    ) -> None:
        """Run the schedule on every rank of the group, each with its own `tensor`, in place.

        tensor: contiguous, on the CPU or on a CUDA device, of the same length and dtype on every rank. On CUDA the run
        belongs to the current stream, always the same one of an executor; what NCCL does it does not wait for.
        reduce: called with a chunk and what arrived for it; must change the chunk in place.
        source: where this rank's contribution is, if not in `tensor`; it is only read, and then in `tensor` only those
        chunks mean anything that this rank has written. Not together with `wire`.
        wire: the dtype in which chunks travel, that of `tensor` if None. Each send rounds what it sends, for its sender
        too; sums are kept in the dtype of `tensor`.
        log: gets an `Event` for every send and every receive, in the order in which they happened.
        number: that of the call's fingerprint, the same on every rank: messages of calls with other numbers than this
        one are not taken for its own.

        Not to be called again before it has returned. Raises ValueError for a tensor that does not fit,
        CollectiveError when a peer fails or is later than the group's timeout.
        """
        if not is_plain(tensor):
            raise ValueError(f"{self.schedule}: {_refusal(tensor)}")
        transport = self._transports.of(tensor)
        options = RunOptions(reduce, source, wire, log, number)
        if transport is STAGED:
            self._run_staged(tensor, options)
        else:
            self._run(tensor, transport, options)

    def _run_staged(self, tensor: torch.Tensor, options: RunOptions) -> None:
        self._host = reused_buffer(self._host, tensor.numel(), tensor.dtype, pinned=True)
        host = self._host[: tensor.numel()]
        given = options.source.tensor if options.source else tensor
        host.copy_(given.detach().view(-1))  # it waits for the copy, both ways
        self._run(host, POSTED, options._replace(source=None))
        tensor.detach().view(-1).copy_(host)

    def _run(self, tensor: torch.Tensor, transport: Transport, options: RunOptions) -> None:
        reduce, source, wire, log, number = options
        plan = self._posted if transport is POSTED else self._batched_on(tensor.device)
        wire = wire or tensor.dtype
        layout = self._layout(tensor.numel(), wire.itemsize, plan, number)
        targets = _cut(tensor, layout.lengths)
        chunks = _cut(source.tensor, layout.lengths) if source else targets.copy()
        wire_chunks = chunks
        if wire != tensor.dtype:
            self._wire = reused_buffer(self._wire, tensor.numel(), wire, tensor.device)
            wire_chunks = _cut(self._wire[: tensor.numel()], layout.lengths)
            reduce = self._widened(reduce, max(layout.lengths, default=0), tensor)
        staging_buffers: Sequence[torch.Tensor] = ()
        if layout.staging_length:
            length = plan.num_staging_buffers * layout.staging_length
            self._staging = reused_buffer(self._staging, length, wire, tensor.device)
            # Only so much of it: of what is kept the rest may be half a buffer.
            staging_buffers = self._staging[:length].split(layout.staging_length)
        reduce_into = source.reduce_into if source else None
        plan.run(
            self._part,
            self.group,
            self._preposted,
            plan.instructions,
            chunks,
            targets,
            wire_chunks,
            staging_buffers,
            layout.tags,
            reduce,
            reduce_into,
            log,
        ).run()

    def _widened(self, reduce: Reduce, longest: int, tensor: torch.Tensor) -> Reduce:
        """`reduce` for chunks that arrive in another dtype than that of `tensor`, without fresh memory each time."""
        self._wide = reused_buffer(self._wide, longest, tensor.dtype, tensor.device)
        wide = self._wide

        def widened(chunk: torch.Tensor, arrived: torch.Tensor) -> None:
            reduce(chunk, wide[: len(arrived)].copy_(arrived))

        return widened

    def _layout(self, num_elements: int, bytes_each: int, plan: ExecutionPlan, number: int) -> ChunkLayout:
        """How to cut so many elements; worked out once, as a program calls with the same few sizes again and again."""
        eager = plan.run is ScheduleRun  # only Gloo lets receives stay posted between calls
        key = num_elements, bytes_each, eager, number
        if key not in self._layouts:
            lengths = np.diff(self.schedule.bounds(num_elements)).tolist()
            tags = self._tags([length * bytes_each for length in lengths], eager, number)
            staged = [max(length, 1) for length, tag in zip(lengths, tags, strict=True) if not is_eager(tag)]
            staging_length = max(staged, default=0) if plan.num_staging_buffers else 0
            self._layouts[key] = ChunkLayout(lengths, tags, staging_length)
        return self._layouts[key]

    def _tags(self, sizes_bytes: list[int], eager: bool, number: int) -> list[int]:
        """The tags of the messages of chunks of those sizes."""
        own = numbered_tag(self.tag, number)
        tags = [eager_tag(own, size) for size in sizes_bytes]
        # What has no number shares its buffers with all else that has none, so that these are not counted.
        return tags if eager and (number == 0 or self._preposted.reserve(set(tags))) else [own] * len(tags)


def _refusal(tensor: torch.Tensor) -> str:
    if not tensor.is_contiguous():
        return f"the tensor with strides {tensor.stride()} must be contiguous"
    return "the tensor is a conjugated or negated view; resolve_conj, resolve_neg"


def _cut(tensor: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
    # Not a view: of a single element that would keep the stride, any at all, and could not be seen as bytes.
    return list(tensor.detach().as_strided((tensor.numel(),), (1,)).split_with_sizes(lengths))
