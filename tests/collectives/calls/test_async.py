"""Asynchronous calls: several under way, of several groups, from several threads; and on streams that take notes."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import collectives
from collectives.calls.functions import all_reduce_coalesced
from collectives.runtime import CollectiveQueue, queue, state_of
from collectives.runtime.queue import StreamSync
from tests.forked import Leaving
from tests.ranks import RankPool, Ranks
from tests.refusals import said_by


def called_back_in_order(group: dist.ProcessGroup) -> list[list[int]]:
    """The order in which calls of two groups, of any length, are called back; nobody waits for them."""
    groups, order = (group, dist.group.WORLD), ([], [])
    for index in range(60):
        tensor = torch.ones(index * 977 % 20_011)
        work = collectives.all_reduce(tensor, group=groups[index % 2], async_op=True)
        work.get_future().then(lambda _, index=index: order[index % 2].append(index))
    for each in groups:
        collectives.barrier(each, async_op=True).get_future().wait()  # so that all earlier callbacks are through
    return list(order)


def test_calls_end_in_the_order_of_their_group(trio: RankPool) -> None:
    """And are all called back; tests/fuzz waits for calls of several groups in any order."""
    assert trio.run(called_back_in_order) == [[[*range(0, 60, 2)], [*range(1, 60, 2)]]] * 3


def held_up(group: dist.ProcessGroup) -> threading.Event:
    """Let the group's queue do nothing until the event is set."""
    gate = threading.Event()

    def wait() -> None:
        assert gate.wait(10)

    state_of(group).part(CollectiveQueue).start(wait, [])
    return gate


def lists_cleared(group: dist.ProcessGroup) -> list[list[float]]:
    """Return the results of calls whose lists the program changes while they are in the queue."""
    gate = held_up(group)
    output, gathered, summed = torch.zeros(1), [torch.zeros(1), torch.zeros(1)], [torch.ones(1), torch.ones(1)]
    shares, kept, options = [torch.ones(1), torch.ones(1)], [*gathered, *summed], {"group": group, "async_op": True}
    scattered = collectives.reduce_scatter(output, shares, **options)
    works = [scattered, collectives.all_gather(gathered, torch.full((1,), 3.0), **options)]
    works.append(all_reduce_coalesced(summed, **options))
    shares[:] = [torch.full((1,), 100.0)] * 2
    gathered.clear()
    summed.clear()
    gate.set()
    for work in works:
        work.wait()
    return [tensor.tolist() for tensor in (output, *kept)]


def test_a_call_keeps_the_tensors_of_its_lists(trio: RankPool) -> None:
    """A call uses the tensors that were in its lists when it was made."""
    assert trio.run(lists_cleared, num_ranks=2, timeout_s=40) == [[[2.0], [3.0], [3.0], [2.0], [2.0]]] * 2


def called_back(group: dist.ProcessGroup) -> list[list[float]]:
    """Calls made in callbacks: one that waits while others are queued, one that waits for a queued Work."""
    found: list[torch.Tensor] = []
    gate, done = held_up(group), threading.Event()
    first = collectives.all_reduce(torch.ones(2), group=group, async_op=True)
    later: list[collectives.Work] = []

    def chained(future: torch.futures.Future) -> None:
        (tensor,) = future.value()
        later[0].wait()
        collectives.all_reduce(tensor, group=group)
        found.append(tensor)
        collectives.all_reduce(tensor, group=group, async_op=True).get_future().then(lambda _: done.set())

    first.get_future().then(chained)
    later += [collectives.all_reduce(torch.ones(3), group=group, async_op=True) for _ in range(3)]
    gate.set()
    assert done.wait(20), "a callback hangs"
    collectives.barrier(group)
    return [tensor.tolist() for tensor in found]


def test_callbacks_may_call(trio: RankPool) -> None:
    """A callback may do all that its thread would otherwise do later: neither deadlock nor disorder."""
    # Reduced three times over, the last after it was found.
    assert trio.run(called_back, num_ranks=2, timeout_s=40) == [[[8.0, 8.0]]] * 2


def in_callbacks(group: dist.ProcessGroup) -> list[list[float]]:
    """A call in a callback that waits for it in C++; rank 0 is done with the first call before it says what follows."""
    gate = held_up(group) if group.rank() else threading.Event()
    tensors = [torch.full((length,), float(group.rank() + length)) for length in (1, 2, 3, 4)]
    first = collectives.all_reduce(tensors[0], group=group, async_op=True)

    def call(index: int, _: object) -> torch.Tensor:
        return collectives.all_reduce(tensors[index], group=group, async_op=True).get_future().wait()[0]

    if group.rank() == 0:
        gate.set()
    chained = first.get_future().then(partial(call, 1)).then(partial(call, 2))
    # Rank 0 has probably begun with what is called back, rank 1 has it before itself; the next call comes after it.
    last = collectives.all_reduce(tensors[3], group=group, async_op=True)
    gate.set()
    chained.wait()
    last.wait()
    return [tensor.tolist() for tensor in tensors]


