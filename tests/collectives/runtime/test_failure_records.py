"""Which rank failed first, as all others say."""

import datetime
import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import collectives
from collectives import CollectiveError
from collectives.calls.reduction import Reduction
from collectives.runtime import failures
from collectives.runtime.errors import disagreement
from collectives.runtime.failures import FailureRecord, FailureRecords, first_difference
from tests.ranks import RankPool, group_on, run_forked_ranks


class FakeGroup:
    """A rank of a group whose ranks share a store in one process."""

    def __init__(self, rank: int, num_ranks: int, store: object) -> None:
        self._rank, self._num_ranks, self._store = rank, num_ranks, store

    def rank(self) -> int:
        """Of this one."""
        return self._rank

    def size(self) -> int:
        """How many there are."""
        return self._num_ranks

    def get_group_store(self) -> object:
        """Return the store that all ranks share."""
        return self._store


def told(num_ranks: int, failing: dict[int, BaseException], store: object | None = None) -> dict[int, str]:
    """Return the finding of each failing rank, where all look at once."""
    store = store or dist.HashStore()
    records = [FailureRecords(FakeGroup(rank, num_ranks, store)) for rank in range(num_ranks)]  # type: ignore[arg-type]
    found: dict[int, str] = {}

    def ask(rank: int, error: BaseException) -> None:
        found[rank] = records[rank].first_cause(error, [getattr(error, "call", "sum")])

    threads = [threading.Thread(target=ask, args=item) for item in failing.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def waiting_for(peer: int | None, call: str = "sum") -> CollectiveError:
    """The error of a rank that waited for `peer`."""
    error = CollectiveError("nothing came", peer=peer)
    error.call = call  # type: ignore[attr-defined]
    return error


STOPPED = "the first rank to stop responding was rank {}"


@pytest.mark.parametrize("num_ranks", [2, 3, 5, 9])
def test_the_end_of_the_chain(num_ranks: int) -> None:
    """Each rank waited for the one before it; the one that has written nothing is named by all."""
    found = told(num_ranks, {rank: waiting_for(rank - 1) for rank in range(1, num_ranks)})
    assert found == {rank: STOPPED.format(0) for rank in range(1, num_ranks)}


def test_a_rank_that_failed_by_itself() -> None:
    """Its own error is told to those who waited for it."""
    found = told(3, {0: waiting_for(2), 2: waiting_for(1), 1: MemoryError("no room")})
    assert set(found.values()) == {"the first rank to fail was rank 1: MemoryError: no room"}


def test_ranks_that_wait_for_one_another() -> None:
    """They were doing different things, and each is told which."""
    found = told(3, {0: waiting_for(2, "sum"), 1: waiting_for(0, "max"), 2: waiting_for(1, "sum")})
    assert set(found.values()) == {"the ranks do not agree on what to do: ranks 0, 2: sum; rank 1: max"}


def test_the_first_of_the_last_calls_that_differs() -> None:
    """Not the call in which they find out, and only among calls that are still known of at least two of them."""
    calls = {0: ["a", "b", "x", "d"], 1: ["b", "y", "d"], 2: ["x", "d"], 3: ["z"]}
    positions = {0: 9, 1: 9, 2: 9, 3: 6}
    records = {rank: FailureRecord(0, calls[rank], positions[rank]) for rank in calls}
    expected = "ranks 0, 2: call 8, x; rank 1: call 8, y"
    assert first_difference({rank: records[rank] for rank in (0, 1, 2)}).endswith(f": {expected}")
    assert first_difference(records) == "the ranks do not agree on what to do: rank 0: call 6, a; rank 3: call 6, z"
    assert first_difference({0: records[0], 2: records[2]}) == ""


def test_ranks_that_wait_for_one_another_and_agree() -> None:
    """As when a link between two of them is cut: nothing is made up."""
    assert told(2, {0: waiting_for(1), 1: waiting_for(0)}) == {0: "", 1: ""}


def test_a_rank_that_fails_late_is_waited_for_where_the_others_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the one that has called something else."""
    monkeypatch.setattr(failures, "TIMEOUT_GRACE_S", 0.05)
    monkeypatch.setattr(failures, "LATE_GRACE_S", 50.0)
    monkeypatch.setattr(failures, "LIMIT_S", 60.0)
    store = dist.HashStore()
    records = FailureRecords(FakeGroup(0, 3, store))  # type: ignore[arg-type]
    store.set(records._key(2), json.dumps(FailureRecord(0, ["sum"])))
    with ThreadPoolExecutor(1) as thread:
        cause = thread.submit(records.first_cause, waiting_for(2), ["sum"])
        with pytest.raises(TimeoutError):
            cause.result(0.3)
        store.set(records._key(1), json.dumps(FailureRecord(0, ["max"])))
        assert cause.result(50) == "the ranks do not agree on what to do: ranks 0, 2: sum; rank 1: max"


def test_the_only_rank_that_says_nothing() -> None:
    """Where no error names a peer, as torch's do not."""
    found = told(3, {0: waiting_for(None), 1: waiting_for(None)})
    assert set(found.values()) == {STOPPED.format(2)}
    assert told(4, {0: waiting_for(None), 1: waiting_for(None)}) == {0: "", 1: ""}  # 2 or 3


def test_who_comes_late_is_told_the_same() -> None:
    """Whatever it has seen itself."""
    store = dist.HashStore()
    records = [FailureRecords(FakeGroup(rank, 4, store)) for rank in range(4)]  # type: ignore[arg-type]
    assert records[1].first_cause(waiting_for(0), ["sum"]) == STOPPED.format(0)
    assert records[3].first_cause(waiting_for(2), ["sum"]) == STOPPED.format(0)


def test_an_earlier_life_of_the_store_is_forgotten() -> None:
    """As after a restart by torchrun, which keeps the store."""
    store = dist.HashStore()
    assert set(told(3, {1: waiting_for(0), 2: waiting_for(1)}, store).values()) == {STOPPED.format(0)}
    assert set(told(3, {0: waiting_for(2), 1: waiting_for(0)}, store).values()) == {STOPPED.format(2)}


def test_who_serves_the_store_waits_for_all_where_nobody_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the last one that reads there finds nothing, as when ranks have mixed up their calls."""
    monkeypatch.setattr(failures, "_server_of", lambda *_: 0)
    monkeypatch.setattr(failures, "LIMIT_S", 60.0)
    store = dist.HashStore()
    serving = FailureRecords(FakeGroup(0, 3, store))  # type: ignore[arg-type]
    for rank, call in (1, "max"), (2, "sum"):
        store.set(serving._key(rank), json.dumps(FailureRecord(0, [call])))
    store.set(serving._reader_key(1), "")
    with ThreadPoolExecutor(1) as thread:
        cause = thread.submit(serving.first_cause, waiting_for(1), ["sum"])
        with pytest.raises(TimeoutError):
            cause.result(0.3)
        store.set(serving._reader_key(2), "")
        assert cause.result(30) == "the ranks do not agree on what to do: ranks 0, 2: sum; rank 1: max"


def test_who_waits_hears_of_what_another_rank_has_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when the time for a record is over that may never come."""
    monkeypatch.setattr(failures, "GRACE_S", 300.0)
    monkeypatch.setattr(failures, "LIMIT_S", 60.0)
    store = dist.HashStore()
    records = FailureRecords(FakeGroup(1, 3, store))  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as thread:
        cause = thread.submit(records.first_cause, waiting_for(0), ["sum"])
        store.wait([records._key(1)])
        store.compare_set(records._verdict_key(), "", STOPPED.format(2))
        assert cause.result(50) == STOPPED.format(2)


def test_who_waits_looks_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of many groups may wait at once, and must not keep the cores from those whose records they wait for."""
    monkeypatch.setattr(failures, "GRACE_S", 0.5)
    looks: list[str] = []
    read = FailureRecords._read
    monkeypatch.setattr(FailureRecords, "_read", lambda self, rank: looks.append("one") or read(self, rank))
    assert told(2, {1: waiting_for(0)}) == {1: STOPPED.format(0)}
    assert len(looks) <= 2 + 5 + 3  # 10, 20, 40, 80, 160 ms and then the rest of the half second; a few to spare


class Stuck:
    """A store that never answers, as one whose server is stalled."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.over.wait() and None


class Gone:
    """A store that cannot be reached."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        def ask(*_: object) -> None:
            raise RuntimeError("connection refused")

        return ask


def test_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error then names the neighbour alone, and does not wait for the store."""
    monkeypatch.setattr(failures, "LIMIT_S", 0.05)
    stuck = Stuck()
    assert told(2, {1: waiting_for(0)}, stuck) == {1: ""}
    stuck.over.set()
    assert told(2, {1: waiting_for(0)}, Gone()) == {1: ""}


def test_a_record_as_it_is_written() -> None:
    """A record that one rank writes is read as it was by another one."""
    record = FailureRecord(3, ["all_reduce of 3", "all_reduce of 4"], 17, "", timed_out=True)
    assert FailureRecord(*json.loads(json.dumps(record))) == record


def test_disagreement() -> None:
    """Nothing if all say the same; else who says what, of many ranks the first few."""
    assert disagreement([(0, "sum"), (1, "sum")]) == ""
    assert disagreement([]) == ""
    many = disagreement([(rank, "max" if rank == 3 else "sum") for rank in range(12)])
    assert many.endswith(": ranks 0, 1, 2, 4, 5, 6, 7, 8, ...: sum; rank 3: max")


def struck(group: dist.ProcessGroup, backend: str, victim: int, before: int) -> str:
    """Return the error of this rank when the victim leaves after some calls."""
    on = group_on(backend, group.size())
    for index in range(100):
        if (group.rank(), index) == (victim, before):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            if backend == "ring":
                dist.all_reduce(torch.ones(1000), group=on)
            else:
                collectives.all_reduce(torch.ones(1000), group=on, async_op=True).wait()
        except CollectiveError as error:
            return str(error)
    return "nothing was raised"


def failed_by_itself(group: dist.ProcessGroup) -> str:
    """Rank 1 runs out of memory in the middle of a call."""
    collectives.all_reduce(torch.ones(10), group=group)
    if group.rank() == 1:
        Reduction.finish = _no_room  # type: ignore[method-assign]
    try:
        for _ in range(3):
            collectives.all_reduce(torch.ones(10), group=group)
    except (CollectiveError, MemoryError) as error:
        return str(error)
    return "nothing was raised"


def _no_room(*_: object) -> None:
    raise MemoryError("no room")


def test_all_name_the_rank_that_failed_by_itself() -> None:
    """And are told its error."""
    with RankPool(3, peer_timeout_s=4.0) as pool:
        first, own, last = pool.run(failed_by_itself, timeout_s=60)
    assert own == "no room"
    assert first.endswith("; the first rank to fail was rank 1: MemoryError: no room")
    assert last.endswith("; the first rank to fail was rank 1: MemoryError: no room")


def trained(group: dist.ProcessGroup, _: str, victim: int, step: int) -> str:
    """DistributedDataParallel with the hook, whose buffers torch broadcasts; the victim leaves before a step."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model = DistributedDataParallel(model, process_group=group)
    model.register_comm_hook(collectives.HookState(group), collectives.ddp_comm_hook)
    for index in range(10):
        if (group.rank(), index) == (victim, step):
            os._exit(0)
        try:
            with collectives.explain_failures(group):
                model(torch.ones(4, 4)).sum().backward()
        except CollectiveError as error:
            return str(error)
    return "nothing was raised"


@pytest.mark.parametrize(
    ("case", "num_ranks", "backend", "victim", "before"),
    [
        (struck, 5, "gloo", 0, 0),
        (struck, 5, "ring", 2, 0),
        pytest.param(struck, 5, "gloo", 4, 7, marks=pytest.mark.slow),
        (trained, 3, "gloo", 0, 0),
        pytest.param(trained, 3, "gloo", 2, 2, marks=pytest.mark.slow),
    ],
)
def test_all_name_the_rank_that_died(
    case: Callable[..., str], num_ranks: int, backend: str, victim: int, before: int
) -> None:
    """In a ring of five, in which three never see its connection close; and in broadcasts that torch's DDP sends."""
    with RankPool(num_ranks, peer_timeout_s=20.0, backends=("gloo", "ring")) as pool:
        survivors = [rank for rank in range(num_ranks) if rank != victim]
        pool.start(case, backend, victim, before)
        answers = pool.answers(survivors, timeout_s=60)
    assert sorted(answers) == survivors, "a rank hangs"
    for _, message in answers.values():
        assert message.endswith(f"; the first rank to stop responding was rank {victim}")


def served_by_rank_0(rank: int, fault: str, folder: Path) -> None:
    """A job that meets in rank 0's store; every rank leaves at its first error, which is then in a file.

    fault: of rank 1, which dies or calls something else.
    """
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
    collectives.all_reduce(torch.ones(100), dist.ReduceOp.MAX)
    for index in range(20):
        if (rank, index, fault) == (1, 3, "death"):
            os._exit(0)
        try:
            another = (rank, index, fault) == (1, 3, "another call")
            collectives.all_reduce(torch.ones(100), dist.ReduceOp.MAX if another else dist.ReduceOp.SUM)
        except CollectiveError as error:
            (folder / f"rank{rank}").write_text(str(error))
            os._exit(3)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("death", "the first rank to stop responding was rank 1"),
        (
            "another call",
            "the ranks do not agree on what to do: "
            "ranks 0, 2, 3: call 5, all_reduce of 100 elements of torch.float32, SUM, algorithm ring; "
            "rank 1: call 5, all_reduce of 100 elements of torch.float32, MAX, algorithm ring",
        ),
    ],
)
def test_the_rank_that_serves_the_store_stays_until_all_have_read(fault: str, expected: str, tmp_path: Path) -> None:
    """Rank 0 loses its neighbour, and leaves, and takes the store with it, only after the others know."""
    codes = run_forked_ranks(4, 120, served_by_rank_0, fault, tmp_path)
    assert codes == [3, 0 if fault == "death" else 3, 3, 3]
    messages = [path.read_text() for path in tmp_path.iterdir()]
    assert len(messages) == codes.count(3)
    for message in messages:
        assert message.endswith(f"; {expected}")
