"""Too large requests are refused before they begin, by estimates; free memory is made small here."""

import tracemalloc
from collections.abc import Callable
from functools import partial

import pytest
from syrupy.assertion import SnapshotAssertion

from ringsim import Collective, Network, Schedule, predict_time, split
from ringsim.limits import SMALL_BYTES, estimated_transfers, require_memory
from ringsim.registry import ALGORITHMS, build
from ringsim.schedule import BYTES_LISTED, verify
from ringsim.schedule.flow import BYTES_PER_TRANSFER, Dependencies, dependencies
from ringsim.units import format_size
from tests.refusals import refusal_of, refused, said_by
from tests.ringsim.commands import printed

LITTLE = 2**20


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 1 MiB of free memory."""
    monkeypatch.setattr("ringsim.limits.free_bytes", lambda: LITTLE)


def test_the_message_says_what_it_takes_what_there_is_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough memory is no error; free memory is read only for large requests, as reading takes time."""
    monkeypatch.setattr("ringsim.limits.free_bytes", lambda: 0)
    require_memory("it", SMALL_BYTES)
    with refused(f"it: would take {format_size(SMALL_BYTES + 1)} of memory; 0 B is free: use fewer ranks"):
        require_memory("it", SMALL_BYTES + 1)
    monkeypatch.setattr("ringsim.limits.free_bytes", lambda: LITTLE)
    require_memory("it", LITTLE)
    with refused("it: would take 2 MiB of memory; 1 MiB is free: use fewer ranks"):
        require_memory("it", 2 * LITTLE)


RING = build(Collective.ALL_REDUCE, "ring", 64)
TRAINS = split(RING, 1024)
TOO_LARGE: list[Callable[[], object]] = [
    lambda: build(Collective.ALL_REDUCE, "direct", 128),
    lambda: build(Collective.ALL_GATHER, "direct", 128),
    lambda: build(Collective.ALL_REDUCE, "halving_doubling", 128),
    lambda: build(Collective.REDUCE_SCATTER, "halving_doubling", 255),
    lambda: build(Collective.ALL_GATHER, "recursive_doubling", 511),
    lambda: Schedule.from_columns(Collective.ALL_REDUCE, "own", 2, 1, [([0] * (2**16 + 1), 1, 0, True)]),
    lambda: verify(RING),
    lambda: predict_time(TRAINS, Network.uniform(1e-6, 1e9), 2**20),
]


@pytest.mark.usefixtures("little")
def test_what_there_is_no_memory_for_is_refused(snapshot: SnapshotAssertion) -> None:
    """Listed algorithms before their columns are made, tables and steps of users, proofs, and the steps kept."""
    assert [said_by(ValueError, make) for make in TOO_LARGE] == snapshot


HUGE = (
    "simulate --ranks 131072 --algorithm direct",
    "export --ranks 65536 --format goal -o x",
    "export --ranks 65536 --format msccl -o x",
    "verify --ranks 100000",
    "plot --ranks 1000000",
    "plot --ranks 131072",
)


def test_a_huge_request_gets_one_line(monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    """Exit code 2, at once, on a machine with 64 GiB."""
    monkeypatch.setattr("ringsim.limits.free_bytes", lambda: 2**36)
    assert {command: refusal_of(command) for command in HUGE} == snapshot


def test_algorithms_lists_what_can_be_counted() -> None:
    """The others are named below the table, with the reason."""
    lines = printed("algorithms", "--ranks", "100000", "--collective", "all_gather").splitlines()
    assert "all_gather ring skipped: 1e10 transfers, above 1e8: use fewer ranks" in lines


def test_the_estimate_is_near() -> None:
    """Within a tenth of what the built schedule has; few ranks need none, and what cannot be probed has none."""
    for collective, algorithm in ALGORITHMS:
        if collective is Collective.ALL_REDUCE:
            make = partial(build, collective, algorithm)
            assert estimated_transfers(make, 512) == pytest.approx(make(512).num_transfers, rel=0.1), algorithm
    assert estimated_transfers(lambda _: pytest.fail("built"), 256) == 0

    def only_for_1000(num_ranks: int) -> Schedule:
        raise ValueError(f"num_ranks {num_ranks}: only for 1000")

    assert estimated_transfers(only_for_1000, 1000) == 0


def test_the_size_of_a_row_is_as_stated() -> None:
    """An engine foresees by it how much memory it will take."""
    arrows = dependencies(build(Collective.ALL_REDUCE, "ring", 5))
    columns = [getattr(arrows, name) for name in Dependencies.__dataclass_fields__]
    assert sum(column.nbytes for column in columns) == BYTES_PER_TRANSFER * len(arrows)


LISTED = [
    (Collective.ALL_REDUCE, "ring"), (Collective.ALL_REDUCE, "hierarchical"), (Collective.ALL_REDUCE, "nccl_tree"),
    (Collective.BROADCAST, "ring"), (Collective.ALL_TO_ALL, "pairwise"), (Collective.ALL_TO_ALL, "direct"),
]  # fmt: skip


@pytest.mark.parametrize(("collective", "algorithm"), LISTED)
def test_a_list_takes_no_more_than_is_asked_for(collective: Collective, algorithm: str) -> None:
    """While it is made; what it is made of is not kept."""
    schedule = build(collective, algorithm, 96)
    tracemalloc.start()
    try:
        assert len(schedule.steps.table) == schedule.num_transfers
        kept, peak = tracemalloc.get_traced_memory()
        assert peak <= BYTES_LISTED * schedule.num_transfers
        assert kept <= 28 * schedule.num_transfers
    finally:
        tracemalloc.stop()
