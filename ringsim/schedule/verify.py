"""`verify`: prove that a schedule keeps its collective's contract, by counting contributions.

The proof runs the steps one after the other and counts how often each rank's original data is in each rank's chunk. By
the rule of execution every execution has this result.

Memory: two arrays of ranks x chunks x ranks 32-bit integers, of which one may have `PROOF_BYTES`.
"""

from collections.abc import Callable
from typing import NamedTuple, NoReturn

import numpy as np

from ringsim.limits import PROOF_BYTES, require_memory
from ringsim.schedule.collective import Collective, Counts, initial_counts, required
from ringsim.schedule.partition import UnevenShares
from ringsim.schedule.replay import run
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.steps import NEVER, Ints, ScheduleError, Step, Transfer
from ringsim.schedule.user_steps import whole_numbers
from ringsim.text_table import MAX_CLAUSES, align_columns, first_named
from ringsim.units import plural

MANY = 2**29  # counts stop here: that is wrong as it is, and must not wrap round to a right number


class Proof(NamedTuple):
    """The result of `verify`.

    num_redundant: the number of transfers that copy data that the receiver already holds.
    first_redundant: the first of them, and its step.
    """

    num_steps: int
    num_transfers: int
    num_redundant: int = 0
    first_redundant: tuple[int, Transfer] | None = None

    def __repr__(self) -> str:
        shown = self._asdict() if self.num_redundant else {name: getattr(self, name) for name in self._fields[:2]}
        return f"Proof({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def verify(schedule: Schedule, on_progress: Callable[[int], object] = lambda _: None) -> Proof:
    """Prove that every rank ends with the data that the collective requires, each contribution counted once.

    Also checks that `partition` covers tensors of several lengths. on_progress: called with the number of steps since
    its last call.

    Raises ScheduleError with the place, the rule and the rank x step grid with the fault marked in it, and ValueError
    if the proof would not fit into memory.

        >>> from ringsim import Collective, Schedule, Transfer, verify
        >>> swap = [[Transfer(0, 1, 0, True), Transfer(1, 0, 0, True)]]
        >>> verify(Schedule.from_transfers(Collective.ALL_REDUCE, "swap", 2, 1, swap))
        Proof(num_steps=1, num_transfers=2)
    """
    needed = 4 * schedule.num_ranks**2 * schedule.num_chunks
    if needed > PROOF_BYTES:
        raise ValueError(
            f"{schedule}: its proof needs {needed / 2**30:.0f} GiB of counts, more than {PROOF_BYTES / 2**30:.0f} GiB; "
            "prove it for fewer ranks"
        )
    require_memory(f"{schedule}: its proof", 2 * needed)
    require_equal_shares(schedule)
    _check_partition(schedule)
    counts = _Counts(schedule)
    for _ in run(schedule, counts):
        on_progress(1)
    counts.check_contract()
    return Proof(schedule.num_steps, schedule.num_transfers, counts.num_redundant, counts.first_redundant)


def require_equal_shares(schedule: Schedule) -> None:
    """Raise ScheduleError unless all shares have equally many chunks."""
    collective, num_ranks = schedule.collective, schedule.num_ranks
    if schedule.num_chunks % collective.num_shares(num_ranks):
        count = "square of the number" if collective is Collective.ALL_TO_ALL else "number"
        raise ScheduleError(
            f"{schedule}: {schedule.num_chunks} chunks cannot be divided equally; the number of chunks must be a "
            f"multiple of the {count} of ranks"
        )


