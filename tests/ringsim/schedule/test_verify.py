"""The proof: correct schedules that it accepts and, above all, wrong ones that it refuses."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from ringsim.registry import ALGORITHMS, build
from ringsim.schedule import Collective, Schedule, ScheduleError, Steps, Transfer, replay, verify
from ringsim.schedule.collective import initial_counts, required
from tests.refusals import said_by
from tests.ringsim.strategies import listed

Rows = list[list[Transfer]]


def ring_rows(collective: Collective = Collective.ALL_REDUCE, num_ranks: int = 4) -> Rows:
    """The ring as lists that a test can damage."""
    return [list(step) for step in build(collective, "ring", num_ranks).steps]


def rebuilt(rows: Rows, collective: Collective = Collective.ALL_REDUCE, num_ranks: int = 4) -> Schedule:
    """A schedule of the damaged lists."""
    return listed(*rows, collective=collective, num_ranks=num_ranks, num_chunks=num_ranks)


def fault_of(schedule: Schedule) -> str:
    """The first line of the error that the schedule must give."""
    return said_by(ScheduleError, verify, schedule).splitlines()[0]


def changed(step: int, row: int, **fields: Any) -> Callable[[Rows], object]:
    """Give one transfer other values."""
    return lambda rows: rows[step].__setitem__(row, rows[step][row]._replace(**fields))


DAMAGES: dict[str, tuple[str, Callable[[Rows], object]]] = {
    "dropped": ("all_reduce", lambda rows: rows[0].pop(1)),
    "doubled": ("all_reduce", lambda rows: rows[0].append(rows[0][1])),
    "redirected": ("all_reduce", changed(1, 2, dst=1)),
    "not held": ("all_gather", changed(0, 2, chunk=0)),
    "added to nothing": ("all_gather", changed(0, 0, reduce=True)),
    "nothing sent": ("all_gather", lambda rows: rows.clear()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_rings(damage: str, snapshot: SnapshotAssertion) -> None:
    """With the fault, and a grid of steps downwards and ranks across that marks it in its place."""
    collective, change = DAMAGES[damage]
    rows = ring_rows(Collective(collective))
    change(rows)
    assert said_by(ScheduleError, verify, rebuilt(rows, Collective(collective))) == snapshot


@pytest.mark.parametrize(
    ("algorithm", "num_ranks"),
    [("direct", 9), ("two_shot", 64), ("halving_doubling", 9), ("halving_doubling", 64), ("ring/8", 9)],
)
def test_the_message_fits_a_terminal(algorithm: str, num_ranks: int) -> None:
    """However many ranks and chunks there are: one line, and a grid of 80 columns around the fault."""
    whole = build(Collective.ALL_REDUCE, algorithm, num_ranks)
    rows = [list(step)[: 1 if index == 0 else None] for index, step in enumerate(whole.steps)]
    with pytest.raises(ScheduleError) as error:
        verify(listed(*rows, num_ranks=num_ranks, num_chunks=whole.num_chunks))
    first, *grid = str(error.value).splitlines()
    assert len(first) < 400
    assert len(grid) > 2
    assert max(map(len, grid)) <= 80


@st.composite
def mutants(draw: st.DrawFn) -> Schedule:
    """Any algorithm with a few random changes of transfers and steps."""
    whole = build(*draw(st.sampled_from(list(ALGORITHMS))), draw(st.integers(2, 7)))
    rows = [list(step) for step in whole.steps]
    limits = {"src": whole.num_ranks, "dst": whole.num_ranks, "chunk": whole.num_chunks, "channel": 3}
    for _ in range(draw(st.integers(0, 3))):
        step, other = (draw(st.integers(0, len(rows) - 1)) for _ in range(2))
        row = draw(st.integers(0, max(len(rows[step]) - 1, 0)))
        kind = draw(st.sampled_from(["remove", "double", "repeat later", "move", "exchange", "flag", *limits]))
        if kind == "exchange":
            rows[step], rows[other] = rows[other], rows[step]
        elif rows[step]:
            transfer = rows[step].pop(row) if kind in ("remove", "move") else rows[step][row]
            if kind in ("double", "move"):
                rows[other].append(transfer)
            elif kind == "repeat later":
                rows.append([transfer])
            elif kind == "flag":
                rows[step][row] = transfer._replace(reduce=not transfer.reduce)
            elif kind in limits:
                rows[step][row] = transfer._replace(**{kind: draw(st.integers(0, limits[kind] - 1))})
    assume(all(transfer.src != transfer.dst for step in rows for transfer in step))
    return Schedule.from_transfers(whole.collective, "mutant", whole.num_ranks, whole.num_chunks, rows)


def fits_in_numbers(schedule: Schedule) -> bool:
    """Whether the replay on numbers is right, in whose digits stands how often each rank's contribution was added.

    The number 0 stands for a chunk that a rank does not hold: it must not be sent, nor may anything be added to it.
    """
    shape = schedule.collective, schedule.num_ranks, schedule.num_chunks
    base = 2**64  # a few changes do not double a count as often
    digits = np.array([base**rank for rank in range(schedule.num_ranks)], dtype=object)
    buffers = [*(initial_counts(*shape).astype(object) @ digits)]
    is_held = True

    def sent(chunk: np.ndarray) -> np.ndarray:
        nonlocal is_held
        is_held &= all(chunk)
        return chunk

    def combine(chunk: np.ndarray, arrived: np.ndarray) -> None:
        sent(chunk)
        chunk += arrived

    replay(schedule, buffers, sent=sent, combine=combine)
    counts, must_hold = required(*shape)
    return is_held and bool(((np.array(buffers) == counts.astype(object) @ digits) | ~must_hold).all())


@given(mutants())
def test_the_proof_agrees_with_numbers(schedule: Schedule) -> None:
    """A mutant is refused if and only if numbers that tell ranks apart show that it is wrong."""
    with nullcontext() if fits_in_numbers(schedule) else pytest.raises(ScheduleError):
        verify(schedule)


def altered(schedule: Schedule, column: str, value: int) -> Schedule:
    """`schedule` with a column falsified, as whoever makes a table himself could."""
    table = schedule.steps.table
    false = replace(table, **{column: np.full_like(table.src, value)})
    return replace(schedule, steps=Steps.listed(schedule.num_steps, false))


FALSE = [("channel", -1), ("src", 4), ("dst", -1), ("chunk", 9)]


def test_false_columns_are_refused(snapshot: SnapshotAssertion) -> None:
    """Numbers that would otherwise be taken for those of other ranks and chunks."""
    ring = build(Collective.ALL_REDUCE, "ring", 4)
    assert {column: fault_of(altered(ring, column, value)) for column, value in FALSE} == snapshot


def test_counts_do_not_wrap_round() -> None:
    """Doubled 31 times and added to twice, a count of 32 bits would come out right again."""
    doubling = [[Transfer(1, 2, 0, False)], [Transfer(2, 1, 0, True)]] * 31
    rows = [[Transfer(0, 1, 0, False)], *doubling, [Transfer(1, 2, 0, False)], [Transfer(2, 1, 0, True)]]
    assert "instead of 1" in fault_of(listed(*rows, collective=Collective.BROADCAST))


def test_transfers_that_bring_nothing_new_are_counted() -> None:
    """Copies of what the receiver holds already, also within a step; a sum is never one."""
    rows = [
        [Transfer(0, 1, 0, False), Transfer(0, 2, 0, False)],
        [Transfer(1, 2, 0, False), Transfer(0, 1, 1, False), Transfer(0, 1, 1, False)],
        [Transfer(1, 2, 1, False)],
    ]
    proof = verify(listed(*rows, collective=Collective.BROADCAST))
    assert proof == (3, 6, 2, (1, Transfer(1, 2, 0, False)))
    assert repr(proof).startswith("Proof(num_steps=3, num_transfers=6, num_redundant=2, first_redundant=(1, Transfer(")
    assert repr(verify(build(Collective.ALL_REDUCE, "ring", 3))) == "Proof(num_steps=4, num_transfers=12)"
