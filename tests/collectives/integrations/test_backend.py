"""torch.distributed's own calls on the backend "ring": each against Gloo, and who executed it."""

import datetime
import re
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import collectives
from collectives.runtime import Executor, RunOperands, Tag
from tests.collectives.backend_calls import GLOOS, OURS, Group, Tensors, objects, own, single
from tests.collectives.runtime.test_executor import data
from tests.ranks import RankPool, group_on
from tests.refusals import said_by


@contextmanager
def executions() -> Iterator[list[tuple[Any, ...]]]:
    """A list that gets collective, algorithm and wire of each execution in the block, unless it compares calls."""
    noted: list[tuple[Any, ...]] = []
    carry_out = Executor.carry_out

    def noting(executor: Executor, operands: RunOperands) -> None:
        if executor.tag == Tag.COLLECTIVE:
            schedule = executor.schedule
            noted.append((schedule.collective.value, schedule.algorithm, operands.wire))
        carry_out(executor, operands)

    with mock.patch.object(Executor, "carry_out", noting):
        yield noted


def on_both(group: Group, call: Callable[[Group], Tensors]) -> tuple[Tensors, list[str], Tensors]:
    """Return the results of the call on our backend, the executed schedules, and the results on Gloo."""
    with executions() as noted:
        ours = call(group_on("ring", group.size()))
    return ours, [name for name, *_ in noted], call(group)


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
    sums = [own(group), own(group)]
    for name, tensor in zip(("across", "within"), sums, strict=True):
        dist.all_reduce(tensor, group=mesh.get_group(name))
    with executions() as noted:
        shards = distribute_tensor(torch.arange(24.0).view(6, 4), mesh, [Shard(0), Shard(1)])
        whole = shards.redistribute(placements=[Replicate(), Replicate()]).to_local()
    return [*sums, whole], [name for name, *_ in noted]


def options(_: Group) -> tuple[list[tuple[Any, ...]], str]:
    """Return what ran in a group and in a mesh with options, and the message where options are of another kind."""
    chosen = collectives.BackendOptions(all_reduce="recursive_doubling", wire=torch.bfloat16)
    group = dist.new_group(backend="ring", pg_options=chosen)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "within"), backend_override={1: ("ring", chosen)})
    with executions() as noted:
        dist.all_reduce(torch.ones(4), group=group)
        dist.all_reduce(torch.ones(4), group=mesh.get_group("within"))
        dist.all_reduce(torch.ones(4, dtype=torch.int64), group=group)
    return noted, said_by(ValueError, dist.new_group, backend="ring", pg_options="halving_doubling")


def refused(_: Group) -> list[str]:
    """Return what is said of calls in no form that torch has, and of a list without tensors."""
    world, tensor, by_sum = dist.group.WORLD, torch.ones(2), dist.ReduceOp.SUM
    return [
        said_by(TypeError, world.allreduce, [tensor], by_sum, op=by_sum),
        said_by(TypeError, world.allreduce, tensors=[tensor], opts=dist.AllreduceOptions(), op=by_sum),
        said_by(TypeError, world.allgather, [[tensor]], root=0),
        said_by(ValueError, dist.all_gather, [], tensor),
    ]


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
        wires = torch.bfloat16, torch.bfloat16, torch.int64
        for seen, message in pool.run(options):
            assert seen == [("all_reduce", "recursive_doubling", wire) for wire in wires]
            assert message == "pg_options 'halving_doubling': must be a collectives.BackendOptions, or nothing"
        of_reduce, of_gather = "(tensors, opts): no form of this method", "(outputs, inputs, opts): no form of this"
        for told in pool.run(refused):
            starts = (of_reduce, of_reduce, of_gather, "tensor_list has 0 tensors: must have one for each")
            assert all(message.startswith(start) for message, start in zip(told, starts, strict=True)), told


_KEPT: list[Group] = []  # which must not close their connections while others wait


def split(group: Group) -> tuple[Tensors, list[str]]:
    """Calls in the last two ranks, given in the other order, and in the first alone; ranks of the part are roots."""
    ring, tensors = group_on("ring", group.size()), []
    with executions() as noted:
        for part in ring.split_group([group.size() - 1, group.size() - 2]), ring.split_group([0], group_desc="alone"):
            if part is not None:
                _KEPT.append(part)
                part.allreduce([total := own(group)]).wait()
                part.broadcast(copied := own(group), root=part.size() - 1).wait()
                tensors += [total, copied]
    return tensors, [name for name, *_ in noted]


def unsplit(group: Group) -> list[str]:
    """Return what is said of options of another kind, and of a merge, which torch's method would end the process at."""
    ring = group_on("ring", group.size())
    return [said_by(ValueError, ring.split_group, [0, 1], opts="ring"), said_by(RuntimeError, ring.merge_remote_group)]