def test_what_a_callback_calls_comes_next_on_all_ranks(trio: RankPool) -> None:
    """Before calls that a program has made meanwhile, and it is over when a callback waits for its Future."""
    expected = [[2.0 * length + 1] * length for length in (1, 2, 3, 4)]
    assert trio.run(in_callbacks, num_ranks=2, timeout_s=40) == [expected, expected]


def waits_for_a_later_call(group: dist.ProcessGroup) -> str:
    """A callback that waits, where only C++ sees it, for what the program has called later."""
    collectives.barrier(group)
    distributed_c10d._set_pg_timeout(timedelta(seconds=1.0), group)
    gate = held_up(group)
    first = collectives.all_reduce(torch.ones(2), group=group, async_op=True)
    second = collectives.all_reduce(torch.ones(2), group=group, async_op=True)
    later = second.get_future().then(lambda done: done.value())
    chained = first.get_future().then(lambda _: later.wait())
    gate.set()
    return said_by(RuntimeError, chained.wait)


def test_a_callback_that_nobody_can_serve_fails_in_time() -> None:
    """It raises after the group's timeout, with what to do, rather than hang."""
    with RankPool(2) as pool:
        for message in pool.run(waits_for_a_later_call, timeout_s=30):
            assert "a callback of an earlier collective of this group has taken longer than 1 s" in message
            assert "use Work.wait() there instead of waiting for its Future" in message


def nested(_: dist.ProcessGroup, async_op: bool) -> str:
    """Return the error of a collective that is called in the middle of another one of its group, which breaks it."""
    group = dist.new_group([dist.get_rank()], use_local_synchronization=True)

    def inner() -> None:
        if work := collectives.all_reduce(torch.ones(1), group=group, async_op=async_op):
            work.wait()

    return said_by(RuntimeError, state_of(group).part(CollectiveQueue).run, inner)


@pytest.mark.parametrize("async_op", [False, True])
def test_a_collective_in_a_collective_is_refused(trio: RankPool, async_op: bool) -> None:
    """Each would wait for the other, also where the inner one is asynchronous."""
    (message,) = trio.run(nested, async_op, num_ranks=1)
    assert message == "a collective was called while this thread executes another one of the same process group"


def fresh_groups(_: dist.ProcessGroup, threaded: bool) -> list[float]:
    """The sums of the first calls of four groups, all under way at once."""
    groups = [dist.new_group(timeout=timedelta(seconds=5)) for _ in range(4)]
    tensors = [torch.full((1000,), float((index + 1) * 10 ** dist.get_rank())) for index in range(4)]
    # Ranks come to their groups in different orders.
    order = [(index + dist.get_rank()) % 4 for index in range(4)]
    if threaded:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda index: collectives.all_reduce(tensors[index], group=groups[index]), order))
    else:
        for work in [collectives.all_reduce(tensors[index], group=groups[index], async_op=True) for index in order]:
            work.wait()
    return [tensor.mean().item() for tensor in tensors]


@pytest.mark.parametrize("threaded", [False, True], ids=["asynchronous", "threads"])
def test_fresh_groups_may_be_used_at_once(trio: RankPool, threaded: bool) -> None:
    """The agreement in a group's first call does not wait for another group's."""
    assert trio.run(fresh_groups, threaded) == [[111.0, 222.0, 333.0, 444.0]] * 3


def go_on_meanwhile(_: dist.ProcessGroup, algorithm: str, calls_before: int) -> bool:
    """Whether another group can do everything while the ranks wait for rank 1 in a call of one group."""
    held, group = [dist.new_group(timeout=timedelta(seconds=20)) for _ in range(2)]

    def call() -> float:
        collectives.all_reduce(tensor := torch.ones(100), group=held, algorithm=algorithm)
        return tensor.sum().item()

    for _ in range(calls_before):
        call()
    with ThreadPoolExecutor(1) as pool:
        waiting = None if dist.get_rank() == 1 else pool.submit(call)
        for other in ("ring", "auto"):
            collectives.all_reduce(torch.ones(2), group=group, algorithm=other, async_op=True).wait()
        collectives.all_gather_into_tensor(torch.empty(30), torch.ones(10), group)
        collectives.reduce_scatter_tensor(torch.empty(10), torch.ones(30), group=group)
        collectives.broadcast(torch.ones(30), 0, group)
        collectives.barrier(group)
        meanwhile = waiting is None or not waiting.done()
        collectives.barrier(group)  # rank 1 may join the call only after the others have looked
        return meanwhile and (waiting.result() if waiting else call()) == 300


