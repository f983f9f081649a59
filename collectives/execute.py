"""`execute`: a `Schedule` on real tensors, over point-to-point send and receive of torch.distributed.

Each rank runs its own part (`RankProgram`) in one thread. Receives are posted ahead, because Gloo's send
is a rendezvous: it writes at once only if the receiver has already said where to.
"""

import itertools
import weakref
from collections.abc import Sequence

import torch
import torch.distributed as dist

from collectives.run import Event, Reduce, Run, Source
from ringsim.partition import Cut, partition
from ringsim.program import Receive, rank_program
from ringsim.schedule import Schedule

TAG = 0x52  # keeps our messages apart from the program's own sends and receives, which default to tag 0
POSTED_AHEAD = 2  # receives posted beyond the one being waited for


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


class Executor:
    """One schedule on one process group, to be run any number of times; keeps what every run needs.

    Memory: `num_slots` chunks for what arrives to be added (as many as one step brings to this rank, and at
    least three where there are as many), kept between runs, because fresh memory costs more than the sending.

    root: the rank of the group that does what the schedule says of rank 0; the others follow it in order.
    tag: of the messages; others than those of the collectives need another.
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
        # Whom the schedule calls rank i, in the group: with another root than 0, all are moved along by as much.
        self.peers = [(rank + root) % group.size() for rank in range(group.size())]
        receives = self.program.receives
        self.horizons = [_horizon(receives, index) for index in range(len(receives))]
        self.num_slots = max(
            (sum(r.lands_apart for r in receives[index:horizon]) for index, horizon in enumerate(self.horizons)),
            default=0,
        )
        self.tag, self.cut = tag, cut
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
        self._check(tensor)
        bounds = self.cut(tensor.numel(), self.schedule.num_chunks).tolist()
        homes = _cut(tensor.detach().view(-1), bounds)
        chunks = _cut(source.tensor.detach().view(-1), bounds) if source else list(homes)
        wire = wire or tensor.dtype
        mirror = chunks
        if wire != tensor.dtype:
            self._mirror = _room(self._mirror, tensor.numel(), wire)
            mirror = _cut(self._mirror, bounds)
        length = max(len(chunk) for chunk in chunks)
        self._scratch = _room(self._scratch, self.num_slots * length, wire)
        slots = [self._scratch[index * length : (index + 1) * length] for index in range(self.num_slots)]
        Run(self, chunks, homes, mirror, slots, reduce, source.reduce_into if source else None, log).run()

    def _check(self, tensor: torch.Tensor) -> None:
        if not tensor.is_contiguous():
            raise ValueError(f"{self.schedule}: the tensor with strides {tensor.stride()} must be contiguous")
        if not is_plain(tensor):
            raise ValueError(f"{self.schedule}: the tensor is a conjugated or negated view; resolve_conj, resolve_neg")
        if tensor.device.type != "cpu":
            raise ValueError(
                f"{self.schedule}: the tensor is on {tensor.device}; only CPU tensors are supported so far"
            )


def _cut(flat: torch.Tensor, bounds: list[int]) -> list[torch.Tensor]:
    return [flat[low:high] for low, high in itertools.pairwise(bounds)]


def _room(kept: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """`kept` if it will do: fresh memory costs more than the sending."""
    return kept if kept.dtype == dtype and len(kept) >= length else torch.empty(length, dtype=dtype)


def _horizon(receives: Sequence[Receive], applied: int) -> int:
    """How many receives to have posted before the one numbered `applied` is waited for.

    At least all of its step: rule 4 makes a rank wait for its own sends of this step, and so does every
    peer, each of which therefore must find its receive posted.
    """
    horizon = applied
    while horizon < len(receives) and (
        horizon <= applied + POSTED_AHEAD or receives[horizon].step == receives[applied].step
    ):
        horizon += 1
    return horizon
