"""All ranks name the same first failure, in any order of events; one process with a store of its own."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

from collectives import CollectiveError
from collectives.runtime import failures
from collectives.runtime.errors import disagreement, naming_failures
from collectives.runtime.failures import FailureRecord, FailureRecords, first_difference

SOON_S, LATER_S = 0.3, 50.0
STOPPED = "the first rank to stop responding was rank {}"
NO_ROOM = "the first rank to fail was rank 1: MemoryError: no room"
MIXED_UP = "the ranks do not agree on what to do: ranks 0, 2: sum; rank 1: max"


class FakeGroup:
    """A rank of a group whose ranks share a store in one process."""

    def __init__(self, rank: int, num_ranks: int, store: Any) -> None:
        self.rank, self.size, self.get_group_store = lambda: rank, lambda: num_ranks, lambda: store


def records_of(num_ranks: int, store: object) -> list[FailureRecords]:
    """Return those of all ranks."""
    return [FailureRecords(FakeGroup(rank, num_ranks, store)) for rank in range(num_ranks)]  # type: ignore[arg-type]


def waiting_for(peer: int | None, call: str = "sum") -> CollectiveError:
    """The error of a rank that waited for `peer`."""
    error = CollectiveError("nothing came", peer=peer)
    error.call = call  # type: ignore[attr-defined]
    return error


def told(records: list[FailureRecords], failing: dict[int, BaseException]) -> set[str]:
    """Return the findings of the failing ranks, where all look at once."""

    def find(rank: int) -> str:
        return records[rank].first_cause(failing[rank], [getattr(failing[rank], "call", "sum")])

    with ThreadPoolExecutor(len(failing)) as threads:
        return set(threads.map(find, failing))


@pytest.fixture
def graces(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set how long ranks wait for records, SOON_S if it is not named; server: the rank that has the store."""

    def choose(server: int | None = None, **others: float) -> None:
        for name in ("GRACE_S", "TIMEOUT_GRACE_S", "LATE_GRACE_S"):
            monkeypatch.setattr(failures, name, others.get(name, SOON_S))
        monkeypatch.setattr(failures, "LIMIT_S", others.get("LIMIT_S", 2 * LATER_S))
        monkeypatch.setattr(failures, "_server_of", lambda *_: server)

    choose()
    return choose


@pytest.mark.parametrize(
    ("num_ranks", "failing", "expected"),
    [
        (2, {1: waiting_for(0)}, STOPPED.format(0)),
        (9, {rank: waiting_for(rank - 1) for rank in range(1, 9)}, STOPPED.format(0)),
        (6, {1: waiting_for(0), 2: waiting_for(0), 3: waiting_for(1), 4: waiting_for(3)}, STOPPED.format(0)),
        (3, {0: waiting_for(2), 2: waiting_for(1), 1: MemoryError("no room")}, NO_ROOM),
        (3, {0: waiting_for(2), 1: waiting_for(0, "max"), 2: waiting_for(1)}, MIXED_UP),
        (2, {0: waiting_for(1), 1: waiting_for(0)}, ""),
        (3, {0: waiting_for(None), 1: waiting_for(None)}, STOPPED.format(2)),
        (4, {0: waiting_for(None), 1: waiting_for(None)}, ""),
    ],
    ids=["pair", "chain", "tree", "own error", "different calls", "cut link", "torch's, 1 silent", "torch's, 2 silent"],
)
@pytest.mark.usefixtures("graces")
def test_all_find_the_same(num_ranks: int, failing: dict[int, BaseException], expected: str) -> None:
    """The rank that has written nothing, an error of a rank's own, what ranks called that wait for one another.

    So does one that comes late, and saw something else itself; nothing is made up.
    """
    records = records_of(num_ranks, dist.HashStore())
    assert told(records, failing) == {expected}
    if expected:
        assert records[-1].first_cause(waiting_for(1), ["sum"]) == expected