@pytest.mark.parametrize(("algorithm", "calls_before"), [("ring", 1), ("auto", 0)])
def test_no_lock_is_held_while_a_rank_waits(trio: RankPool, algorithm: str, calls_before: int) -> None:
    """A group whose ranks wait for each other, in whatever, holds up no other group of the process."""
    assert trio.run(go_on_meanwhile, algorithm, calls_before) == [True] * 3


def one_group_from_threads(group: dist.ProcessGroup) -> float:
    """The sum of many equal calls, made by several threads in no particular order."""

    def call(index: int) -> float:
        if work := collectives.all_reduce(tensor := torch.ones(10), group=group, async_op=index % 3 == 0):
            work.wait()
        return tensor.sum().item()

    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(call, range(200)))


def test_threads_of_one_group(trio: RankPool) -> None:
    """Calls that are alike may come from any thread: none gets into another's way."""
    assert trio.run(one_group_from_threads, num_ranks=3) == [200 * 30.0] * 3


def waiting(group: dist.ProcessGroup) -> list[object]:
    """Of a call for which rank 1 comes late: what is said of it before and after."""
    if group.rank() == 1:
        dist.recv(torch.zeros(1), group=group, group_src=0)
    work = collectives.all_reduce(torch.ones(5), group=group, async_op=True)
    said: list[object] = []
    if group.rank() == 0:
        said += [work.is_completed(), work.is_success(), work.exception(), work.get_future().done()]
        with pytest.raises(TimeoutError):
            work.wait(timedelta(milliseconds=20))
        dist.send(torch.zeros(1), group=group, group_dst=1)
    said += [work.wait(), work.is_completed(), work.result()[0].tolist(), work.get_future().wait()[0].tolist()]
    return said


def test_what_a_work_says(trio: RankPool) -> None:
    """Not completed while a peer is late, which a wait with a timeout does not change; then completed."""
    after = [True, True, [2.0] * 5, [2.0] * 5]
    assert trio.run(waiting, num_ranks=2) == [[False, False, None, False, *after], after]


def ending(folder: Path) -> Leaving:
    """A program that ends while its calls are under way."""
    tensor = torch.ones(300_000)
    for _ in range(5):
        last = collectives.all_reduce(tensor, async_op=True)
    last.get_future().then(lambda _: (folder / f"rank{dist.get_rank()}").write_text(str(float(tensor[0]))))
    return Leaving(None, "return")


def test_a_program_may_end_with_calls_under_way(tmp_path: Path) -> None:
    """They are done first; no rank hangs, none dies."""
    with Ranks(2, 60.0) as ranks:
        ranks.start(ending, tmp_path)
        assert ranks.codes() == [0, 0], ranks.remains()
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["32.0", "32.0"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return what notes the calls of the streams `caller`, which is the current one of torch.cuda, and `group`."""
    noted = Mock()
    noted.group.device = "cuda:1"
    cuda = SimpleNamespace(current=noted.caller, device=lambda _: nullcontext())

    @contextmanager
    def stream(side: Mock) -> Iterator[None]:
        before, cuda.current = cuda.current, side
        yield
        cuda.current = before

    cuda.stream = stream
    cuda.current_stream = lambda device: cuda.current if device == "cuda:1" else None
    monkeypatch.setattr(queue, "torch", SimpleNamespace(cuda=cuda, futures=torch.futures))
    return noted


def test_the_group_waits_for_the_caller_and_the_caller_for_the_group(calls: Mock) -> None:
    """The call is marked when it is made; what the caller's stream does later the group's does not wait for."""
    sync = StreamSync(calls.group, [calls.tensor])
    assert calls.mock_calls == [call.caller.record_event()]
    assert not sync.is_completed()
    sync.run(lambda: calls.turn(queue.torch.cuda.current_stream("cuda:1")))
    sync.wait()
    assert sync.is_completed()
    assert calls.mock_calls[1:] == [
        call.group.wait_event(calls.caller.record_event.return_value),
        call.tensor.record_stream(calls.group),
        call.turn(calls.group),
        call.group.record_event(),
        call.caller.wait_event(calls.group.record_event.return_value),
        call.group.record_event().query(),
    ]
