"""`execute`: a `Schedule` on real tensors, over point-to-point send and receive of torch.distributed.

Each rank runs its own part (`RankProgram`) in one thread, from a script. Receives are posted ahead, because Gloo's send
is a rendezvous: it writes at once only if the receiver has already said where to. Those of short messages are posted
even before the call (`Mail`).
"""

import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from collectives.mail import mail_of, mail_tag
from collectives.run import Event, Reduce, Run, Source
from collectives.script import num_apart, script_of
from ringsim.partition import Cut, partition
from ringsim.program import rank_program
from ringsim.schedule import Schedule

TAG = 0x52  # keeps our messages apart from the program's own sends and receives, which default to tag 0


def execute(
    schedule: Schedule,
    tensor: torch.Tensor,
    *,
    reduce: Reduce = torch.Tensor.add_,
    group: dist.ProcessGroup | None = None,
    log: list[Event] | None = None,
) -> None:
    """Run `schedule` once: `Executor(schedule, group).run(tensor, ...)`.

    group: the default process group if None; ValueError if there is none.
    """
    Executor(schedule, resolve(group)).run(tensor, reduce=reduce, log=log)


def resolve(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """`group`, or the default one. Raises ValueError if there is none, or this rank is not in it."""
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("torch.distributed is not initialised: call dist.init_process_group first")
    if not isinstance(group, dist.ProcessGroup):  # torch's mark for it is a number
        raise ValueError("group: this rank is not in it; only its members call its collectives")
    return group


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the memory of `tensor` can be sent as it is: elements in order, none to be negated when read."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


class Layout(NamedTuple):
    """How a tensor is cut.

    lengths, tags: elements of each chunk, and the tag of its messages.
    longest_slot: elements that a place must have for what does not come by mail; 0 if all does.
    """

    lengths: list[int]
    tags: list[int]
    longest_slot: int


class Executor:
    """One schedule on one process group, to be run any number of times; keeps what every run needs.

    Memory: `num_slots` of the longest chunks for what arrives to be added (as many as one step brings to this rank, and
    at least three where there are as many), unless they are short enough for the group's mail; kept between runs,
    because fresh memory costs more than the sending.

    root: the rank of the group that does what the schedule says of rank 0; the others follow it in order.
    tag: of the messages; others than those of the collectives need another. Less than 256.
    cut: where the bounds of the chunks lie.

    Raises ValueError if the schedule has another number of ranks than the group.
    """

    def __init__(
        self, schedule: Schedule, group: dist.ProcessGroup, root: int = 0, tag: int = TAG, cut: Cut = partition
    ) -> None:
        if schedule.num_ranks != group.size():
            raise ValueError(f"{schedule}: the group has {group.size()} ranks; build the schedule for as many")
        self.schedule = schedule
        self._group = weakref.ref(group)  # so that who keeps executors by group does not keep the group
        self.program = rank_program(schedule, (group.rank() - root) % group.size())
        self.sends = self.program.sends
        self.script = script_of(self.program)
        self.num_slots = num_apart(self.program)
        # Whom the schedule calls rank i, in the group: with another root than 0, all are moved along by as much.
        self.peers = [(rank + root) % group.size() for rank in range(group.size())]
        self.mail = mail_of(group)
        self.tag, self.cut = tag, cut
        self._layouts: dict[tuple[int, int], Layout] = {}
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._mirror = torch.empty(0, dtype=torch.uint8)

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
    ) -> None:
        """Run the schedule on every rank of the group, each with its own `tensor`, in place.

        tensor: contiguous, on the CPU, of the same length and dtype on every rank.
        reduce: called with a chunk and what arrived for it; must change the chunk in place.
        source: where this rank's contribution is, if not in `tensor`; it is only read, and then in `tensor` only those
        chunks mean anything that this rank has written. Not together with `wire`.
        wire: the dtype in which chunks travel, that of `tensor` if None. Each send rounds what it sends, for its sender
        too; sums are kept in the dtype of `tensor`.
        log: gets an `Event` for every send and every receive, in the order in which they happened.

        Not to be called again before it has returned. Raises ValueError for a tensor that does not fit,
        CollectiveError when a peer fails or is later than the group's timeout.
        """
        if not is_plain(tensor) or not tensor.is_cpu:
            raise ValueError(f"{self.schedule}: {_refusal(tensor)}")
        wire = wire or tensor.dtype
        layout = self._layout(tensor.numel(), wire.itemsize)
        homes = _cut(tensor, layout.lengths)
        chunks = _cut(source.tensor, layout.lengths) if source else homes.copy()
        mirror = chunks
        if wire != tensor.dtype:
            self._mirror = _room(self._mirror, tensor.numel(), wire)
            mirror = _cut(self._mirror[: tensor.numel()], layout.lengths)
        slots: Sequence[torch.Tensor] = ()
        if layout.longest_slot:
            self._scratch = _room(self._scratch, self.num_slots * layout.longest_slot, wire)
            slots = self._scratch.split(layout.longest_slot)
        reduce_into = source.reduce_into if source else None
        Run(self, self.group, chunks, homes, mirror, slots, layout.tags, reduce, reduce_into, log).run()

    def _layout(self, num_elements: int, bytes_each: int) -> Layout:
        """How to cut so many elements; worked out once, as a program calls with the same few sizes again and again."""
        key = num_elements, bytes_each
        if key not in self._layouts:
            lengths = np.diff(self.cut(num_elements, self.schedule.num_chunks)).tolist()
            tags = [mail_tag(self.tag, length * bytes_each) for length in lengths]
            longest = max((length for length, tag in zip(lengths, tags, strict=True) if tag == self.tag), default=0)
            self._layouts[key] = Layout(lengths, tags, longest if self.num_slots else 0)
        return self._layouts[key]


def _refusal(tensor: torch.Tensor) -> str:
    if not tensor.is_contiguous():
        return f"the tensor with strides {tensor.stride()} must be contiguous"
    if not is_plain(tensor):
        return "the tensor is a conjugated or negated view; resolve_conj, resolve_neg"
    return f"the tensor is on {tensor.device}; only CPU tensors are supported so far"


def _cut(tensor: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
    return list(tensor.detach().view(-1).split_with_sizes(lengths))


def _room(kept: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """`kept` if it will do: fresh memory costs more than the sending."""
    return kept if kept.dtype == dtype and len(kept) >= length else torch.empty(length, dtype=dtype)
