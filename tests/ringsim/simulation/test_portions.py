"""Schedules on hosts whose ranks share memory, against times worked out by hand."""

from dataclasses import replace

import pytest
from msgspec import structs

from ringsim.network import Host, MemoryRate, Network, SharedMemory, Spec
from ringsim.registry import build
from ringsim.schedule.collective import Collective
from ringsim.simulation import IN_ORDER, Runtime, predict_time, simulate

MIB = 2**20
COPY, ADD = 16e9, 8e9
SHARED = replace(IN_ORDER, shares_memory=True)
RATE = MemoryRate(1, COPY, ADD, ADD, COPY, ADD, ADD)


def host(cores: int | None = None, slot_bytes: int = 2**30, latency_s: float = 0.0, **fields: float) -> Network:
    """One with the same rates whatever is published."""
    shared = SharedMemory(slot_bytes, MIB, latency_s=latency_s, rates=(RATE,), **fields)
    return Network("host", Spec(host=Host(cores=cores, shared_memory=shared)))


def time_s(cluster: Network, call: Collective, name: str, num_ranks: int, size: int, in_place: bool = False) -> float:
    """Predicted, as `collectives` executes schedules."""
    schedule, runtime = build(call, name, num_ranks), replace(SHARED, in_place=in_place)
    return predict_time(schedule, cluster, size, runtime=runtime)


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_a_ring_takes_its_passes(num_ranks: int) -> None:
    """One copy to publish; an addition a step, the last with a copy; a copy a step."""
    chunk, steps = 12 * MIB // num_ranks, num_ranks - 1
    expected = chunk / COPY + steps * chunk / ADD + chunk / COPY + steps * chunk / COPY
    assert time_s(host(), Collective.ALL_REDUCE, "ring", num_ranks, 12 * MIB) == pytest.approx(expected)


def test_a_rank_does_one_thing_at_a_time() -> None:
    """It publishes three chunks of a direct reduce_scatter, and adds three, on one core."""
    chunk = 4 * MIB
    expected = 3 * chunk / COPY + 3 * chunk / ADD
    assert time_s(host(), Collective.REDUCE_SCATTER, "direct", 4, 16 * MIB) == pytest.approx(expected)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_sum_that_is_formed_elsewhere_takes_longer(num_ranks: int) -> None:
    """Of a ring all_reduce all but the last are, of a ring reduce_scatter out of place all, as its input stays."""
    chunk, steps = 12 * MIB // num_ranks, num_ranks - 1
    shared = SharedMemory(2**30, MIB, rates=(MemoryRate(1, COPY, ADD, ADD / 2, COPY, ADD, ADD / 2),))
    cluster = Network("host", Spec(host=Host(shared_memory=shared)))
    expected = chunk / COPY + steps * chunk / (ADD / 2)
    assert time_s(cluster, Collective.REDUCE_SCATTER, "ring", num_ranks, 12 * MIB) == pytest.approx(expected)
    in_place = time_s(cluster, Collective.REDUCE_SCATTER, "ring", num_ranks, 12 * MIB, in_place=True)
    assert in_place == pytest.approx(expected - chunk / ADD)
    expected = in_place + chunk / COPY + steps * chunk / COPY
    assert time_s(cluster, Collective.ALL_REDUCE, "ring", num_ranks, 12 * MIB) == pytest.approx(expected)


def test_ranks_share_cores() -> None:
    """Four ranks on two cores take twice as long; on four or more as long as on any number."""
    alone = time_s(host(), Collective.ALL_REDUCE, "ring", 4, 16 * MIB)
    assert time_s(host(cores=2), Collective.ALL_REDUCE, "ring", 4, 16 * MIB) == pytest.approx(2 * alone)
    assert time_s(host(cores=4), Collective.ALL_REDUCE, "ring", 4, 16 * MIB) == pytest.approx(alone)


def test_overheads_and_latency_come_with_each_message() -> None:
    """A ring has 2 (p - 1) of them one after the other."""
    cluster = host(latency_s=3e-6, send_overhead_s=1e-6, receive_overhead_s=2e-6)
    assert time_s(cluster, Collective.ALL_REDUCE, "ring", 4, 0) == pytest.approx(6 * 6e-6)


def test_long_tensors_go_in_portions() -> None:
    """A rank of a ring of four publishes four chunks: with slots of 1 MiB a portion has 256 KiB of each chunk."""
    whole = time_s(host(latency_s=1e-3), Collective.ALL_REDUCE, "ring", 4, 4 * MIB)
    in_portions = time_s(host(latency_s=1e-3, slot_bytes=MIB), Collective.ALL_REDUCE, "ring", 4, 4 * MIB)
    assert in_portions == pytest.approx(whole + 3 * 6e-3)
    network, shared = host(slot_bytes=MIB), Runtime(shares_memory=True)
    schedule = build(Collective.ALL_REDUCE, "ring", 4)
    with pytest.raises(ValueError, match="4 portions, of which there is no timeline"):
        simulate(schedule, network, 4 * MIB, runtime=shared)
    whole = simulate(schedule, network, MIB, runtime=shared).time_s
    assert whole == pytest.approx(predict_time(schedule, network, MIB, runtime=shared))


def test_the_rates_depend_on_what_is_published_and_touched() -> None:
    """In between by the logarithm; more than was probed is as what was probed."""
    rates = (MemoryRate(2**10, 16e9, 16e9, 16e9, 32e9), MemoryRate(2**20, 4e9, 4e9, 4e9, 8e9))
    cluster = Network("host", Spec(host=Host(shared_memory=SharedMemory(2**30, 2**26, rates=rates))))

    def gather_s(size: int, touched: int) -> float:
        runtime = replace(SHARED, touched_bytes=touched)
        return predict_time(build(Collective.ALL_GATHER, "direct", 2), cluster, 2 * size, runtime=runtime)

    assert gather_s(2**10, 2**26) == pytest.approx(2 * 2**10 / 16e9)
    assert gather_s(2**20, 2**26) == gather_s(2**20, 2**30) == pytest.approx(2 * 2**20 / 4e9)
    assert gather_s(2**20, 2**21) == gather_s(2**20, 1) == pytest.approx(2 * 2**20 / 8e9)
    halfway = int((2**21 * 2**26) ** 0.5)
    assert gather_s(2**20, halfway) == pytest.approx(2 * 2**20 * (1 / 4e9 + 1 / 8e9) / 2)


def test_only_one_host_whose_ranks_share_memory() -> None:
    """Messages go over links on several hosts, and on one that says nothing of it."""
    shared = host()
    for spec in (
        Spec(),
        structs.replace(shared.spec, ranks_per_host=2, num_hosts=2),
        structs.replace(shared.spec, ranks_per_host=2),
    ):
        assert replace(shared, spec=spec).shared_memory is None
