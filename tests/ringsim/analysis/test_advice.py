"""Tests of `ringsim.analysis.advice`: what it says is what simulating it gives."""

import pytest

from ringsim import Collective, Network, load_network, predict_time
from ringsim.analysis.advice import advise, better_networks
from ringsim.registry import build
from tests.ringsim.made_networks import SLOW_LINK, SLOW_RANK, made_network
from tests.ringsim.topologies import PrivateLinks, costs_of, with_costs

RING = build(Collective.ALL_REDUCE, "ring", 8)
UNIFORM = Network.uniform(latency_s=10e-6, bandwidth_bytes_per_s=1e9, reduce_bytes_per_s=5e9)


def test_each_time_is_that_of_a_simulation() -> None:
    """Of the network and the algorithm that it names, the fastest first; segments and no segments are alternatives."""
    size, done = 2**22, []
    advice = advise(RING, UNIFORM, size, on_progress=lambda *progress: done.append(progress))
    times = {other.name: other.sorting_s for other in advice.alternatives}
    assert advice.time_s == predict_time(RING, UNIFORM, size)
    better = with_costs(UNIFORM, bandwidth_bytes_per_s=2e9)
    assert times["twice the bandwidth of all links"] == predict_time(RING, better, size)
    for algorithm in ("halving_doubling", "binomial_tree", "ring/4", "gloo_ring"):
        assert times[algorithm] == predict_time(build(Collective.ALL_REDUCE, algorithm, 8, size), UNIFORM, size)
    assert "ring" not in times
    assert list(times.values()) == sorted(times.values())
    assert advice.gain(advice.alternatives[0]) == pytest.approx(advice.time_s / min(times.values()))
    segments = [other.name for other in advise(build(Collective.ALL_REDUCE, "ring/4", 4), UNIFORM, 1024).alternatives]
    assert ("ring" in segments, "ring/4" in segments) == (True, False)
    assert done == [(number, len(times), "simulating") for number in range(1, len(times) + 1)]


def test_a_network_of_hosts_gets_better_in_all_its_parts() -> None:
    """Links of every kind; faults go; what would change nothing is left out."""
    network = made_network(f"{SLOW_LINK}\n{SLOW_RANK}")
    better = dict(better_networks(network))
    twice, host = better["twice the bandwidth of all links"].spec.host, network.spec.host
    for link, before in ((twice.nics, host.nics), (twice.link, host.link)):
        assert link.bandwidth_bytes_per_s == 2 * before.bandwidth_bytes_per_s
    assert better["no slow ranks"].spec.slow_ranks == ()
    assert better["no slow links"].spec.slow_ranks == network.spec.slow_ranks
    assert not {"no failures", "twice the cores of each host"} & set(better)
    loopback = load_network("loopback")
    more = dict(better_networks(loopback))["twice the cores of each host"]
    assert more.spec.host.cores == 2 * loopback.spec.host.cores


def test_what_is_too_large_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes last; more is simulated where each pair has a link of its own."""
    monkeypatch.setattr("ringsim.analysis.advice.ADVISED_TRANSFERS", 20)
    for network in (UNIFORM, PrivateLinks.uniform(*costs_of(UNIFORM))):
        skipped = {other.name for other in advise(RING, network, 1024).alternatives if other.skipped}
        assert "ring/4" not in skipped
        assert ("direct" in skipped) is not isinstance(network, PrivateLinks)
    monkeypatch.setattr("ringsim.analysis.advice.ADVISED_UNSHARED_TRANSFERS", 60)
    *_, last = advise(RING, UNIFORM, 1024).alternatives
    assert (last.time_s, last.skipped.endswith(" transfers")) == (None, True)
