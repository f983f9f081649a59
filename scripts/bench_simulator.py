"""How many transfers a second the simulator does, and the same ring in plain SimPy beside it: `make bench`."""

import statistics
import time
from collections.abc import Callable, Generator
from itertools import pairwise
from typing import Any

import click
import simpy

from ringsim import Network, partition, predict_time, ring_all_reduce
from ringsim.provenance import provenance

NETWORK = Network(latency_s=10e-6, bandwidth_bytes_per_s=1.25e9, reduce_bytes_per_s=10e9)
CHUNK_BYTES = 1000
SIMPY_RANKS = 128


def simpy_ring_s(num_ranks: int, size_bytes: int) -> float:
    """A ring all-reduce as a SimPy user would write it: a process per rank, a store per link."""
    environment = simpy.Environment()
    bounds = partition(size_bytes, num_ranks).tolist()
    sizes = [high - low for low, high in pairwise(bounds)]
    links = [simpy.Store(environment) for _ in range(num_ranks)]

    def deliver(link: simpy.Store) -> Generator[Any, Any, None]:
        yield environment.timeout(NETWORK.latency_s)
        yield link.put(None)

    def rank(own: int) -> Generator[Any, Any, None]:
        for step in range(2 * (num_ranks - 1)):
            reducing = step < num_ranks - 1
            sent = (own - 1 - step) % num_ranks
            received = (sent - 1) % num_ranks
            yield environment.timeout(sizes[sent] / NETWORK.bandwidth_bytes_per_s)
            environment.process(deliver(links[(own + 1) % num_ranks]))
            yield links[own].get()
            if reducing:
                yield environment.timeout(sizes[received] / NETWORK.reduce_bytes_per_s)

    for own in range(num_ranks):
        environment.process(rank(own))
    environment.run()
    return float(environment.now)


def median_s(run: Callable[[], object], repeats: int) -> float:
    """The middle one of several times that `run` takes, in seconds."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def report(name: str, num_ranks: int, taken_s: float) -> float:
    """Print a row; transfers per second."""
    transfers = 2 * (num_ranks - 1) * num_ranks
    amount = f"{num_ranks:>6} ranks  {transfers:>13,} transfers"
    click.echo(f"{name:<8} {amount}  {taken_s:9.3f} s  {transfers / taken_s:>13,.0f} /s")
    return transfers / taken_s


@click.command()
@click.option("--large", is_flag=True, help="Also 65,536 ranks: 8.6 billion transfers, about two minutes.")
def main(large: bool) -> None:
    """Time ring all-reduces on links that are not shared, on one core."""
    where = provenance()
    click.echo(f"{where['machine']}, Python {where['python']}, numpy {where['numpy']}, {where['date']}")
    for num_ranks, repeats in [(SIMPY_RANKS, 5), (1024, 5), (4096, 5), *([(65536, 1)] if large else [])]:
        # Seven bytes more than even chunks: sizes differ, as they do in practice.
        size, schedule = num_ranks * CHUNK_BYTES + 7, ring_all_reduce(num_ranks)
        rate = report("ringsim", num_ranks, median_s(lambda s=schedule, b=size: predict_time(s, NETWORK, b), repeats))
        if num_ranks == SIMPY_RANKS:
            ours, theirs = predict_time(schedule, NETWORK, size), simpy_ring_s(num_ranks, size)
            simpy_rate = report("SimPy", num_ranks, median_s(lambda n=num_ranks, b=size: simpy_ring_s(n, b), 3))
            same = f"both say {ours * 1e3:.6f} and {theirs * 1e3:.6f} ms"
            click.echo(f"         ringsim / SimPy: {rate / simpy_rate:.0f} ({same})")


if __name__ == "__main__":
    main()
