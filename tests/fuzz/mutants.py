"""Schedules with random changes: the proof must tell right from wrong ones, and both engines must agree on all."""

import random
from dataclasses import dataclass

import numpy as np

from ringsim import Collective, Network, Schedule, ScheduleError, Transfer
from ringsim.registry import build
from ringsim.registry.algorithms import ALGORITHMS
from ringsim.schedule import replay, verify
from ringsim.schedule.collective import initial_counts, required
from ringsim.simulation.engines.step_engine import is_for_steps
from tests.ringsim.simulation.test_engines import assert_engines_agree
from tests.ringsim.topologies import private_topology

MAX_RANKS = 8
KINDS = ("drop", "double", "repeat later", "src", "dst", "chunk", "channel", "flag", "exchange steps", "exchange",
         "move", "merge")  # fmt: skip
Rows = list[list[Transfer]]


@dataclass(frozen=True)
class Edit:
    """A change of one transfer or step. Numbers beyond what there is count on from the beginning."""

    kind: str
    step: int
    row: int = 0
    other: int = 0

    def apply(self, rows: Rows, num_ranks: int, num_chunks: int) -> None:
        """Change `rows`."""
        rows[:] = [row for row in rows if row]
        if not rows:
            return
        step, other = self.step % len(rows), self.other % len(rows)
        row, last = self.row % len(rows[step]), len(rows[other]) - 1
        transfer = rows[step][row]
        match self.kind:
            case "exchange steps":
                rows[step], rows[other] = rows[other], rows[step]
            case "merge" if step != other:
                rows[step].extend(rows.pop(other))
            case "merge":
                pass
            case "move":
                rows[other].append(rows[step].pop(row))
            case "exchange":
                rows[step][row], rows[other][last] = rows[other][last], transfer
            case "drop":
                del rows[step][row]
            case "double":
                rows[step].append(transfer)
            case "repeat later":
                rows.append([transfer])
            case "flag":
                rows[step][row] = transfer._replace(reduce=not transfer.reduce)
            case _:
                limit = {"chunk": num_chunks, "channel": 3}.get(self.kind, num_ranks)
                rows[step][row] = transfer._replace(**{self.kind: self.other % limit})


@dataclass(frozen=True)
class Mutant:
    """An algorithm, changed.

    size, machine: bytes and the number of a random machine, for the engines.
    """

    collective: str
    algorithm: str
    num_ranks: int
    edits: tuple[Edit, ...] = ()
    size: int = 1000
    topology: int = 0

    def schedule(self) -> Schedule:
        """Raises ScheduleError for a transfer from a rank to itself."""
        whole = build(Collective(self.collective), self.algorithm, self.num_ranks)
        rows = [list(step) for step in whole.steps]
        for edit in self.edits:
            edit.apply(rows, self.num_ranks, whole.num_chunks)
        return Schedule.from_transfers(whole.collective, "mutant", self.num_ranks, whole.num_chunks, rows)

    def run(self) -> None:
        try:
            schedule = self.schedule()
        except ScheduleError as error:
            if "is sent to itself" not in str(error):
                raise
            return
        wrong = wrong_in_replay(schedule)
        try:
            verify(schedule)
        except ScheduleError as error:
            refused = str(error).splitlines()[0]
            assert wrong, f"verify refuses a schedule whose replay is right: {refused}"
        else:
            assert not wrong, f"verify accepts a schedule whose replay is wrong: {wrong}"
        self._run_engines(schedule)

    def _run_engines(self, schedule: Schedule) -> None:
        uniform = Network(1e-5, 1e9, 4e9, 1e-6, 2e-6).topology(self.num_ranks)
        uneven = private_topology(np.random.default_rng(self.topology), self.num_ranks)
        for topology in (uniform, uneven):
            if is_for_steps(schedule, topology):
                assert_engines_agree(schedule, topology, self.size)


class _Nothing(Exception):  # noqa: N818  it is no error, but news
    """A chunk was sent, or added to, that the rank does not hold."""


def wrong_in_replay(schedule: Schedule) -> str:
    """What is wrong with the schedule when numbers show it; "" if nothing is.

    A chunk is a number in whose digits it can be read how often each rank's contribution is in it; 0 is nothing.
    """
    shape = schedule.num_ranks, schedule.num_chunks
    base = 2 ** (schedule.num_transfers + 1)  # a transfer at most doubles a count
    digits = [base**rank for rank in range(schedule.num_ranks)]
    counts = initial_counts(schedule.collective, *shape)
    buffers = [_numbers(counts[rank], digits) for rank in range(schedule.num_ranks)]

    def held(chunk: np.ndarray) -> np.ndarray:
        if not all(chunk):
            raise _Nothing
        return chunk

    def combine(chunk: np.ndarray, arrived: np.ndarray) -> None:
        held(chunk)
        chunk += arrived

    try:
        replay(schedule, buffers, sent=held, combine=combine)
    except _Nothing:
        return "a chunk is sent, or added to, that the rank does not hold"
    wanted, must_hold = required(schedule.collective, *shape)
    expected = _numbers(wanted, digits)
    wrong = [(r, c) for r, c in np.argwhere(must_hold).tolist() if buffers[r][c] != expected[c]]
    return f"wrong (rank, chunk): {wrong[:5]}" if wrong else ""


def _numbers(counts: np.ndarray, digits: list[int]) -> np.ndarray:
    """counts: (chunk, contributor)."""
    return np.array([sum(map(int.__mul__, row, digits)) for row in counts.tolist()], dtype=object)


def draw_case(random: random.Random) -> Mutant:
    """Draw any algorithm with one to three changes, now and then none."""
    collective, algorithm = random.choice(list(ALGORITHMS))
    segments = random.choice(["", "", "", "/2", "/3"])
    return Mutant(
        collective.value,
        algorithm + segments,
        random.randint(1, 5 if segments else MAX_RANKS),
        tuple(_edit(random) for _ in range(random.choice([0, 1, 1, 1, 2, 3]))),
        random.choice([0, 1, random.randrange(100), random.randrange(10**6)]),
        random.randrange(1000),
    )


def _edit(random: random.Random) -> Edit:
    return Edit(random.choice(KINDS), random.randrange(64), random.randrange(64), random.randrange(64))
