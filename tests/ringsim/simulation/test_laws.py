"""Laws that every simulated time obeys, whatever the schedule and the network.

Every time is a maximum of earlier times plus costs. So what grows with each cost grows with all, also when rounded:
where a law says "never less" or "the same" it is meant to the last bit.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from hypothesis import assume, given
from hypothesis import strategies as st

from ringsim import Network, Schedule, permute_ranks, predict_time
from ringsim.network import MessageCosts
from ringsim.simulation import IN_ORDER, RULE, has_contention, simulate
from tests.ringsim.simulation.test_engines import MAX_RANKS, by_event, times
from tests.ringsim.strategies import built_in_schedules, networks, schedules, uniform_networks
from tests.ringsim.topologies import PrivateLinks, TableTopology, costs_of, shared_topologies, with_costs

COSTS = MessageCosts._fields

any_schedules = schedules() | built_in_schedules()
sizes = st.integers(0, 300)
private_networks = uniform_networks(PrivateLinks)


@given(any_schedules, sizes, networks(), st.integers(0, 20))
def test_a_run_keeps_order_and_units(schedule: Schedule, size: int, network: Network, doublings: int) -> None:
    """A message starts, leaves, arrives and is applied in this order; what serves does so one after another.

    Channels, connections, and what is written to one chunk; in order each rank besides. All bytes and all rates times
    2^k change nothing; all costs times 2^k, the rates divided by it, give all times times 2^k.
    """
    parts = [step.channel * schedule.num_ranks + step.src for step in schedule.steps]
    sender: npt.NDArray[np.int64] = np.concatenate([np.empty(0, dtype=np.int64), *parts])
    for runtime in (RULE, IN_ORDER):
        timeline = simulate(schedule, network, size, runtime=runtime)
        assert (np.diff(times(timeline), axis=0) >= 0).all()
        connection = sender * schedule.num_ranks + timeline.dst
        chunk = timeline.dst * schedule.num_chunks + timeline.chunk
        applying = (connection, chunk, *([timeline.dst] if runtime.in_order else []))
        keys = [(sender, "start_s", "sent_s"), *((key, "apply_s", "applied_s") for key in applying)]
        for key, begin, end in keys:
            for value in np.unique(key):
                mine = key == value
                assert (getattr(timeline, begin)[mine][1:] >= getattr(timeline, end)[mine][:-1]).all()
    timeline, k = simulate(schedule, network, size), 2**doublings
    assert timeline.time_s == predict_time(schedule, network, size)
    costs = costs_of(network)._asdict()
    quick = with_costs(network, **{name: cost * k for name, cost in costs.items() if name.endswith("_per_s")})
    assert (times(simulate(schedule, quick, size * k, element_bytes=k)) == times(timeline)).all()
    slow = with_costs(network, **{n: cost * (1 / k if n.endswith("_per_s") else k) for n, cost in costs.items()})
    assert (times(simulate(schedule, slow, size)) == times(timeline) * k).all()


@given(schedules(), shared_topologies(MAX_RANKS), st.integers(0, 10**5))
def test_twice_of_everything_takes_twice_as_long(schedule: Schedule, topology: TableTopology, size: int) -> None:
    """Twice the bytes, latencies and overheads where anything is shared, so no time is compared with a fixed one."""
    chunks = schedule.chunk_bytes(size)
    once = times(by_event(schedule, topology, chunks))
    topology.latency_s = topology.latency_s * 2
    of = topology.processors
    overheads = {name: getattr(of, name) * 2 for name in ("send_overhead_s", "receive_overhead_s")}
    topology.processors = replace(of, **overheads)
    assert (times(by_event(schedule, topology, chunks * 2)) == 2 * once).all()


@given(any_schedules, sizes, st.integers(0, 300), private_networks, private_networks, st.sampled_from(COSTS))
def test_never_faster(schedule: Schedule, size: int, more: int, network: Network, other: Network, name: str) -> None:
    """No transfer is earlier with a higher latency or overhead, a lower rate, or larger chunks, but as Gloo cuts."""
    assume(not has_contention(schedule, network.topology(schedule.num_ranks)))  # as channels between two ranks do
    before = times(simulate(schedule, network, size))
    worse = (min if name.endswith("_per_s") else max)(getattr(costs_of(one), name) for one in (network, other))
    assert (times(simulate(schedule, with_costs(network, **{name: worse}), size)) >= before).all()
    larger = -(-size // schedule.num_chunks) * schedule.num_chunks + more
    if (schedule.chunk_bytes(larger) >= schedule.chunk_bytes(size)).all():
        assert (times(simulate(schedule, network, larger)) >= before).all()


@given(any_schedules, sizes, networks(), st.data())
def test_numbers_of_ranks_do_not_count(schedule: Schedule, size: int, network: Network, data: st.DataObject) -> None:
    """All pairs are alike: every transfer happens when it did. Chunks that go with ranks must be equally large.

    To the last bit where nothing is shared; else rates are added up in another order.
    """
    if schedule.collective.num_shares(schedule.num_ranks) > 1:
        size *= schedule.num_chunks
    everyone = st.permutations(range(schedule.num_ranks))
    order = data.draw(everyone.filter(lambda order: order[0] == 0 or not schedule.collective.has_root))
    moved = simulate(permute_ranks(schedule, order), network, size)
    rtol = 0 if isinstance(network, PrivateLinks) else 1e-9
    np.testing.assert_allclose(times(moved), times(simulate(schedule, network, size)), rtol=rtol, atol=0)
