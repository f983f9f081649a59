"""What all calls have in common: whose turn it is, which executor runs them, and what must fit together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from collectives.calls.algorithm_choice import chooser_of, require_network
from collectives.calls.reduction import Reduction
from collectives.runtime import (
    CPU,
    STAGED,
    UNNUMBERED,
    CollectiveError,
    Executor,
    Fingerprint,
    Lane,
    Source,
    Transport,
    Work,
    is_plain,
    lane_of,
    resolve,
)
from ringsim.registry import build, size_variant
from ringsim.schedule import Collective

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


class Call:
    """One collective on one group: where it runs, and its executor.

    transport: of its tensors, once it is to be performed.
    number: of its fingerprint, once it is its turn.
    """

    transport: Transport
    number: int = UNNUMBERED

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
        combine = how.combine if how else torch.Tensor.add_
        executor.run(tensor, reduce=combine, source=source, wire=wire, number=self.number)

    def _executor(self, algorithm: str, size_bytes: int) -> Executor:
        collective, _, root = self.key
        key = collective, algorithm, root, size_variant(collective, algorithm, self.num_ranks, size_bytes)
        executors = _EXECUTORS.setdefault(self.group, {})
        if key not in executors:
            executors[key] = Executor(build(collective, algorithm, self.num_ranks, size_bytes), self.group, root)
        return executors[key]

    def perform(
        self,
        work: Callable[[], None],
        async_op: bool,
        name: str,
        result: list[torch.Tensor],
        tensor: torch.Tensor,
        details: tuple[object, ...] = (),
        inputs: Sequence[torch.Tensor] = (),
    ) -> Work | None:
        """Do `work` when the group's earlier collectives are done, and wait for it unless `async_op`.

        name, tensor, details: of the fingerprint, which all ranks must have alike.
        inputs: the tensors that it was given beside that one and those of the result.
        """
        self.transport = self.lane.transports.of(tensor)
        collective, algorithm, root = self.key
        of_root = root if collective in (Collective.BROADCAST, Collective.REDUCE) else None
        fingerprint = Fingerprint(name, tensor.numel(), tensor.dtype, details, algorithm, of_root)
        # That of now, when it is called: by its turn it may be another, but not on all ranks.
        check = self.lane.check

        def turn() -> None:
            try:
                self.number = self.lane.fingerprints.number(fingerprint, check)
                work()
            except ValueError:  # refused before anything was sent
                raise
            except CollectiveError as error:
                error.add_cause(self.lane.failures.first_cause(error, str(fingerprint)))
                raise
            except BaseException as error:
                self.lane.failures.first_cause(error, str(fingerprint))  # for the others, who wait for this rank
                raise

        if tensor.is_cuda:
            return self._perform_on_cuda(turn, async_op, result, [tensor, *result, *inputs])
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
