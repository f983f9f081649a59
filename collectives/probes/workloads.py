"""The work of the ranks in each probe: dependent messages as in collectives, additions and copies."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from collectives.runtime import Executor, Reduce, Sharing, state_of
from ringsim.libraries import NEW_BEYOND_BYTES
from ringsim.measurements import ROUNDS_PER_RUN, SLOT_BYTES, TOUCHED_BYTES, ProbeKind, RankHosts
from ringsim.registry import build
from ringsim.schedule import Collective, Schedule

CALLS_PER_BLOCK = 16
MAX_PIECES = 256  # more would only cost memory, as the first piece has left the caches by then

Rounds = Callable[[], object]


def whole_time() -> tuple[float, float]:
    """Return the time, and the core-seconds of all threads of this rank."""
    return time.perf_counter(), time.process_time()


class TimedAddition:
    """Adds as collectives do, and is a clock of the additions.

    Messages take several times as long as their additions, and vary by as much.
    """

    def __init__(self) -> None:
        self._elapsed_s = self._of_core_s = 0.0

    def __call__(self, chunk: torch.Tensor, arrived: torch.Tensor) -> None:
        begin, begin_cpu = time.perf_counter(), time.thread_time()  # other threads of this rank are receiving
        chunk.add_(arrived)
        self._elapsed_s += time.perf_counter() - begin
        self._of_core_s += time.thread_time() - begin_cpu

    def read(self) -> tuple[float, float]:
        return self._elapsed_s, self._of_core_s


class ProbeWorkload(NamedTuple):
    """The work of the ranks in one probe.

    ranks: that take part. rounds: executes ROUNDS_PER_RUN rounds, or with a `before` one call.
    before: executed before each call, not timed; all ranks must take part. calls: in a block.
    clock: of the rounds, elapsed and of a core.
    """

    kind: ProbeKind
    size_bytes: int
    in_flight: int
    ranks: Sequence[int]
    rounds: Rounds
    before: Rounds | None = None
    calls: int = CALLS_PER_BLOCK
    clock: Callable[[], tuple[float, float]] = whole_time


def spread(memory: torch.Tensor, length: int) -> list[torch.Tensor]:
    """Return pieces of `length` elements from all over the memory, in order."""
    count = min(len(memory) // length, MAX_PIECES)
    return [piece[:length] for piece in memory.split(len(memory) // count)[:count]]


def add_one(chunk: torch.Tensor, arrived: torch.Tensor) -> None:
    """Add one element, as the time per byte has its own probe."""
    chunk[:1].add_(arrived[:1])


def shift_schedule(
    num_ranks: int,
    rings: Sequence[Sequence[int]],
    rounds: int,
    groups: int,
    in_flight: int,
    collective: Collective = Collective.ALL_REDUCE,
) -> Schedule:
    """Return a schedule in which every rank of each ring forwards the arrived chunks, `in_flight` at a time.

    groups: of chunks, limited by the memory to touch. collective: determines the chunks that a rank holds in the end.
    """
    sources = np.concatenate([np.asarray(ring) for ring in rings])[:, None]
    targets = np.concatenate([np.roll(ring, -1) for ring in rings])[:, None]
    positions = np.concatenate([np.arange(len(ring)) for ring in rings])[:, None]
    one_of = np.arange(in_flight)
    columns = (
        (sources, targets, (positions - index) % groups * in_flight + one_of, np.True_) for index in range(rounds)
    )
    return Schedule.from_columns(collective, "shift", num_ranks, groups * in_flight, columns)


def one_way_schedule(num_ranks: int, rounds: int, reduce: bool) -> Schedule:
    """Return a schedule in which every rank sends the next one `rounds` new chunks."""
    ranks = np.arange(num_ranks)
    num_colours = 2 + num_ranks % 2  # neighbours send different chunks, so that no sent chunk is overwritten
    colour = ranks % 2
    colour[-1] = num_colours - 1
    columns = (
        (ranks, np.roll(ranks, -1), colour * rounds + index, np.full(num_ranks, reduce)) for index in range(rounds)
    )
    return Schedule.from_columns(Collective.ALL_REDUCE, "one_way", num_ranks, num_colours * rounds, columns)


def ping_pong_schedule(num_ranks: int, one: int, other: int, rounds: int) -> Schedule:
    """Return a schedule in which a chunk goes to and fro between two ranks, `rounds` messages in all."""
    pair = (one, other)
    columns = ((pair[index % 2], pair[1 - index % 2], 0, np.True_) for index in range(rounds))
    return Schedule.from_columns(Collective.ALL_REDUCE, "ping_pong", num_ranks, 1, columns)


IN_FLIGHT = 4
FRESH_BYTES = NEW_BEYOND_BYTES + 8 * 2**20
PAUSE_S = 10e-3  # in which a link of 100 Mbit/s can save up 122 KiB
RESTED_SIZES = (2**17, 2**21)  # least and most, beside the smallest size
RESTED_CALLS = 4  # in a block
REDUCED = (torch.bfloat16, torch.float16)  # beside float32
FURTHER_SIZE = 256 * 2**10  # about the size of caches


class ProbedGroup:
    """The workloads of one group; collective the first time, as ranks then find out who shares memory.

    memory: (bytes,) uint8, walked through. sizes: of messages.
    """

    def __init__(self, group: dist.ProcessGroup, memory: torch.Tensor, sizes: Sequence[int]) -> None:
        self._group, self._memory, self._sizes = group, memory, sizes
        self._everyone = range(group.size())
        self._shared = state_of(group).part(Sharing).of(group)

    def workloads(self, places: RankHosts, thoroughly: bool) -> Iterator[ProbeWorkload]:
        """Yield all workloads, in order.

        thoroughly: also pairs of ranks alone, copies, other dtypes, and tensors in the caches.
        """
        is_alone = len(self._everyone) == 1
        if not is_alone:
            yield from self.shifts()
            yield from self.additions(torch.float32)
        if self._shared.on_one_host:
            yield from self.through_shared_memory(thoroughly)
        if thoroughly:
            yield from self.ping_pongs(places)
            yield from self.exchanges()
            yield from self.clones()
        if thoroughly and not is_alone:
            for dtype in REDUCED:
                yield from self.additions(dtype)
        if places.num_hosts > 1:
            yield from self.rested_shifts()

    def provenance(self) -> dict[str, Any]:
        if not self._shared.on_one_host:
            return {}
        return {SLOT_BYTES: self._shared.slot_bytes, TOUCHED_BYTES: len(self._memory)}

    def shifts(self) -> Iterator[ProbeWorkload]:
        for size, in_flight in [*((size, 1) for size in self._sizes), (self._sizes[0], IN_FLIGHT)]:
            rounds = self._messages(self._ring_shift(size, in_flight), self._memory, size)
            yield ProbeWorkload(ProbeKind("shift"), size, in_flight, self._everyone, rounds)

    def _ring_shift(self, size: int, in_flight: int = 1) -> Schedule:
        return shift_schedule(
            len(self._everyone), [self._everyone], ROUNDS_PER_RUN, self._groups(size * in_flight), in_flight
        )

    def _groups(self, size: int) -> int:
        return min(ROUNDS_PER_RUN, max(len(self._memory) // size, 1))

    def rested_shifts(self) -> Iterator[ProbeWorkload]:
        """Yield messages to the next rank after a pause, in which token buckets of links fill up."""
        num_ranks = len(self._everyone)
        meeting = Executor(
            build(Collective.ALL_REDUCE, "recursive_doubling", num_ranks), self._group, shares_memory=False
        )
        schedule = one_way_schedule(num_ranks, 1, reduce=True)

        def rest() -> None:
            time.sleep(PAUSE_S)
            meeting.run(torch.zeros(1))

        def shift_and_meet(shift: Rounds) -> None:
            shift()
            meeting.run(torch.zeros(1))  # a send is over when the system has taken the bytes, perhaps long before

        long = (size for size in self._sizes if RESTED_SIZES[0] <= size <= RESTED_SIZES[1])
        for size in (self._sizes[0], *long):
            rounds = partial(shift_and_meet, self._messages(schedule, self._memory, size))
            kind = ProbeKind("shift", warmth="rested")
            yield ProbeWorkload(kind, size, 1, self._everyone, rounds, rest, RESTED_CALLS)

    def ping_pongs(self, places: RankHosts) -> Iterator[ProbeWorkload]:
        """Yield ping-pongs between all neighbours on different hosts, and one pair on one host."""
        hosts = places.hosts
        across = [rank for rank in self._everyone if hosts[rank] != hosts[places.right_of(rank)]]
        within = [rank for rank in self._everyone[:-1] if hosts[rank] == hosts[rank + 1]][:1]
        for rank in sorted(across + within):
            pair = rank, places.right_of(rank)
            schedule = ping_pong_schedule(len(self._everyone), *pair, ROUNDS_PER_RUN)
            for size in self._sizes:
                rounds = self._messages(schedule, self._memory, size)
                yield ProbeWorkload(ProbeKind("ping", str(rank)), size, 1, pair, rounds)

    def exchanges(self) -> Iterator[ProbeWorkload]:
        num_ranks = len(self._everyone)
        for num_pairs in sorted({min(1, num_ranks // 2), num_ranks // 2} - {0}):
            rings = [(2 * pair, 2 * pair + 1) for pair in range(num_pairs)]
            for size in self._sizes:
                schedule = shift_schedule(num_ranks, rings, ROUNDS_PER_RUN, self._groups(size), 1)
                rounds = self._messages(schedule, self._memory, size)
                yield ProbeWorkload(ProbeKind("exchange", str(num_pairs)), size, 1, range(2 * num_pairs), rounds)

    def additions(self, dtype: torch.dtype) -> Iterator[ProbeWorkload]:
        """Yield shifts in which every rank adds in place; only the additions are timed.

        The smallest and the largest size give the rate beyond the caches.
        """
        kind = ProbeKind("reduce", "" if dtype is torch.float32 else str(dtype).removeprefix("torch."))
        for size in (self._sizes[0], self._sizes[-1]):
            add = TimedAddition()
            rounds = self._messages(self._ring_shift(size), self._memory.view(dtype), size // dtype.itemsize, add)
            yield ProbeWorkload(kind, size, 1, self._everyone, rounds, clock=add.read)

    def clones(self) -> Iterator[ProbeWorkload]:
        if len(self._memory) >= FRESH_BYTES:
            pieces = cycle(spread(self._memory, FRESH_BYTES))

            def rounds() -> None:
                for _ in range(ROUNDS_PER_RUN):
                    next(pieces).clone()

            yield ProbeWorkload(ProbeKind("fresh"), FRESH_BYTES, 1, self._everyone, rounds)

    def through_shared_memory(self, thoroughly: bool) -> Iterator[ProbeWorkload]:
        """Yield the probes of shared memory (see `ProbeKind`).

        thoroughly: also for tensors in the caches, and one more size.
        """
        num_ranks = len(self._everyone)
        shift = shift_schedule(
            num_ranks, [self._everyone], ROUNDS_PER_RUN, ROUNDS_PER_RUN, 1, Collective.REDUCE_SCATTER
        )
        copy, add = (one_way_schedule(num_ranks, ROUNDS_PER_RUN, reduce) for reduce in (False, True))
        # A reduce_scatter is out of place.
        patterns = ("shift", shift, 2 * shift.num_chunks), ("copy", copy, copy.num_chunks), ("add", add, add.num_chunks)
        most_pieces = max(num_pieces for *_, num_pieces in patterns)
        most = min(self._shared.slot_bytes // ROUNDS_PER_RUN, len(self._memory) // most_pieces) // 64 * 64
        wanted = (*self._sizes, FURTHER_SIZE) if thoroughly else self._sizes
        for pattern, schedule, num_pieces in patterns:
            for size in sorted({min(size, most) for size in wanted} - {0}):
                cached = [("cached", self._memory[: num_pieces * size])] if thoroughly else []
                for warmth, memory in (("", self._memory), *cached):
                    kind = ProbeKind(pattern, transport="shm", warmth=warmth)
                    rounds = self._published(schedule, memory.view(torch.float32), num_pieces * size // 4)
                    yield ProbeWorkload(kind, size, 1, self._everyone, rounds)

    def _messages(self, schedule: Schedule, memory: torch.Tensor, length: int, reduce: Reduce = add_one) -> Rounds:
        """Return a run of the schedule with chunks of `length` elements, each time elsewhere in the memory."""
        # Over torch.distributed, whose calls are also predicted, and where ranks without a part may be absent.
        executor = Executor(schedule, self._group, shares_memory=False)
        windows = cycle(spread(memory, schedule.num_chunks * length))
        return lambda: executor.run(next(windows), reduce=reduce)

    def _published(self, schedule: Schedule, memory: torch.Tensor, length: int) -> Rounds:
        """Return a run of the schedule on `length` elements, half of which may be the source."""
        executor = Executor(schedule, self._group)
        whole = length // 2 if schedule.collective is Collective.REDUCE_SCATTER else length
        windows = cycle([piece.split(whole) for piece in spread(memory, length)])

        def rounds() -> None:
            tensor, *source = next(windows)
            executor.run(tensor, source=source[0] if source else None)

        return rounds
