"""What all calls have in common: whose turn it is, which executor runs them, and what must fit together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from collectives.auto import chooser_of, require_network
from collectives.execute import Executor, is_plain, resolve
from collectives.lane import Lane, lane_of
from collectives.reduction import Reduction
from collectives.run import Source
from collectives.transport import CPU, STAGED, Transport
from collectives.work import Work
from ringsim.collective import Collective
from ringsim.executed import executed_schedule, gloo_pieces

AUTO = "auto"
# One executor for each algorithm of each group, as long as the group lives: programs and buffers are made once.
_EXECUTORS: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[Collective, str, int, int], Executor]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Numbers:
    """In which dtypes a reduction is done: `state` is added up, `wire` travels."""

    state: torch.dtype
    wire: torch.dtype

    def __str__(self) -> str:
        return "" if self.state == self.wire else f", added in {self.state}, sent in {self.wire}"


@lru_cache
def numbers(dtype: torch.dtype, accumulate: torch.dtype | None, wire: torch.dtype | None) -> Numbers:
    """For a tensor of `dtype`. Raises ValueError if one of the others is given where nothing is rounded."""
    for name, given in (("accumulate", accumulate), ("wire", wire)):
        if given is not None and not (given.is_floating_point and dtype.is_floating_point):
            raise ValueError(f"{name} {given}: only for floating-point tensors, in a floating-point dtype; got {dtype}")
    return Numbers(accumulate or dtype, wire or dtype)


@dataclass(frozen=True, slots=True)
class Words:
    """What a rank is about to do, for `Agreement`; put into words only where that is asked for."""

    name: str
    tensor: torch.Tensor
    details: tuple[object, ...] = ()

    def of(self, call: "Call") -> str:
        """In a few words."""
        collective, algorithm, root = call.key
        rooted = f", root {root}" if collective in (Collective.BROADCAST, Collective.REDUCE) else ""
        of = f"{self.tensor.numel()} elements of {self.tensor.dtype}"
        return f"{self.name} of {of}{''.join(map(str, self.details))}{rooted}, algorithm {algorithm}"


class Call:
    """One collective on one group: where it runs, and its executor.

    transport: of its tensors, once it is to be performed.
    """

    transport: Transport

    def __init__(self, collective: Collective, algorithm: str, group: dist.ProcessGroup | None, root: int = 0) -> None:
        self.group = resolve(group)
        self.lane: Lane = lane_of(self.group)
        self.num_ranks, self.rank = self.group.size(), self.group.rank()
        self.key = collective, algorithm, root
        # Now, so that what cannot be is the caller's error.
        if algorithm != AUTO:
            self._executor(algorithm, 0)
        else:
            require_network(self.group)

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether `execute` can run on `tensor` itself, rather than on a copy in a `buffer`."""
        return self.transport is not STAGED and is_plain(tensor)

    def buffer(self, length: int, dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
        """(length,): the lane's room for a copy of what is on the device of `tensor`, where `execute` can take it."""
        if self.transport is STAGED:
            return self.lane.buffer(length, dtype, CPU, pinned=True)
        return self.lane.buffer(length, dtype, tensor.device)

    def execute(
        self,
        tensor: torch.Tensor,
        how: Reduction | None = None,
        wire: torch.dtype | None = None,
        source: Source | None = None,
    ) -> None:
        """Run the schedule on `tensor`, contiguous, in place; to be called when it is this collective's turn."""
        collective, algorithm, _ = self.key
        size_bytes = tensor.numel() * (wire or tensor.dtype).itemsize
        if algorithm == AUTO:
            algorithm = chooser_of(self.group).choose(collective, size_bytes, self.group)
        executor = self._executor(algorithm, size_bytes)
        executor.run(tensor, reduce=how.combine if how else torch.Tensor.add_, source=source, wire=wire)

    def _executor(self, algorithm: str, size_bytes: int) -> Executor:
        collective, _, root = self.key
        key = collective, algorithm, root, gloo_pieces(collective, algorithm, self.num_ranks, size_bytes)
        executors = _EXECUTORS.setdefault(self.group, {})
        if key not in executors:
            schedule, cut = executed_schedule(collective, algorithm, self.num_ranks, size_bytes)
            executors[key] = Executor(schedule, self.group, root, cut=cut)
        return executors[key]

    def perform(
        self,
        work: Callable[[], None],
        async_op: bool,
        result: list[torch.Tensor],
        words: Words,
        inputs: Sequence[torch.Tensor] = (),
    ) -> Work | None:
        """Do `work` when the group's earlier collectives are done, and wait for it unless `async_op`.

        words: what all ranks must say alike, if that is to be checked.
        inputs: the tensors that it was given beside those of the result.
        """
        self.transport = self.lane.transports.of(words.tensor)
        # That of now, when it is called: by its turn it may be another, but not on all ranks.
        agreement = self.lane.agreement

        def turn() -> None:
            if agreement is not None:
                agreement.require(words.of(self))
            work()

        if words.tensor.is_cuda:
            return self._perform_on_cuda(turn, async_op, result, [words.tensor, *result, *inputs])
        if async_op:
            return self.lane.start(turn, result)
        self.lane.run(turn)
        return None

    def _perform_on_cuda(
        self, turn: Callable[[], None], async_op: bool, result: list[torch.Tensor], tensors: list[torch.Tensor]
    ) -> Work | None:
        crossing = self.lane.crossing(tensors)

        def crossed() -> None:
            crossing.carry_out(turn)

        if async_op and self.transport is STAGED:
            return self.lane.start(crossed, result, crossing)
        # NCCL's are launched at once: that waits for nobody, and all ranks must launch theirs, ours and the program's
        # own, in the same order, which a second thread would spoil.
        self.lane.run(crossed)
        if async_op:
            return Work.over(result, crossing)
        crossing.join()
        return None


def check_writable(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError if elements of `tensor` share memory, as those of an expanded one do: no result fits there."""
    if not tensor.is_contiguous() and any(
        step == 0 for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    ):
        raise ValueError(
            f"{name} of shape {tuple(tensor.shape)} and strides {tensor.stride()}: elements share memory; "
            "give a tensor that is not expanded, such as its clone"
        )


def check_share(small_name: str, small: torch.Tensor, large_name: str, large: torch.Tensor, num_ranks: int) -> None:
    """Raise ValueError unless `large` is `num_ranks` times as long as `small`, and of the same dtype."""
    if small.numel() * num_ranks != large.numel():
        raise ValueError(
            f"{large_name} has {large.numel()} elements and {small_name} {small.numel()}: "
            f"{large_name} must have {num_ranks} times as many, once per rank"
        )
    if small.dtype != large.dtype:
        raise ValueError(f"{large_name} is {large.dtype} and {small_name} {small.dtype}: both must be the same")
    if small.device != large.device:
        raise ValueError(f"{large_name} is on {large.device} and {small_name} on {small.device}: must be on the same")


def check_list(list_name: str, tensors: list[torch.Tensor], name: str, tensor: torch.Tensor, num_ranks: int) -> None:
    """Raise ValueError unless there is a tensor for each rank, each like `tensor`."""
    if len(tensors) != num_ranks:
        raise ValueError(f"{list_name} has {len(tensors)} tensors: must have one for each of {num_ranks} ranks")
    for index, each in enumerate(tensors):
        if each.numel() != tensor.numel() or each.dtype != tensor.dtype:
            raise ValueError(
                f"{list_name}[{index}] has {each.numel()} elements of {each.dtype} and {name} {tensor.numel()} of "
                f"{tensor.dtype}: both must be the same"
            )
        if each.device != tensor.device:
            raise ValueError(
                f"{list_name}[{index}] is on {each.device} and {name} on {tensor.device}: must be on the same"
            )
