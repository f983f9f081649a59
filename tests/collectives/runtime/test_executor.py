"""A schedule executed by real ranks gives what its replay in one process gives, in the order the simulator says."""

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import collectives
from collectives import Executor, execute
from collectives.runtime import Transport
from collectives.runtime.instructions import portion_bytes
from ringsim import ALGORITHMS, Collective, Network, Schedule, Transfer
from ringsim.registry import build
from ringsim.schedule import held_at_end, held_at_start, replay
from ringsim.simulation import IN_ORDER, simulate
from tests.collectives.shared_groups import ONE_HOST, PAIRS, SMALL_SLOT, kept_group
from tests.collectives.travel import travelling
from tests.ranks import RankPool
from tests.refusals import refused, said_by
from tests.ringsim.strategies import listed, schedules

NETWORK = Network.uniform(latency_s=1e-5, bandwidth_bytes_per_s=1e9, reduce_bytes_per_s=1e10)
PUBLISHED = Path(__file__).parents[2] / "ringsim" / "formats" / "msccl"


class Way(NamedTuple):
    """How chunks travel, and on which host each rank takes itself to be."""

    transport: str
    travel: Transport = Transport.POSTED
    hosts: tuple[int, ...] = ONE_HOST


WAYS = {
    "gloo": Way("gloo"),
    "batches": Way("gloo", Transport.BATCHED),
    "staged": Way("gloo", Transport.STAGED),  # as by Gloo, on a copy
    "shm": Way("auto"),
    "hosts": Way("auto", hosts=PAIRS),
}
Result = tuple[torch.Tensor, list[tuple[int, ...]], list[tuple[int, ...]]]


