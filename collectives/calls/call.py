"""`CollectiveCall`: what all calls have in common: the executor that runs them, and what all ranks must call alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.distributed as dist

from collectives.calls.algorithm_choice import Chooser, require_network
from collectives.calls.own_algorithm import named_with_digest
from collectives.calls.reduction import Reduction
from collectives.runtime import (
    CPU,
    STAGED,
    UNSTAMPED,
    CallStamp,
    CollectiveQueue,
    Executor,
    FailureRecords,
    Fingerprint,
    FingerprintCheck,
    Transport,
    Transports,
    Work,
    is_plain,
    name_first_to_fail,
    resolve,
    state_of,
)
from ringsim.registry import build_proved, size_variant
from ringsim.schedule import Collective

AUTO = "auto"
ROOTED = (Collective.BROADCAST, Collective.REDUCE)


@dataclass(frozen=True, slots=True)
class ReductionDtypes:
    """In which dtypes a reduction is done: `state` is added up, `wire` travels."""

    state: torch.dtype
    wire: torch.dtype

    def __str__(self) -> str:
        return "" if self.state == self.wire else f", added in {self.state}, sent in {self.wire}"


@lru_cache
def reduction_dtypes(dtype: torch.dtype, accumulate: torch.dtype | None, wire: torch.dtype | None) -> ReductionDtypes:
    """For a tensor of `dtype`. Raises ValueError if one of the others is given where nothing is rounded."""
    for name, given in (("accumulate", accumulate), ("wire", wire)):
        if given is not None and not (given.is_floating_point and dtype.is_floating_point):
            raise ValueError(f"{name} {given}: only for floating-point tensors, in a floating-point dtype; got {dtype}")
    return ReductionDtypes(accumulate or dtype, wire or dtype)


class Executors:
    """The executors of one group, one for each algorithm: programs and buffers are made once."""

    def __init__(self, _: dist.ProcessGroup) -> None:
        self.by_key: dict[tuple[Collective, str, int, int], Executor] = {}
        self.compared_names: dict[tuple[Collective, str], str] = {}  # of algorithms, as fingerprints have them


class CollectiveCall:
    """One collective on one group: where it runs, and its executor.

    transport: of its tensors, once it is to be performed.
    stamp: once it is its turn.
    """

    transport: Transport
    stamp: CallStamp = UNSTAMPED

    def __init__(self, collective: Collective, algorithm: str, group: dist.ProcessGroup | None, root: int = 0) -> None:
        self.group = resolve(group)
        self._state = state_of(self.group)
        self._queue = self._state.part(CollectiveQueue)
        # Now, since ranks count the times that they have come to a group's store.
        self._state.part(FailureRecords)
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
        """(length,): the queue's buffer for a copy, on the device of `tensor`, or where `execute` can take it."""
        if self.transport is STAGED:
            return self._queue.buffer(length, dtype, CPU, pinned=True)
        return self._queue.buffer(length, dtype, tensor.device)

    def execute(
        self,
        tensor: torch.Tensor,
        reduction: Reduction | None = None,
        wire: torch.dtype | None = None,
        source: torch.Tensor | None = None,
        share: torch.Tensor | None = None,
    ) -> None:
        """Run the schedule on `tensor`, contiguous, in place; to be called when it is this collective's turn.

        source, share: as in `Executor.run`.
        """
        collective, algorithm, _ = self.key
        size_bytes = tensor.numel() * (wire or tensor.dtype).itemsize
        if algorithm == AUTO:
            algorithm = self._state.part(Chooser).choose(collective, size_bytes, self.group)
        executor = self._executor(algorithm, size_bytes)
        combine = reduction.combine if reduction else torch.Tensor.add_
        executor.run(tensor, reduce=combine, source=source, share=share, wire=wire, stamp=self.stamp)

    def _executor(self, algorithm: str, size_bytes: int) -> Executor:
        collective, _, root = self.key
        key = collective, algorithm, root, size_variant(collective, algorithm, self.num_ranks, size_bytes)
        executors = self._state.part(Executors).by_key
        if key not in executors:
            schedule = build_proved(collective, algorithm, self.num_ranks, size_bytes)
            executors[key] = Executor(schedule, self.group, root)
            names = self._state.part(Executors).compared_names
            names[collective, algorithm] = named_with_digest(algorithm, schedule)
        return executors[key]

    def fingerprint(self, name: str, tensor: torch.Tensor, *details: object) -> Fingerprint:
        """That of this call.

        tensor: that which is reduced, passed on or gathered, or one rank's share where `details` say so.
        details: what else all ranks must have alike.
        """
        collective, algorithm, root = self.key
        algorithm = self._state.part(Executors).compared_names.get((collective, algorithm), algorithm)
        return Fingerprint(
            name, tensor.numel(), tensor.dtype, details, algorithm, root if collective in ROOTED else None
        )

    def perform(
        self,
        work: Callable[[], None],
        fingerprint: Fingerprint,
        result: list[torch.Tensor],
        inputs: Sequence[torch.Tensor] = (),
        async_op: bool = False,
    ) -> Work | None:
        """Do `work` when the group's earlier collectives are done, and wait for it unless `async_op`.

        result: the tensors that it writes; at least one, all on the device on which `inputs`, which it reads, are.
        """
        self.transport = self._state.part(Transports).of(result[0])
        fingerprints = self._state.part(FingerprintCheck)
        # That of now, when it is called: by its turn it may be another, but not on all ranks.
        mode, history = fingerprints.mode, fingerprints.history

        def turn() -> None:
            try:
                self.stamp = fingerprints.stamp(fingerprint, mode)
                work()
            except ValueError:  # refused before anything was sent
                raise
            except BaseException as error:  # also for the others, who wait for this rank
                name_first_to_fail(error, self.group, history.in_words(), history.position)
                raise

        if result[0].is_cuda:
            return self._perform_on_cuda(turn, async_op, result, inputs)
        if async_op:
            return self._queue.start(turn, result)
        self._queue.run(turn)
        return None

    def _perform_on_cuda(
        self, turn: Callable[[], None], async_op: bool, result: list[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> Work | None:
        stream_sync = self._queue.stream_sync([*result, *inputs])

        def turn_on_stream() -> None:
            stream_sync.run(turn)

        if async_op and self.transport is STAGED:
            return self._queue.start(turn_on_stream, result, stream_sync)
        # NCCL's are launched at once: that waits for nobody, and all ranks must launch theirs, ours and the program's
        # own, in the same order, which a second thread would spoil.
        self._queue.run(turn_on_stream)
        if async_op:
            return Work.over(result, stream_sync)
        stream_sync.wait()
        return None