def test_the_first_of_the_last_calls_that_differs() -> None:
    """Not the call in which they find out, and only among calls that are still known of at least two of them."""
    calls = {0: ["a", "b", "x", "d"], 1: ["b", "y", "d"], 2: ["x", "d"], 3: ["z"]}
    positions = {0: 9, 1: 9, 2: 9, 3: 6}
    records = {rank: FailureRecord(0, calls[rank], positions[rank]) for rank in calls}
    expected = "ranks 0, 2: call 8, x; rank 1: call 8, y"
    assert first_difference({rank: records[rank] for rank in (0, 1, 2)}).endswith(f": {expected}")
    assert first_difference(records) == "the ranks do not agree on what to do: rank 0: call 6, a; rank 3: call 6, z"
    assert first_difference({0: records[0], 2: records[2]}) == ""
    many = disagreement([(rank, "max" if rank == 3 else "sum") for rank in range(12)])
    assert many.endswith(": ranks 0, 1, 2, 4, 5, 6, 7, 8, ...: sum; rank 3: max")


def test_an_earlier_life_of_the_store_is_forgotten(graces: Callable[..., None]) -> None:
    """As after a restart by torchrun, which keeps the store."""
    graces()
    store = dist.HashStore()
    assert told(records_of(3, store), {1: waiting_for(0), 2: waiting_for(1)}) == {STOPPED.format(0)}
    assert told(records_of(3, store), {0: waiting_for(2), 1: waiting_for(0)}) == {STOPPED.format(2)}


MAX, SUM = (json.dumps(FailureRecord(0, [call])) for call in ("max", "sum"))


@pytest.mark.parametrize(
    ("limits", "before", "event", "expected"),
    [
        ({"LATE_GRACE_S": LATER_S}, {"of 2": SUM}, ("of 1", MAX), MIXED_UP),
        ({"server": 0}, {"of 1": MAX, "of 2": SUM, "read by 1": ""}, ("read by 2", ""), MIXED_UP),
        ({"GRACE_S": LATER_S}, {}, ("first", STOPPED.format(2)), STOPPED.format(2)),
    ],
    ids=["a rank that fails late, where the others agree", "all to read from its store", "another rank's verdict"],
)
def test_what_a_rank_waits_for(
    graces: Callable[..., None], limits: dict[str, Any], before: dict[str, str], event: tuple[str, str], expected: str
) -> None:
    """Rank 0 of three waits for it, and not until a time is over."""
    graces(**limits)
    store = dist.HashStore()
    records = records_of(3, store)[0]
    for name, text in before.items():
        store.set(f"{failures.PREFIX}/1/{name}", text)
    with ThreadPoolExecutor(1) as thread:
        cause = thread.submit(records.first_cause, waiting_for(2 if "of 2" in before else 1), ["sum"])
        with pytest.raises(TimeoutError):
            cause.result(3 * SOON_S)
        store.compare_set(f"{failures.PREFIX}/1/{event[0]}", "", event[1])
        assert cause.result(LATER_S / 2) == expected


def test_who_waits_looks_ever_more_rarely() -> None:
    """Ranks of many groups may wait at once, and must not keep the cores from those whose records they wait for."""
    assert len(list(failures._polling(0.5))) <= 2 + 5 + 3  # 10, 20, 40, 80, 160 ms and the rest; a few to spare


class Store:
    """One that never answers, as where its server is stalled, or that cannot be reached."""

    def __init__(self, is_stuck: bool) -> None:
        self._is_stuck, self.over = is_stuck, threading.Event()

    def __getattr__(self, name: str) -> Callable[..., None]:
        def ask(*_: object) -> None:
            if not self._is_stuck:
                raise RuntimeError("connection refused")
            self.over.wait()

        return ask


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_store_that_does_not_answer(is_stuck: bool, graces: Callable[..., None]) -> None:
    """The error then names the neighbour alone, and does not wait for the store."""
    graces(LIMIT_S=0.05)
    store = Store(is_stuck)
    assert told(records_of(2, store), {1: waiting_for(0)}) == {""}
    store.over.set()


def test_a_failure_keeps_its_peer_and_says_its_cause_once() -> None:
    """Wherever its message is put in a larger one; an error of torch's gets one as well."""
    error, said = waiting_for(1), "^rank 0: step 3: summing: nothing came; because$"
    error.add_cause("because")
    with pytest.raises(CollectiveError, match=said) as raised, naming_failures("rank 0: step 3: summing"):
        raise error
    raised.value.add_cause("because")
    assert (str(raised.value).count("because"), raised.value.peer) == (1, 1)
    with pytest.raises(CollectiveError, match="^summing: torch's$"), naming_failures("summing"):
        raise RuntimeError("torch's\nand more")
