"""Machines for tests: any table of paths, and what hypothesis draws of them."""

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from ringsim.network import MessageCosts, Network
from ringsim.network.topology import NONE, Floats, Ints, Jitter, Paths, Processors, Resources, Topology


@dataclass(eq=False)
class TableTopology(Topology):
    """Paths written out; latency_s, bytes_per_s: (num_ranks, num_ranks); resource, use: one more axis, the width."""

    num_ranks: int
    resources: Resources
    processors: Processors
    jitter: Jitter | None
    latency_s: Floats
    bytes_per_s: Floats
    resource: Ints
    use: Floats

    def paths(self, src: Ints, dst: Ints) -> Paths:
        tables = (self.latency_s, self.bytes_per_s, self.resource, self.use)
        return Paths(*(table[src, dst] for table in tables))


def capacities(topology: Topology) -> dict[str, float]:
    """By name."""
    return dict(zip(topology.resources.names, topology.resources.capacity.tolist(), strict=True))


def path(topology: Topology, src: int, dst: int, channel: int = 0) -> tuple[float, float, dict[str, float]]:
    """Latency, limit of the message itself, and what a byte uses, by name."""
    paths = topology.connection_paths(np.array([src]), np.array([dst]), np.array([channel]))
    pairs = zip(paths.resource[0], paths.use_per_byte[0], strict=True)
    uses = {topology.resources.names[number]: float(use) for number, use in pairs if number != NONE}
    return float(paths.latency_s[0]), float(paths.bytes_per_s[0]), uses


def costs_of(network: Network) -> MessageCosts:
    """The costs of a message on a uniform network."""
    assert network.message_costs is not None
    return network.message_costs


def with_costs(network: Network, **changes: float) -> Network:
    """A uniform network with other costs."""
    return type(network).uniform(**costs_of(network)._replace(**changes)._asdict())


class PrivateLinks(Network):
    """Each pair of ranks has a link of its own, so that nothing is shared, whatever the schedule."""

    def topology(self, num_ranks: int) -> TableTopology:
        """As the uniform network has it, without ports."""
        pairs = (num_ranks, num_ranks)
        latency, rate = (np.full(pairs, cost) for cost in costs_of(self)[:2])
        processors = Network.topology(self, num_ranks).processors
        empty = np.empty((*pairs, 0))
        return TableTopology(
            num_ranks, Resources.steady((), np.empty(0)), processors, None, latency, rate, empty.astype(int), empty
        )


def resources(
    capacity: list[float], fails_at_s: list[float] | None = None, burst_bytes: list[float] | None = None
) -> Resources:
    """With these capacities, which last for ever and save up nothing if nothing else is said."""
    fails = [math.inf] * len(capacity) if fails_at_s is None else fails_at_s
    bursts = [0.0] * len(capacity) if burst_bytes is None else burst_bytes
    names = tuple(f"r{number}" for number in range(len(capacity)))
    return Resources(names, np.array(capacity), np.array(fails), np.array(bursts))


def ranks_with(num_ranks: int, *, overhead_s: float = 0.0, reduce_bytes_per_s: float = math.inf, cores: int = NONE,
               copy_bytes_per_s: float = math.inf) -> Processors:  # fmt: skip
    """All alike."""
    columns = (np.full(num_ranks, value) for value in (overhead_s, overhead_s, reduce_bytes_per_s))
    return Processors(*columns, np.full(num_ranks, cores), np.full(num_ranks, copy_bytes_per_s))


Rng = np.random.Generator


def _rates(rng: Rng, *shape: int) -> Floats:
    """Some of them alike, some not."""
    return np.where(rng.random(shape) < 0.5, rng.integers(1, 4, shape) * 1e6, 10 ** rng.uniform(5, 8, shape))


def _rates_or_none(rng: Rng, *shape: int) -> Floats:
    return np.where(rng.random(shape) < 0.3, math.inf, _rates(rng, *shape))


def _times(rng: Rng, *shape: int) -> Floats:
    return rng.choice([0.0, 1e-3, rng.uniform(0, 1e-2), rng.uniform(0, 1e-2)], size=shape)


def private_topology(rng: Rng, num_ranks: int) -> TableTopology:
    """Every pair and rank with costs of its own, and nothing shared."""
    pairs = (num_ranks, num_ranks)
    processors = Processors(
        _times(rng, num_ranks),
        _times(rng, num_ranks),
        _rates_or_none(rng, num_ranks),
        np.full(num_ranks, NONE),
        _rates_or_none(rng, num_ranks),
    )
    jitter = Jitter(int(rng.integers(100)), 0.3, 0.2) if rng.random() < 0.3 else None
    tables = _times(rng, *pairs), _rates_or_none(rng, *pairs)
    empty = np.empty((*pairs, 0))
    return TableTopology(
        num_ranks, Resources.steady((), np.empty(0)), processors, jitter, *tables, empty.astype(int), empty
    )


def shared_topology(rng: Rng, num_ranks: int, *, failures: bool = False, bursts: bool = False) -> TableTopology:
    """The same with resources that any paths may use, by different amounts, and ranks that may be short of cores."""
    topology, number = private_topology(rng, num_ranks), int(rng.integers(1, 5))
    fails = np.where(rng.random(number) < 0.5, _times(rng, number), math.inf) if failures else np.full(number, math.inf)
    rates = _rates(rng, number)
    saved = np.where(rng.random(number) < 0.7, rates * _times(rng, number), 0.0) if bursts else np.zeros(number)
    topology.resources = resources(list(rates), list(fails), list(saved))
    topology.use = rng.choice([0.0, 0.5, 1.0, 1.0, 2.0], size=(num_ranks, num_ranks, number))
    topology.resource = np.where(topology.use > 0, np.arange(number), NONE)
    if rng.random() < 0.5:
        _put_on_cores(topology, float(rng.choice([0.5, 1.0, 2.0])), rng.random(num_ranks) < 0.6)
    return topology


def _put_on_cores(topology: TableTopology, num_cores: float, on_host: np.ndarray) -> None:
    """One host for some of the ranks; a byte takes time on its cores at each end."""
    number, processors = len(topology.resources.names), topology.processors
    before = topology.resources
    topology.resources = resources(
        [*before.capacity, num_cores], [*before.fails_at_s, math.inf], [*before.burst_bytes, 0.0]
    )
    cores = np.where(on_host, number, NONE)
    topology.processors = Processors(
        processors.send_overhead_s, processors.receive_overhead_s, processors.reduce_bytes_per_s, cores,
        processors.copy_bytes_per_s,
    )  # fmt: skip
    at_end = np.where(on_host, 1 / processors.copy_bytes_per_s, 0.0)
    use = (at_end[:, None] + at_end[None, :])[..., None]
    topology.resource = np.concatenate([topology.resource, np.where(use > 0, number, NONE)], axis=-1)
    topology.use = np.concatenate([topology.use, use], axis=-1)
    topology.bytes_per_s = np.minimum(topology.bytes_per_s, np.minimum.outer(*[processors.copy_bytes_per_s] * 2))


_RNGS = st.integers(0, 2**32).map(np.random.default_rng)


def private_topologies(num_ranks: int) -> st.SearchStrategy[TableTopology]:
    """Any `private_topology`."""
    return _RNGS.map(lambda rng: private_topology(rng, num_ranks))


def shared_topologies(
    num_ranks: int, *, failures: bool = False, bursts: bool = False
) -> st.SearchStrategy[TableTopology]:
    """Any `shared_topology`."""
    return _RNGS.map(lambda rng: shared_topology(rng, num_ranks, failures=failures, bursts=bursts))
