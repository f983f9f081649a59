"""Both engines against each other, and the event engine against a plain simulator of one transfer at a time."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim import Cluster, Network, Schedule, Timeline, load_network, predict_time
from ringsim.network.spec import Host, Link, Spec
from ringsim.network.topology import Topology
from ringsim.registry import build
from ringsim.schedule import dependencies
from ringsim.schedule.collective import Collective
from ringsim.schedule.step import Ints
from ringsim.simulation import simulate
from ringsim.simulation.engines.event_engine import run_events
from ringsim.simulation.engines.step_engine import is_for_steps, run_steps, time_steps
from tests.refusals import refused
from tests.ringsim.plain_events import COLUMNS, PlainRun
from tests.ringsim.strategies import every_algorithm, rings, schedules, uniform_networks
from tests.ringsim.topologies import private_topologies, shared_topologies

MAX_RANKS = 4


def chunk_bytes(schedule: Schedule, size: int) -> Ints:
    """As `simulate` cuts them."""
    return schedule.chunk_bytes(size)


def times(timeline: Timeline) -> np.ndarray:
    """(5, num_transfers)."""
    return np.array([getattr(timeline, name) for name in COLUMNS])


def assert_engines_agree(schedule: Schedule, topology: Topology, size: int) -> None:
    """To the last bit, in all columns, in order or not."""
    sizes = chunk_bytes(schedule, size)
    by_step = run_steps(schedule, topology, sizes)
    for in_order in (False, True):
        by_event = run_events(dependencies(schedule, in_order=in_order), topology, sizes)
        for name in ("step", "src", "dst", "chunk", "reduce", *COLUMNS):
            assert getattr(by_step, name).tolist() == getattr(by_event, name).tolist(), name
        assert time_steps(schedule, topology, sizes) == by_event.time_s


@given(rings(), uniform_networks(), st.integers(0, 10**6))
def test_engines_agree_on_uniform_networks(schedule: Schedule, network: Network, size: int) -> None:
    """For any ring."""
    assert_engines_agree(schedule, network.topology(schedule.num_ranks), size)


@given(rings(), private_topologies(MAX_RANKS), st.integers(0, 10**6))
def test_engines_agree_where_every_pair_is_different(schedule: Schedule, topology: Topology, size: int) -> None:
    """With slow ranks, costs by pair, and jitter."""
    assert_engines_agree(schedule, topology, size)


RINGS = ("ring", "gloo_ring")


@every_algorithm
def test_engines_agree_on_every_ring(collective: Collective, algorithm: str) -> None:
    """Also on other algorithms that happen to be one, as those of two levels with one rank in a level."""
    for num_ranks in (1, 2, 6, 8):
        schedule = build(collective, algorithm, num_ranks)
        topology = Network(1e-5, 1e9, 4e9, 1e-6, 2e-6).topology(num_ranks)
        if is_for_steps(schedule, topology):
            assert_engines_agree(schedule, topology, 10**6 + 7)
        else:
            assert algorithm not in RINGS


STAR, LINK = load_network("docs/networks/star.toml"), Network(2e-6, 1.25e9)  # the same from NIC to NIC


@every_algorithm
def test_a_star_is_a_uniform_network(collective: Collective, algorithm: str) -> None:
    """Transfer by transfer; only the rounding of the latency differs."""
    for num_ranks in (6, 8):
        schedule = build(collective, algorithm, num_ranks)
        star, uniform = (times(simulate(schedule, network, 2**24)) for network in (STAR, LINK))
        np.testing.assert_allclose(star, uniform, rtol=1e-9)


def assert_as_in_plain_python(schedule: Schedule, topology: Topology, size: int) -> None:
    """All columns, within rounding, in order or not."""
    sizes = chunk_bytes(schedule, size)
    for in_order in (False, True):
        plain = np.array(PlainRun(schedule, topology, sizes, in_order).times()).reshape(-1, len(COLUMNS)).T
        by_event = times(run_events(dependencies(schedule, in_order=in_order), topology, sizes))
        np.testing.assert_allclose(by_event, plain, rtol=1e-9, atol=1e-12)


@given(schedules(channels_of_a_pair=2), shared_topologies(MAX_RANKS), st.integers(0, 10**5))
def test_sharing_is_as_in_plain_python(schedule: Schedule, topology: Topology, size: int) -> None:
    """Anything may be shared: links, a memory that counts twice, cores."""
    assert_as_in_plain_python(schedule, topology, size)


@given(schedules(), shared_topologies(MAX_RANKS, failures=True), st.integers(0, 10**5))
def test_failures_are_as_in_plain_python(schedule: Schedule, topology: Topology, size: int) -> None:
    """Resources may fail from the start, or in the middle of messages."""
    assert_as_in_plain_python(schedule, topology, size)


@given(schedules(channels_of_a_pair=2), shared_topologies(MAX_RANKS, failures=True, bursts=True), st.integers(0, 10**5))
def test_bursts_are_as_in_plain_python(schedule: Schedule, topology: Topology, size: int) -> None:
    """Any resource may save up while it is used little, let that pass at once, and fail all the same."""
    assert_as_in_plain_python(schedule, topology, size)


NAN = float("nan")
IMPOSSIBLE = [
    ({"send_overhead_s": NAN}, "send_overhead_s of rank 0 is nan: must be finite and not negative"),
    ({"receive_overhead_s": -1.0}, "receive_overhead_s of rank 0 is -1.0: must be finite and not negative"),
    ({"reduce_bytes_per_s": 0.0}, "reduce_bytes_per_s of rank 0 is 0.0: must be greater than 0"),
    ({"copy_bytes_per_s": NAN}, "copy_bytes_per_s of rank 0 is nan: must be greater than 0"),
    ({"capacity": NAN}, "capacity of rank0.out is nan: must be greater than 0"),
    ({"fails_at_s": NAN}, "fails_at_s of rank0.out is nan: must be not negative"),
    ({"latency_s": NAN}, "latency_s of path 0 is nan: must be finite and not negative"),
    ({"use_per_byte": -1.0}, "use_per_byte of path 0 is -1.0: must be finite and not negative"),
    ({"bytes_per_s": 0.0}, "bytes_per_s of path 0 is 0.0: must be greater than 0"),
]


class Altered:
    """A network on whose topology a column has another value."""

    def __init__(self, cluster: Cluster, column: str, value: float) -> None:
        self._cluster, self._column, self._value = cluster, column, value

    def topology(self, num_ranks: int) -> Topology:
        topology = self._cluster.topology(num_ranks)
        paths = topology.paths
        topology.paths = lambda src, dst: self._altered(paths(src, dst))  # type: ignore[method-assign]
        topology.processors = self._altered(topology.processors)
        topology.resources = self._altered(topology.resources)
        return topology

    def _altered(self, columns: Any) -> Any:
        """Of this object, if it has the column."""
        old = getattr(columns, self._column, None)
        return columns if old is None else replace(columns, **{self._column: np.full(old.shape, self._value)})

    def as_dict(self) -> dict[str, Any]:
        return self._cluster.as_dict()


@pytest.mark.parametrize("cores", [None, 2], ids=["by step", "by event"])
@pytest.mark.parametrize(("change", "message"), IMPOSSIBLE)
@pytest.mark.timeout(60)
def test_costs_with_which_time_cannot_go_on(change: dict[str, float], message: str, cores: int | None) -> None:
    """They are named; the event engine would never come to an end."""
    host = Host(cores=cores, link=Link(1e-6, 1e9))
    ((column, value),) = change.items()
    network = Altered(Cluster("made up", Spec(host=host)), column, value)
    for run in (simulate, predict_time):
        with refused(message):
            run(build(Collective.ALL_REDUCE, "ring", 4), network, 1000)
