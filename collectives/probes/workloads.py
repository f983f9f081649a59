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
    """Return a clock of elapsed seconds, and one of core-seconds of all threads of this rank."""
    return time.perf_counter(), time.process_time()


class TimedAddition:
    """Adds as collectives do, and is a clock of the additions alone.

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
        """Return the seconds of all additions, elapsed and of a core."""
        return self._elapsed_s, self._of_core_s


class ProbeWorkload(NamedTuple):
    """The work of the ranks in one probe.

    ranks: that take part. rounds: executes ROUNDS_PER_RUN rounds, or one call if there is a `before`.
    before: executed before each call and not timed; then all ranks must take part. calls: in a block.
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
    """Return a schedule in which every rank sends the next one `rounds` new chunks, which are not forwarded."""
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


def shifts(group: dist.ProcessGroup, memory: torch.Tensor, sizes: Sequence[int]) -> Iterator[ProbeWorkload]:
    """Yield messages from every rank to the next, of each size, and several at a time of the smallest."""
    if group.size() == 1:
        return
    for size, in_flight in [*((size, 1) for size in sizes), (sizes[0], IN_FLIGHT)]:
        schedule = _ring_shift(group.size(), len(memory), size, in_flight)
        rounds = _messages(schedule, group, memory, size)
        yield ProbeWorkload(ProbeKind("shift"), size, in_flight, range(group.size()), rounds)