def test_a_group_is_split(ring_ranks: RankPool) -> None:
    """The ranks of a part, and no others, sum and copy their data by our schedules."""
    first, *others = (data(rank, 12, torch.float32) for rank in range(3))
    expected = [[first, first], [sum(others), others[1]], [sum(others), others[1]]]
    for (tensors, names), right in zip(ring_ranks.run(split, num_ranks=3), expected, strict=True):
        torch.testing.assert_close(tensors, right)
        assert names == ["all_reduce", "broadcast"]
    for of_options, of_merge in ring_ranks.run(unsplit, num_ranks=2):
        assert of_options == "pg_options 'ring': must be a collectives.BackendOptions, or nothing"
        assert of_merge == 'the backend "ring" cannot merge groups: make one with new_group instead'


def without_warnings(group: Group) -> list[str]:
    """Train with DDP and FSDP2, and call by torch's new names, from making a group to its end; return the warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        on = dist.new_group(backend="ring")
        single(on)
        objects(on)
        sharded = fully_shard(torch.nn.Linear(4, 4), mesh=DeviceMesh.from_group(on, "cpu"))
        for module in (DistributedDataParallel(torch.nn.Linear(4, 4), process_group=on), sharded):
            optimizer = torch.optim.SGD(module.parameters())
            module(own(group).view(3, 4)).sum().backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
        dist.barrier(on)
        dist.destroy_process_group(on)
    return [str(each.message) for each in told]


def test_torch_warns_of_nothing() -> None:
    """We call nothing that torch has deprecated."""
    with RankPool(2, backends=("ring",)) as pool:
        assert pool.run(without_warnings) == [[], []]


def both_are_here(name: str) -> None:
    """Wait until two ranks have called this: on a busy machine a thread may otherwise come half a second later."""
    store = dist.distributed_c10d._get_default_store()
    store.add(name, 1)
    while store.add(name, 0) < 2:
        time.sleep(0.001)


def limited(group: Group, way: str, transport: str) -> list[str]:
    """Rank 1 comes to no further call; what the others are told by what has limited their patience to half a second.

    By every way of asking: the call or the wait, and a call after it; of a Work also its exception and its Future.
    """
    tensor, half = torch.ones(3), datetime.timedelta(seconds=0.5)
    collectives.use_transport(transport, group)
    if way != "first call":
        dist.all_reduce(tensor, group=group)
    if way in ("group", "work"):
        dist.distributed_c10d._set_pg_timeout(half, group)
    if group.rank() == 1:
        return []
    both_are_here(f"{way} by {transport}")
    calls: dict[str, Callable[[], object]] = {
        "group": lambda: dist.all_reduce(tensor, group=group),
        "wait": lambda: dist.all_reduce(tensor, group=group, async_op=True).wait(half),
        "barrier": lambda: dist.barrier(group, timeout=half),
        "monitored barrier": lambda: dist.monitored_barrier(group, half, wait_all_ranks=True),
    }
    work = dist.all_reduce(tensor, group=group, async_op=True) if way == "work" else None
    call = work.wait if work else calls.get(way, lambda: group.allreduce(tensor, dist.ReduceOp.SUM, half).wait())
    told = [said_by((RuntimeError, TimeoutError), call)]
    if work:
        assert (work.is_completed(), work.is_success(), str(work.exception())) == (True, False, told[0])
        assert said_by(RuntimeError, work.get_future().wait).split("CollectiveError: ")[1].startswith(told[0])
        told.append(said_by(collectives.CollectiveError, dist.barrier, group))
    return told


def all_limited(_: Group) -> list[list[str]]:
    """Return what is said of each case, in groups that wait at the same time."""
    groups = [dist.new_group(backend="ring") for _ in LIMITS]
    _KEPT.extend(groups)
    with ThreadPoolExecutor(len(LIMITS)) as pool:
        return list(pool.map(limited, groups, *zip(*LIMITS, strict=True)))


RING = "all_reduce ring over 3 ranks: step [01]: receiving chunk 0 from rank [12]"
OF_CALL = "(timed out after 0.5 s, the timeout of this call|the connection is closed)"
LIMITS = {
    ("group", "auto"): f"{RING} failed: (timed out after 0.5 s|the connection is closed) .* was rank 1$",
    ("work", "auto"): f"{RING} failed: .*rank 1$",
    ("call", "auto"): f"{RING} failed: {OF_CALL} .*rank 1$",
    ("call", "gloo"): f"{RING} failed: .*(Timed out waiting 500ms|Connection closed).*rank 1$",
    ("first call", "auto"): "learning about shared memory from rank 1 failed: .*(Timed out|Connection closed).*rank 1$",
    ("barrier", "auto"): f"before barrier .* failed: {OF_CALL}.*rank 1$",
    ("wait", "auto"): f"^not over after 0.5 s, the timeout of this wait; the group is at rank [02]: {RING}$",
    ("monitored barrier", "auto"): "Ranks 1 failed to pass monitoredBarrier in 500 ms|Rank 2 successfully reached",
}


def test_time_limits(trio: RankPool) -> None:
    """Of the group as it is now, of a call, and of a wait are kept, and the error says which one and who is late.

    After a call has failed the group is broken.
    """
    results = trio.run(all_limited, timeout_s=60)
    trio.end()
    for rank in (0, 2):
        for case, (told, *later) in zip(LIMITS, results[rank], strict=True):
            assert re.search(LIMITS[case], told), (case, told)
            assert later == [f"an earlier collective of this group failed: {told}"] * (case[0] == "work")
