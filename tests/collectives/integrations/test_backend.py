"""torch.distributed's own calls on the backend "ring": each against Gloo, and who executed it."""

import datetime
import gc
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

import collectives
from collectives.calls.call import GroupRuntime
from collectives.runtime import Executor, Tag, state_of
from tests.collectives.backend_calls import GLOOS, OURS, Group, Tensors, own, rooms
from tests.collectives.runtime.test_executor import data
from tests.ranks import RankPool, Ranks, group_on
from tests.refusals import said_by


@contextmanager
def executions() -> Iterator[list[str]]:
    """A list that gets the name of each schedule that is executed in the block, but for those that compare calls."""
    names: list[str] = []
    run = Executor.run

    def noting(executor: Executor, *arguments: object, **options: object) -> None:
        if executor.tag == Tag.COLLECTIVE:
            names.append(executor.schedule.collective.value)
        run(executor, *arguments, **options)  # type: ignore[arg-type]

    Executor.run = noting  # type: ignore[method-assign, assignment]
    try:
        yield names
    finally:
        Executor.run = run  # type: ignore[method-assign]


def on_both(group: Group, call: Callable[[Group], Tensors]) -> tuple[Tensors, list[str], Tensors]:
    """Return the results of the call on our backend, the executed schedules, and the results on Gloo."""
    with executions() as names:
        ours = call(group_on("ring", group.size()))
    return ours, names, call(group)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch 2.13 renames its functional collectives
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("call", [*OURS, *GLOOS])
def test_calls(ring_ranks: RankPool, call: Callable[[Group], Tensors], num_ranks: int) -> None:
    """Each gives what it gives on Gloo, and runs our schedules if it is one of ours."""
    for ours, names, theirs in ring_ranks.run(on_both, call, num_ranks=num_ranks):
        for mine, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-4)
        assert names == OURS.get(call, [])


def on_a_mesh(group: Group) -> tuple[Tensors, list[str]]:
    """Sums along either dimension of a mesh of two by two, a tensor brought together from shards, and what was run."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "within"))
    sums = []
    for name in ("across", "within"):
        sums.append(own(group))
        dist.all_reduce(sums[-1], group=mesh.get_group(name))
    with executions() as names:
        shards = distribute_tensor(torch.arange(24.0).view(6, 4), mesh, [Shard(0), Shard(1)])
        whole = shards.redistribute(placements=[Replicate(), Replicate()]).to_local()
    return [*sums, whole], sorted(set(names))


def options(_: Group) -> tuple[set, str]:
    """Which algorithms ran in a group with options, and the message where the options are of another kind."""
    from collections import Counter

    seen: Counter = Counter()
    run = Executor.run

    def noting(executor: Executor, tensor: torch.Tensor, **how: object) -> None:
        if executor.tag == Tag.COLLECTIVE:
            seen[executor.schedule.algorithm, how["wire"]] += 1
        run(executor, tensor, **how)  # type: ignore[arg-type]

    chosen = collectives.BackendOptions(all_reduce="recursive_doubling", wire=torch.bfloat16)
    group = dist.new_group(backend="ring", pg_options=chosen)
    Executor.run = noting  # type: ignore[method-assign, assignment]
    try:
        dist.all_reduce(torch.ones(4), group=group)
        dist.all_reduce(torch.ones(4, dtype=torch.int64), group=group)
    finally:
        Executor.run = run  # type: ignore[method-assign]
    return set(seen), said_by(ValueError, dist.new_group, backend="ring", pg_options="halving_doubling")


def names(group: Group) -> list[object]:
    """By which names a group can be made, and what it then is called."""
    both = dist.new_group(backend="cpu:ring")
    dist.all_reduce(torch.ones(3), group=both)
    same = [type(each).__name__ for each in (dist.group.WORLD, both)]
    part = dist.new_group([1, 3])
    if dist.get_rank() in (1, 3):
        tensor = own(group)
        dist.broadcast(tensor, src=3, group=part)  # a rank of the job
        same.append(torch.equal(tensor, data(3, 12, torch.float32)))
    return [*same, dist.get_backend(), dist.get_backend(both)]


def test_init_process_group() -> None:
    """As the backend of the whole job: sub-groups inherit it, meshes and DTensors use it, options choose algorithms."""
    with RankPool(4, backends=("ring",)) as pool:
        mine = [data(rank, 12, torch.float32) for rank in range(4)]
        for rank, ((across, within, whole), ran) in enumerate(pool.run(on_a_mesh)):
            torch.testing.assert_close(across, mine[rank] + mine[(rank + 2) % 4])
            torch.testing.assert_close(within, mine[rank] + mine[rank ^ 1])
            assert torch.equal(whole, torch.arange(24.0).view(6, 4))
            assert "all_gather" in ran
        for rank, found in enumerate(pool.run(names)):
            assert found == ["RingGroup"] * 2 + [True] * (rank in (1, 3)) + ["ring", "cpu:ring"]
        for seen, message in pool.run(options):
            assert seen == {("recursive_doubling", torch.bfloat16), ("recursive_doubling", torch.int64)}
            assert message == "pg_options 'halving_doubling': must be a collectives.BackendOptions, or nothing"


def open_things() -> tuple[int, int]:
    """How many threads and how many open files, sockets among them, this process has."""
    gc.collect()
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def come_and_gone(default: Group) -> list[tuple[int, int]]:
    """Count the open things before a group, with it at work, and after it."""
    # The first call starts the thread that watches all queues.
    collectives.all_reduce(torch.ones(1), group=default, async_op=True).wait()
    counts = [open_things()]
    group = dist.new_group(backend="ring")
    work = dist.all_reduce(torch.ones(1000, 2)[:, 0], group=group, async_op=True)
    work.wait()
    counts.append(open_things())
    buffers = state_of(group).part(GroupRuntime).queue._buffers
    assert buffers
    dist.destroy_process_group(group)
    assert not buffers
    del group, work
    return [*counts, open_things()]


def test_a_destroyed_group_leaves_nothing(ring_ranks: RankPool) -> None:
    """Neither threads, nor sockets, nor buffers, though the group's state keeps the queue that had them."""
    for before, during, after in ring_ranks.run(come_and_gone):
        assert before[0] < during[0]
        assert before[1] < during[1]
        assert after == before


