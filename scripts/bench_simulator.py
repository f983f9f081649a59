"""Measure the simulator's transfers per second, compared with the same ring in plain SimPy."""

import statistics
import time
import tracemalloc
from collections.abc import Callable, Generator
from itertools import pairwise
from typing import Any

import click
import simpy
from msgspec.structs import replace

from ringsim import Network, load_network, predict_time, ring_all_reduce
from ringsim.algorithms import double_binary_tree_all_reduce, hierarchical_all_reduce
from ringsim.measurements import provenance
from ringsim.network import Host, Jitter, Link, MessageCosts, Nics, Spec
from ringsim.schedule import partition
from ringsim.simulation import simulate

COSTS = MessageCosts(latency_s=10e-6, bandwidth_bytes_per_s=1.25e9, reduce_bytes_per_s=10e9)
NETWORK = Network.uniform(*COSTS)
HOSTS = Spec(Host(link=Link(3e-6, 300e9), nics=Nics(5e-6, 50e9)), ranks_per_host=8)  # a NIC for the ranks of a host
CHUNK_BYTES, SHARED_CHUNK_BYTES = 1000, 2**20
SIMPY_RANKS = 128
TREE_RANKS, TREE_SIZE_BYTES = 512, 64 * 2**20


def simpy_ring_s(num_ranks: int, size_bytes: int) -> float:
    """Return the time of a ring all-reduce in plain SimPy: a process per rank, a store per link."""
    environment = simpy.Environment()
    bounds = partition(size_bytes, num_ranks).tolist()
    sizes = [high - low for low, high in pairwise(bounds)]
    links = [simpy.Store(environment) for _ in range(num_ranks)]

    def deliver(link: simpy.Store) -> Generator[Any, Any, None]:
        yield environment.timeout(COSTS.latency_s)
        yield link.put(None)

    def rank(own: int) -> Generator[Any, Any, None]:
        for step in range(2 * (num_ranks - 1)):
            reducing = step < num_ranks - 1
            sent = (own - 1 - step) % num_ranks
            received = (sent - 1) % num_ranks
            yield environment.timeout(sizes[sent] / COSTS.bandwidth_bytes_per_s)
            environment.process(deliver(links[(own + 1) % num_ranks]))
            yield links[own].get()
            if reducing:
                yield environment.timeout(sizes[received] / COSTS.reduce_bytes_per_s)

    for own in range(num_ranks):
        environment.process(rank(own))
    environment.run()
    return float(environment.now)


def median_s(run: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of several calls of `run`."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def report(name: str, num_ranks: int, transfers: int, taken_s: float) -> float:
    """Print a row: transfers per second."""
    amount = f"{num_ranks:>6} ranks  {transfers:>13,} transfers"
    click.echo(f"{name:<24} {amount}  {taken_s:9.3f} s  {transfers / taken_s:>13,.0f} /s")
    return transfers / taken_s


def report_rings(large: bool) -> None:
    """Time ring all-reduces on links that are not shared, without a timeline."""
    for num_ranks, repeats in [(SIMPY_RANKS, 5), (1024, 5), (4096, 5), *([(65536, 1)] if large else [])]:
        # Seven bytes more than even chunks: sizes differ, as they do in practice.
        size, schedule = num_ranks * CHUNK_BYTES + 7, ring_all_reduce(num_ranks)
        taken_s = median_s(lambda s=schedule, b=size: predict_time(s, NETWORK, b), repeats)
        rate = report("ring", num_ranks, schedule.num_transfers, taken_s)
        if num_ranks == SIMPY_RANKS:
            ours, theirs = predict_time(schedule, NETWORK, size), simpy_ring_s(num_ranks, size)
            taken_s = median_s(lambda n=num_ranks, b=size: simpy_ring_s(n, b), 3)
            simpy_rate = report("ring in SimPy", num_ranks, schedule.num_transfers, taken_s)
            same = f"both say {ours * 1e3:.6f} and {theirs * 1e3:.6f} ms"
            click.echo(f"{'':<24} ringsim / SimPy: {rate / simpy_rate:.0f} ({same})")


def report_shared() -> None:
    """Time hierarchical all-reduces on hosts of 8 ranks with one NIC, recording every transfer."""
    jittery = replace(HOSTS, jitter=Jitter(latency=0.1, compute=0.1))
    cases = [
        ("shared NIC", HOSTS, 1024, 0),
        ("shared NIC, uneven (slow)", HOSTS, 256, 7),
        ("shared NIC, jitter (slow)", jittery, 128, 0),
    ]
    for name, spec, num_ranks, odd_bytes in cases:
        schedule, size = hierarchical_all_reduce(num_ranks, 8), num_ranks * SHARED_CHUNK_BYTES + odd_bytes
        cluster = Network("hosts", spec)
        taken_s = median_s(lambda s=schedule, c=cluster, b=size: simulate(s, c, b), 1)
        report(name, num_ranks, schedule.num_transfers, taken_s)


def report_tree() -> None:
    """Time a double tree whose ranks send to several others at once: nearly all messages share a resource."""
    schedule = double_binary_tree_all_reduce(TREE_RANKS)
    taken_s = median_s(lambda: simulate(schedule, load_network("ib-400g"), TREE_SIZE_BYTES), 1)
    report("double tree, shared NIC", TREE_RANKS, schedule.num_transfers, taken_s)


def report_memory() -> None:
    """Print the peak memory per recorded transfer."""
    for name, network, schedule in [
        ("ring", NETWORK, ring_all_reduce(512)),
        ("shared NIC", Network("hosts", HOSTS), hierarchical_all_reduce(512, 8)),
    ]:
        tracemalloc.start()
        simulate(schedule, network, 512 * CHUNK_BYTES)
        peak = tracemalloc.get_traced_memory()[1] / schedule.num_transfers
        tracemalloc.stop()
        click.echo(f"{name:<24} {512:>6} ranks  {schedule.num_transfers:>13,} transfers  {peak:9.0f} bytes each")


@click.command()
@click.option("--large", is_flag=True, help="Also simulate 65,536 ranks: 8.6 billion transfers, about two minutes.")
def main(large: bool) -> None:
    """Time the simulator, on one core."""
    where = provenance()
    click.echo(f"{where['machine']}, Python {where['python']}, numpy {where['numpy']}, {where['date']}")
    report_rings(large)
    report_shared()
    report_tree()
    report_memory()


if __name__ == "__main__":
    main()