def _ring_shift(num_ranks: int, memory_bytes: int, size: int, in_flight: int) -> Schedule:
    groups = min(ROUNDS_PER_RUN, max(memory_bytes // (in_flight * size), 1))
    return shift_schedule(num_ranks, [range(num_ranks)], ROUNDS_PER_RUN, groups, in_flight)


def rested_shifts(group: dist.ProcessGroup, memory: torch.Tensor, sizes: Sequence[int]) -> Iterator[ProbeWorkload]:
    """Yield messages from every rank to the next after a pause, in which token buckets of links fill up."""
    num_ranks = group.size()
    meeting = Executor(build(Collective.ALL_REDUCE, "recursive_doubling", num_ranks), group, shares_memory=False)
    schedule = one_way_schedule(num_ranks, 1, reduce=True)

    def rest() -> None:
        time.sleep(PAUSE_S)
        meeting.run(torch.zeros(1))

    def shift_and_meet(shift: Rounds) -> None:
        shift()
        meeting.run(torch.zeros(1))  # a send is over when the system has taken the bytes, perhaps long before

    for size in (sizes[0], *(size for size in sizes if RESTED_SIZES[0] <= size <= RESTED_SIZES[1])):
        rounds = partial(shift_and_meet, _messages(schedule, group, memory, size))
        kind = ProbeKind("shift", warmth="rested")
        yield ProbeWorkload(kind, size, 1, range(num_ranks), rounds, rest, RESTED_CALLS)


def ping_pongs(
    group: dist.ProcessGroup, memory: torch.Tensor, sizes: Sequence[int], places: RankHosts
) -> Iterator[ProbeWorkload]:
    """Yield ping-pongs between all neighbours on different hosts, and one pair on one host."""
    num_ranks, hosts = group.size(), places.hosts
    across = [rank for rank in range(num_ranks) if hosts[rank] != hosts[places.right_of(rank)]]
    within = [rank for rank in range(num_ranks - 1) if hosts[rank] == hosts[rank + 1]][:1]
    for rank in sorted(across + within):
        pair = rank, places.right_of(rank)
        schedule = ping_pong_schedule(num_ranks, *pair, ROUNDS_PER_RUN)
        for size in sizes:
            rounds = _messages(schedule, group, memory, size)
            yield ProbeWorkload(ProbeKind("ping", str(rank)), size, 1, pair, rounds)


def bidirectional(group: dist.ProcessGroup, memory: torch.Tensor, sizes: Sequence[int]) -> Iterator[ProbeWorkload]:
    """Yield exchanges of one pair of neighbours, and of all pairs at once: bidirectional bandwidth."""
    for num_pairs in sorted({1, group.size() // 2} - {0}) if group.size() > 1 else ():
        rings = [(2 * pair, 2 * pair + 1) for pair in range(num_pairs)]
        for size in sizes:
            groups = min(ROUNDS_PER_RUN, max(len(memory) // size, 1))
            schedule = shift_schedule(group.size(), rings, ROUNDS_PER_RUN, groups, 1)
            rounds = _messages(schedule, group, memory, size)
            yield ProbeWorkload(ProbeKind("exchange", str(num_pairs)), size, 1, range(2 * num_pairs), rounds)


def _messages(
    schedule: Schedule, group: dist.ProcessGroup, memory: torch.Tensor, length: int, reduce: Reduce = add_one
) -> Rounds:
    """Return a run of the schedule with chunks of `length` elements, each time elsewhere in the memory."""
    # Over torch.distributed, whose calls are also predicted, and where ranks without a part may be absent.
    executor = Executor(schedule, group, shares_memory=False)
    windows = cycle(spread(memory, schedule.num_chunks * length))
    return lambda: executor.run(next(windows), reduce=reduce)


def additions(
    group: dist.ProcessGroup, memory: torch.Tensor, sizes: Sequence[int], dtype: torch.dtype
) -> Iterator[ProbeWorkload]:
    """Yield shifts in which every rank adds in place; only the additions are timed.

    The smallest and the largest size give the rate beyond the caches.
    """
    if group.size() == 1:
        return
    held = memory[: len(memory) // 4 * 4].view(dtype)
    kind = ProbeKind("reduce", "" if dtype is torch.float32 else str(dtype).removeprefix("torch."))
    for size in (sizes[0], sizes[-1]):
        schedule = _ring_shift(group.size(), held.nbytes, size, 1)
        add = TimedAddition()
        rounds = _messages(schedule, group, held, size // dtype.itemsize, add)
        yield ProbeWorkload(kind, size, 1, range(group.size()), rounds, clock=add.read)


def clones(num_ranks: int, memory: torch.Tensor) -> Iterator[ProbeWorkload]:
    """Yield copies into new memory, if tensors are long enough to get it."""
    if len(memory) >= FRESH_BYTES:
        pieces = cycle(spread(memory, FRESH_BYTES))

        def rounds() -> None:
            for _ in range(ROUNDS_PER_RUN):
                next(pieces).clone()

        yield ProbeWorkload(ProbeKind("fresh"), FRESH_BYTES, 1, range(num_ranks), rounds)


_FURTHER_SIZES = (256 * 2**10,)  # about the size of caches


def shared_memory_sizes(group: dist.ProcessGroup, memory: torch.Tensor) -> dict[str, Any]:
    """Return a rank's slot size and touched bytes, for the provenance, if all ranks share memory."""
    shared = state_of(group).part(Sharing).of(group)
    if not shared.on_one_host:
        return {}
    return {SLOT_BYTES: shared.slot_bytes, TOUCHED_BYTES: len(memory)}


def shared_memory_probes(
    group: dist.ProcessGroup, memory: torch.Tensor, sizes: Sequence[int], thoroughly: bool
) -> Iterator[ProbeWorkload]:
    """Yield the probes of shared memory (see `ProbeKind`), if all ranks share it; collective the first time.

    thoroughly: also for tensors in the caches, and one more size.
    """
    shared = state_of(group).part(Sharing).of(group)
    if not shared.on_one_host:
        return
    num_ranks, ring = group.size(), [range(group.size())]
    schedules = {
        "shift": shift_schedule(num_ranks, ring, ROUNDS_PER_RUN, ROUNDS_PER_RUN, 1, Collective.REDUCE_SCATTER),
        "copy": one_way_schedule(num_ranks, ROUNDS_PER_RUN, reduce=False),
        "add": one_way_schedule(num_ranks, ROUNDS_PER_RUN, reduce=True),
    }
    most_chunks = max(_num_pieces(schedule) for schedule in schedules.values())
    most = min(shared.slot_bytes // ROUNDS_PER_RUN, len(memory) // most_chunks) // 64 * 64
    wanted = (*sizes, *_FURTHER_SIZES) if thoroughly else sizes
    for pattern, schedule in schedules.items():
        kind = ProbeKind(pattern, transport="shm")
        for size in sorted({min(size, most) for size in wanted} - {0}):
            yield _published(kind, schedule, group, memory, size)
            if thoroughly:
                same = memory[: _num_pieces(schedule) * size]
                yield _published(kind._replace(warmth="cached"), schedule, group, same, size)


def _num_pieces(schedule: Schedule) -> int:
    """Return how many chunks of memory a run needs; a reduce_scatter is out of place."""
    return schedule.num_chunks * (2 if schedule.collective is Collective.REDUCE_SCATTER else 1)


def _published(
    kind: ProbeKind, schedule: Schedule, group: dist.ProcessGroup, memory: torch.Tensor, size: int
) -> ProbeWorkload:
    executor = Executor(schedule, group)
    windows = cycle(spread(memory[: len(memory) // 4 * 4].view(torch.float32), _num_pieces(schedule) * size // 4))
    length = schedule.num_chunks * size // 4

    def rounds() -> None:
        window = next(windows)
        executor.run(window[:length], source=window[length:] if len(window) > length else None)

    return ProbeWorkload(kind, size, 1, range(group.size()), rounds)
