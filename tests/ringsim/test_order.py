"""Orders of ranks: against all orders where there are few, and where one sees what is best."""

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from ringsim import Cluster, Collective, Network, build, load_network, predict_time, relabel, verify
from ringsim.order import default_budget, find_order

SIZE = 2**22
EXAMPLE = Path(__file__).parents[2] / "docs/networks/interleaved.toml"


def network_of(folder: Path, text: str) -> Cluster:
    """The one that a file with this text describes."""
    path = folder / "network.toml"
    path.write_text(text)
    return load_network(str(path))


def uneven_network(folder: Path, seed: int, num_ranks: int) -> Cluster:
    """Ranks dealt out at random to hosts with NICs of different rates, some half duplex."""
    rng = np.random.default_rng(seed)
    ranks = np.array_split(rng.permutation(num_ranks), rng.integers(2, 4))
    hosts = [
        f'[[hosts]]\nname = "h{number}"\nranks = {sorted(some.tolist())}\n'
        f'link = {{ latency = "2us", bandwidth = "{rng.integers(2, 9)}GB/s" }}\n'
        f'nic = {{ latency = "{rng.integers(1, 99)}us", bandwidth = "{rng.integers(1, 25)}Gbit/s", '
        f'duplex = "{rng.choice(["full", "half"])}" }}\n'
        for number, some in enumerate(ranks)
    ]
    return network_of(folder, "\n".join(hosts))


def cabled_network(folder: Path, seed: int, num_ranks: int) -> Cluster:
    """One rank a host, and a cable of its own kind between any two hosts."""
    rng = np.random.default_rng(seed)
    hosts = [f'[[hosts]]\nname = "h{rank}"\nranks = [{rank}]' for rank in range(num_ranks)]
    links = [
        f'[[links]]\nbetween = ["h{a}", "h{b}"]\nlatency = "{rng.integers(1, 99)}us"\n'
        f'bandwidth = "{rng.integers(1, 40)}Gbit/s"'
        for a in range(num_ranks)
        for b in range(a)
    ]
    return network_of(folder, "\n".join(hosts + links))


def fastest_s(algorithm: str, network: Cluster, num_ranks: int) -> float:
    """Of all orders, those of a ring that begin with another rank left out."""
    ring = build(Collective.ALL_REDUCE, algorithm, num_ranks)
    orders = [(0, *rest) for rest in permutations(range(1, num_ranks))]
    return min(predict_time(relabel(ring, order), network, SIZE) for order in orders)
