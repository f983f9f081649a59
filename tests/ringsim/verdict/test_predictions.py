"""The charges of an all_reduce's time, on networks where they are known."""

from dataclasses import replace

import pytest

from ringsim.network.cluster import Cluster
from ringsim.network.spec import Processor, SlowLink, SlowRank, Spec
from ringsim.verdict.predictions import Bound, all_reduce_s, attribute
from tests.ringsim.made_probes import hosts, one_host

FREE = Processor()
SLOW = tuple(SlowLink(f"host2.nic0.{way}", slowdown=8.0) for way in ("out", "in"))


@pytest.mark.parametrize(
    ("cluster", "num_ranks", "size_bytes", "bound"),
    [
        (one_host(64, latency_s=5e-3), 4, 2**10, Bound.LATENCY),
        (hosts(bandwidth=1e7), 4, 2**24, Bound.BANDWIDTH),
        (one_host(1, latency_s=0.0), 8, 2**16, Bound.CORES),
        (hosts(bandwidth=1e8, slow=SLOW), 4, 2**24, Bound.STRAGGLER),
    ],
    ids=lambda value: value.name if isinstance(value, Bound) else "",
)
def test_each_bound_is_found(cluster: Cluster, num_ranks: int, size_bytes: int, bound: Bound) -> None:
    """Where one cost is far above all others; the four charges add up to the time of a call."""
    attribution = attribute(cluster, num_ranks, size_bytes)
    assert attribution.bound is bound
    assert attribution.share(bound) > 0.6
    assert attribution.time_s == pytest.approx(all_reduce_s(cluster, "ring", num_ranks, size_bytes))
    assert sum(map(attribution.share, Bound)) == pytest.approx(1.0)


def test_a_slow_rank_is_a_straggler() -> None:
    """Of a network file that says so."""
    spec = replace(one_host(64, latency_s=0.0).spec, slow_ranks=(SlowRank(1, 20.0),))
    assert attribute(Cluster("slow", spec), 4, 2**20).bound is Bound.STRAGGLER


def test_what_costs_nothing_is_bound_by_nothing() -> None:
    """A single rank: all shares are 0, without a division by no time."""
    attribution = attribute(Cluster("free", Spec(processor=FREE)), 1, 2**20)
    assert attribution.time_s == 0
    assert [attribution.share(bound) for bound in Bound] == [0.0] * 4