def _check_partition(schedule: Schedule) -> None:
    num_ranks, num_chunks = schedule.num_ranks, schedule.num_chunks
    num_shares, place = schedule.collective.num_shares(num_ranks), f"{schedule}: partition"
    for num_elements in (0, 1, num_ranks, 5 * num_ranks, num_chunks - 1, num_chunks, 3 * num_chunks + 1):
        bounds = _bounds(schedule, num_elements)
        fits = bounds.shape == (num_chunks + 1,) and (bounds[0], bounds[-1]) == (0, num_elements)
        if not (fits and (np.diff(bounds) >= 0).all()):
            rule = f"must rise from 0 to {num_elements}, and be {num_chunks + 1}"
            raise ScheduleError(
                f"{place}: the bounds of {num_elements} elements in {plural(num_chunks, 'chunk')} {rule}"
            )
        if num_elements % num_shares == 0 and not isinstance(schedule.partition, UnevenShares):
            shares = np.diff(bounds[:: num_chunks // num_shares])
            if (shares != num_elements // num_shares).any():
                raise ScheduleError(f"{place}: {num_elements} elements are not divided equally among the ranks")


def _bounds(schedule: Schedule, num_elements: int) -> Ints:
    place = f"{schedule}: partition: for {num_elements} elements in {plural(schedule.num_chunks, 'chunk')}"
    try:
        bounds = schedule.bounds(num_elements)
    except Exception as error:
        raise ScheduleError(f"{place}: it raised {' '.join(f'{type(error).__name__}: {error}'.split())}") from error
    try:
        return whole_numbers("bounds", bounds)
    except ValueError as error:
        raise ScheduleError(f"{place}: {error}") from None


class _Counts:
    """A state for `run` that counts contributions, (rank, chunk, contributor)."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._counts = initial_counts(schedule.collective, schedule.num_ranks, schedule.num_chunks)
        self._last_write: dict[tuple[int, int], int] = {}
        self._first_double: dict[tuple[int, int], int] = {}
        self.num_redundant = 0
        self.first_redundant: tuple[int, Transfer] | None = None

    def read(self, step: int, transfer: Transfer) -> Counts:
        self._check_range(step, transfer)
        src, dst, chunk, *_ = transfer
        counts: Counts = self._counts[src, chunk].copy()
        if not counts.any():
            fault = f"chunk {chunk} is sent to rank {dst}, but rank {src} does not hold it"
            self._fail(step, src, fault, marked=dst)  # in the grid, sends stand where they are received
        return counts

    def write(self, step: int, transfer: Transfer, counts: Counts) -> None:
        _, dst, chunk, reduce, _ = transfer
        held = self._counts[dst, chunk]
        if reduce:
            if not held.any():
                self._fail(step, dst, f"chunk {chunk} is added to, but the rank does not hold it")
            np.minimum(held + counts, MANY, out=held)
            if (held > 1).any():
                self._first_double.setdefault((dst, chunk), step)
        elif held.tobytes() == counts.tobytes():  # the quickest way to compare a few numbers
            self.num_redundant += 1
            self.first_redundant = self.first_redundant or (step, transfer)
        else:
            held[:] = counts
        self._last_write[dst, chunk] = step

    def _check_range(self, step: int, transfer: Transfer) -> None:
        num_ranks, num_chunks = self._schedule.num_ranks, self._schedule.num_chunks
        if not (0 <= transfer.src < num_ranks and 0 <= transfer.dst < num_ranks and 0 <= transfer.chunk < num_chunks):
            ranges = f"a rank not in 0..{num_ranks - 1} or a chunk not in 0..{num_chunks - 1}"
            self._fail(step, None, f"{transfer} names {ranges}")
        if transfer.channel < 0:
            self._fail(step, transfer.src, f"chunk {transfer.chunk} is sent on channel {transfer.channel}, below 0")
        if transfer.src == transfer.dst:
            self._fail(step, transfer.src, f"chunk {transfer.chunk} is sent to the rank itself")

    def check_contract(self) -> None:
        counts, must_hold = required(self._schedule.collective, self._schedule.num_ranks, self._schedule.num_chunks)
        wrong = (self._counts != counts).any(axis=2) & must_hold
        if not wrong.any():
            return
        faults = [(int(rank), int(chunk)) for rank, chunk in np.argwhere(wrong)]
        rank, chunk = min(faults, key=lambda fault: self._first_double.get(fault, self._schedule.num_steps))
        held = self._counts[rank, chunk]
        parts = [
            f"rank {other} counted {held[other]} times instead of {counts[chunk, other]}"
            for other in np.flatnonzero(held != counts[chunk])
        ]
        listed = ", ".join(first_named(parts, "more such ranks", MAX_CLAUSES))
        step = self._first_double.get((rank, chunk), self._last_write.get((rank, chunk), NEVER))
        place = "never written" if step == NEVER else f"see step {step}"
        self._fail(step, rank, f"chunk {chunk} ends with {listed} ({place}; {len(faults)} such chunks)")

    def _fail(self, step: int, rank: int | None, fault: str, marked: int | None = None) -> NoReturn:
        where = "at the start" if step == NEVER else f"step {step}"
        place = where if rank is None else f"{where}, rank {rank}"
        message = f"{self._schedule}: {place}: {fault}"
        raise ScheduleError(f"{message}\n{draw_grid(self._schedule, step, rank if marked is None else marked)}")


MAX_STEPS = 8  # steps shown before and after the marked one
MAX_RANKS = 8  # ranks shown on either side of the marked one, if there is room for them
MAX_TRANSFERS = 3  # shown in a cell
WIDTH = 80  # columns of a terminal


def draw_grid(schedule: Schedule, marked_step: int, marked_rank: int | None) -> str:
    """Return the steps x ranks around one cell, marked with `>`; as many ranks as fit into 80 columns."""
    steps = _window(marked_step, schedule.num_steps, MAX_STEPS)
    cells = {index: received_chunks(schedule.steps[index]) for index in steps}
    for reach in range(MAX_RANKS, -1, -1):
        ranks = _window(marked_rank or 0, schedule.num_ranks, reach)
        rows = [["step", *(f"rank {rank}" for rank in ranks)]]
        for index, received in cells.items():
            marked = marked_rank if index == marked_step else None
            rows.append([str(index), *(_cell(received.get(rank, []), rank == marked) for rank in ranks)])
        lines = align_columns(rows)
        if max(map(len, lines)) <= WIDTH:
            break
    return "\n".join([*lines, "(c3+r1: chunk 3 from rank 1 is added; c3=r1: it overwrites; >: the fault)"])


def _window(centre: int, length: int, reach: int) -> range:
    return range(max(0, centre - reach), min(length, centre + reach + 1))


def received_chunks(step: Step, blank: str = "") -> dict[int, list[str]]:
    """Return the chunks that each rank receives in a step, such as c3+r1; blank: the text around the sign."""
    cells: dict[int, list[str]] = {}
    for src, dst, chunk, reduce, _ in step:
        cells.setdefault(dst, []).append(f"c{chunk}{blank}{'+' if reduce else '='}{blank}r{src}")
    return cells


def _cell(received: list[str], marked: bool) -> str:
    shown = received[:MAX_TRANSFERS]
    if len(received) > MAX_TRANSFERS:
        shown.append(f"+{len(received) - MAX_TRANSFERS} more")
    return (">" if marked else " ") + (" ".join(shown) or ".")