def data(rank: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers that tell every rank and place apart, and whose sum depends on the order of the additions."""
    generator = torch.Generator().manual_seed(1000 * length + rank)
    return (torch.randn(length, generator=generator, dtype=torch.float64) * 50).to(dtype)


def built_ins(
    group: dist.ProcessGroup, way: str, keys: list[tuple[Collective, str]], num_ranks: int, length: int
) -> list[Result]:
    """The same as `executed`, for algorithms."""
    return executed(group, way, [build(*key, num_ranks) for key in keys], length)


def executed(
    _: dist.ProcessGroup, name: str, schedules: list[Schedule], length: int, sleeper: int = -1, slot_bytes: int = 0
) -> list[Result]:
    """For each schedule the rank's own tensor after it, and what it logged: (step, peer, chunk) applied, and sent.

    The same bits come of a tensor that is lent. sleeper: the rank that comes late.
    """
    way = WAYS[name]
    group = kept_group(schedules[0].num_ranks, way.transport, way.hosts, slot_bytes)
    if group is None:
        return []
    if group.rank() == sleeper:
        time.sleep(0.3)  # not to wait for a result, but to be late
    results = []
    with travelling(group, way.travel):
        for schedule in schedules:
            tensor, log = data(group.rank(), length, torch.float32), []
            _execute(group, schedule, tensor, log)
            sent, applied = ([event[1:4] for event in log if event.kind == kind] for kind in ("sent", "applied"))
            results.append((tensor, applied, sent))
            if way.transport == "auto" and schedule.collective is Collective.ALL_REDUCE:
                lent = collectives.empty(length, group=group).copy_(data(group.rank(), length, torch.float32))
                execute(schedule, lent, group=group)
                kept = lent.clone()
                lent.zero_()  # as a program may that has what it asked for
                assert torch.equal(kept, tensor)
    return results


def _execute(group: dist.ProcessGroup, schedule: Schedule, tensor: torch.Tensor, log: list) -> None:
    """Run a schedule; one after which no rank has all chunks on those of `tensor` that the rank has.

    Results are the same with the contribution in another tensor.
    """
    rank, lengths = group.rank(), np.diff(schedule.bounds(len(tensor)))
    if schedule.collective.is_whole:
        contribution, result = tensor.clone(), torch.full_like(tensor, torch.nan)
        execute(schedule, tensor, group=group, log=log)
        execute(schedule, result, group=group, source=contribution)
        kept = held_at_end(schedule.collective, schedule.num_ranks, schedule.num_chunks)[rank]
        is_kept = torch.from_numpy(np.repeat(kept, lengths))
        assert torch.equal(result[is_kept], tensor[is_kept]), schedule
        return
    shape = schedule.collective, schedule.num_ranks, schedule.num_chunks
    given, left = (torch.from_numpy(np.repeat(held(*shape)[rank], lengths)) for held in (held_at_start, held_at_end))
    result = torch.zeros(int(left.sum()))
    Executor(schedule, group).run(result, source=tensor[given], splits=tuple(lengths.tolist()), log=log)
    tensor[left] = result


def assert_conforms(schedule: Schedule, results: list[Result], length: int, *, in_portions: bool = False) -> None:
    """Bits equal the replay's; the order of applying is the simulator's, and what goes to a peer goes in step order.

    What the collective does not leave at a rank is not looked at. in_portions: each of which has the events of a run.
    """
    buffers = [data(rank, length, torch.float32) for rank in range(schedule.num_ranks)]
    replay(schedule, buffers)
    size_bytes = 4 * (length // schedule.collective.num_tensors(schedule.num_ranks))
    timeline = simulate(schedule, NETWORK, size_bytes, element_bytes=4, runtime=IN_ORDER)
    bounds = schedule.bounds(length)
    kept = held_at_end(schedule.collective, schedule.num_ranks, schedule.num_chunks)
    for rank, (tensor, applied, sent) in enumerate(results):
        for chunk in kept[rank].nonzero()[0]:
            elements = slice(bounds[chunk], bounds[chunk + 1])
            assert torch.equal(tensor[elements], buffers[rank][elements]), f"{schedule}: rank {rank}, chunk {chunk}"
        if in_portions:
            continue
        assert applied == timeline.applied_order(rank), schedule
        for peer in range(schedule.num_ranks):
            to_peer = [(step, chunk) for step, other, chunk in sent if other == peer]
            rows = (timeline.src == rank) & (timeline.dst == peer)
            assert to_peer == list(zip(timeline.step[rows].tolist(), timeline.chunk[rows].tolist(), strict=True))


COPIED_AND_ADDED_TO = listed(
    *[[Transfer(0, 1, 0, False), Transfer(2, 1, 0, True)], [Transfer(1, 3, 0, False), Transfer(1, 2, 0, False)]] * 2
)


def test_what_is_copied_and_added_to_in_one_step_is_new() -> None:
    """It needs a place in the slot, as a copy alone does not: else a portion would run over the slot's end."""
    assert portion_bytes(COPIED_AND_ADDED_TO, SMALL_SLOT, on_one_host=True) == SMALL_SLOT // 2


@pytest.mark.parametrize("way", WAYS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(COPIED_AND_ADDED_TO, SMALL_SLOT // 4)
@given(schedules(max_ranks=4, max_chunks=3, max_steps=6, channels_of_a_pair=2), st.sampled_from([7, 7, 1031, 3000]))
def test_random_schedules_conform(ranks: RankPool, way: str, schedule: Schedule, length: int) -> None:
    """Whatever the transfers: exchanges, several chunks to one rank in a step, overwritten and sent on."""
    results = ranks.run(executed, way, [schedule], length, -1, SMALL_SLOT)[: schedule.num_ranks]
    in_portions = WAYS[way].transport == "auto" and length > 7
    assert_conforms(schedule, [result for (result,) in results], length, in_portions=in_portions)


OVER_GLOO = [("gloo", 1, 1001), ("gloo", 2, 0), ("gloo", 3, 3), ("gloo", 4, 1001), ("gloo", 5, 1001)]
OTHERWISE = [("batches", 3, 1001), ("staged", 3, 1001), ("shm", 3, 3), ("hosts", 5, 1001)]


@pytest.mark.parametrize(("way", "num_ranks", "length"), OVER_GLOO + OTHERWISE)
def test_built_ins_conform(ranks: RankPool, way: str, num_ranks: int, length: int) -> None:
    """Every algorithm, also with fewer elements than ranks, and none; of four ranks published ones, too."""
    keys: list[tuple[Collective, str]] = list(ALGORITHMS)
    if num_ranks == 4:
        keys += [(Collective.ALL_REDUCE, str(PUBLISHED / f"{name}_4.xml")) for name in ("allpairs", "fused_ring")]
        keys += [(Collective.ALL_GATHER, str(PUBLISHED / "hierarchical_all_gather_4.xml"))]
    for key, *results in zip(keys, *ranks.run(built_ins, way, keys, num_ranks, length)[:num_ranks], strict=True):
        assert_conforms(build(*key, num_ranks), results, length)


def misuses(group: dist.ProcessGroup) -> list[str]:
    """The messages of calls that do not fit."""
    ring, wrong_size = (build(Collective.ALL_REDUCE, "ring", group.size() + more) for more in (0, 1))
    calls = (wrong_size, torch.zeros(4)), (ring, torch.zeros(4, 4).t()), (ring, torch.zeros(4, device="meta"))
    messages = [said_by(ValueError, execute, schedule, tensor, group=group) for schedule, tensor in calls]
    tensor = torch.ones(5)
    execute(ring, tensor, group=group)
    return [*messages, str(tensor.sum().item())]


def test_misuse_is_refused_before_anything_is_sent(ranks: RankPool) -> None:
    """The message names the value and the rule, on every rank, and the group is as good as before."""
    messages = [
        "all_reduce ring over 3 ranks: the group has 2 ranks; build the schedule for 2",
        "all_reduce ring over 2 ranks: the tensor has strides (1, 4): must be contiguous; call contiguous() on it",
        "the tensor is on meta: must be on the CPU or on a CUDA device",
        "10.0",
    ]
    assert ranks.run(misuses, num_ranks=2) == [messages] * 2
    with refused("torch.distributed is not initialised: call dist.init_process_group first"):
        execute(build(Collective.ALL_REDUCE, "ring", 1), torch.zeros(1))


EXCHANGE = listed([Transfer(src, 1 - src, chunk, True) for chunk in range(5) for src in (0, 1)])
OVERWRITTEN = listed([Transfer(0, 1, 0, False)], [Transfer(2, 0, 0, False)])
HOPS = (2, 0, 0), (0, 3, 0), (3, 1, 0), (2, 1, 2), (2, 1, 3), (0, 1, 1), (2, 0, 1)  # from, to, chunk
CROSSED = listed(*([Transfer(*hop, False)] for hop in HOPS))


@pytest.mark.parametrize(
    ("schedule", "length", "sleeper"),
    [
        pytest.param(EXCHANGE, 50, 1, id="more exchanges in a step than are posted ahead"),
        pytest.param(OVERWRITTEN, 1_000_000, 1, id="overwritten while it is still being sent"),
        pytest.param(CROSSED, 400_000, 3, id="a send that must not be waited for too early"),
    ],
)
@pytest.mark.parametrize("way", ["gloo", "batches", "shm"])
def test_late_ranks_change_nothing(ranks: RankPool, way: str, schedule: Schedule, length: int, sleeper: int) -> None:
    """Neither a deadlock nor an overtaken send: the executor's two rules, each where it is needed."""
    results = ranks.run(executed, way, [schedule], length, sleeper)[: schedule.num_ranks]
    assert_conforms(schedule, [result for (result,) in results], length)


def of_two_lengths(group: dist.ProcessGroup, transport: Transport, lengths: tuple[int, int]) -> list[torch.Tensor]:
    """Two sums by one executor."""
    executor = Executor(build(Collective.ALL_REDUCE, "ring", group.size()), group, shares_memory=False)
    tensors = [data(group.rank(), length, torch.float32) for length in lengths]
    with travelling(group, transport):
        for tensor in tensors:
            executor.run(tensor)
    return tensors


@pytest.mark.parametrize("transport", [Transport.POSTED, Transport.BATCHED])
def test_what_is_kept_may_be_longer_than_what_is_needed(ranks: RankPool, transport: Transport) -> None:
    """Of the staging memory of a longer tensor a whole number of shorter buffers is used."""
    lengths = 2_000_000, 1_800_000
    results = ranks.run(of_two_lengths, transport, lengths, num_ranks=3)
    for index, length in enumerate(lengths):
        buffers = [data(rank, length, torch.float32) for rank in range(3)]
        replay(build(Collective.ALL_REDUCE, "ring", 3), buffers)
        assert all(torch.equal(result[index], buffers[0]) for result in results)