def deserted(group: Group) -> list[str]:
    """Rank 1 comes to none of these calls; what rank 0 is told."""
    if group.rank() == 1:
        return []
    work = dist.all_reduce(torch.ones(3), async_op=True, group=group)
    waiting = said_by(collectives.CollectiveError, work.wait)
    assert work.is_completed()
    assert not work.is_success()
    chained = said_by(RuntimeError, work.get_future().wait).split("CollectiveError: ")[1]
    return [waiting, str(work.exception()), chained, said_by(collectives.CollectiveError, dist.barrier, group)]


def test_an_absent_peer() -> None:
    """An error that names it, by every way of asking, within the group's timeout; then the group is broken."""
    with RankPool(2, peer_timeout_s=2.0, backends=("ring",)) as pool:
        (waiting, asked, chained, later), _ = pool.run(deserted, timeout_s=30)
    assert waiting.startswith("rank 0: before all_reduce of 3 elements of torch.float32, SUM, algorithm ring: asking ")
    assert "rank 1 failed: " in waiting
    assert asked == waiting
    assert chained.startswith(waiting)
    assert later == f"an earlier collective of this group failed: {waiting}"


def limited(way: str, transport: str) -> str:
    """Rank 1 comes late; what the others are told by whatever has limited their patience to half a second."""
    group, tensor, half = dist.new_group(backend="ring"), torch.ones(3), datetime.timedelta(seconds=0.5)
    collectives.use_transport(transport, group)
    if way != "first call":
        dist.all_reduce(tensor, group=group)
    if way == "group":
        dist.distributed_c10d._set_pg_timeout(half, group)
    if group.rank() == 1:
        dist.group.WORLD.get_group_store().wait(["over"])
        return ""
    calls: dict[str, Callable[[], object]] = {
        "group": lambda: dist.all_reduce(tensor, group=group),
        "wait": lambda: dist.all_reduce(tensor, group=group, async_op=True).wait(half),
        "barrier": lambda: dist.barrier(group, timeout=half),
        "monitored barrier": lambda: dist.monitored_barrier(group, half, wait_all_ranks=True),
    }
    call = calls.get(way, lambda: group.allreduce(tensor, dist.ReduceOp.SUM, half).wait())
    told = said_by((RuntimeError, TimeoutError), call)
    if dist.group.WORLD.get_group_store().add("gave up", 1) == 2:
        dist.group.WORLD.get_group_store().set("over", "")
    return told


RING = "all_reduce ring over 3 ranks: step [01]: receiving chunk 0 from rank [12]"
OF_CALL = "(timed out after 0.5 s, the timeout of this call|the connection is closed)"
LIMITS = {
    ("group", "auto"): f"{RING} failed: (timed out after 0.5 s|the connection is closed) .* was rank 1$",
    ("call", "auto"): f"{RING} failed: {OF_CALL} .*rank 1$",
    ("call", "gloo"): f"{RING} failed: .*(Timed out waiting 500ms|Connection closed).*rank 1$",
    ("first call", "auto"): "learning about shared memory from rank 1 failed: .*(Timed out|Connection closed).*rank 1$",
    ("barrier", "auto"): f"before barrier .* failed: {OF_CALL}.*rank 1$",
    ("wait", "auto"): f"^not over after 0.5 s, the timeout of this wait; the group is at rank [02]: {RING}$",
    ("monitored barrier", "auto"): "Ranks 1 failed to pass monitoredBarrier in 500 ms|Rank 2 successfully reached",
}


@pytest.mark.parametrize(("way", "transport"), LIMITS)
def test_time_limits(way: str, transport: str) -> None:
    """Of the group as it is now, of a call, and of a wait are kept, and the error says which one and who is late."""
    with Ranks(3, 60.0) as ranks:
        ranks.start(limited, way, transport)
        answers = ranks.answers(range(3), limit_s=40)
    told = [answers[rank].value for rank in (0, 2)]
    assert all(re.search(LIMITS[way, transport], text) for text in told), told


def misuses(_: Group) -> list[str]:
    """The messages of calls that do not fit; after them the group is as good as before."""
    group = group_on("ring", 2)
    calls = (
        lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND, group),
        lambda: dist.all_gather(rooms(group)[:1], torch.ones(12), group),
        lambda: dist.all_reduce(torch.ones(3, device="meta"), group=group),
    )
    messages = [said_by(ValueError, call) for call in calls]
    dist.all_reduce(torch.ones(3), group=group)
    return messages


def test_misuse_is_refused(ring_ranks: RankPool) -> None:
    """As by the functions of `collectives` themselves."""
    expected = [
        "op BAND: needs integers or bool, not torch.float32",
        "tensor_list has 1 tensors: must have one for each of 2 ranks",
        "the tensor is on meta: must be on the CPU or on a CUDA device",
    ]
    assert ring_ranks.run(misuses, num_ranks=2) == [expected] * 2
