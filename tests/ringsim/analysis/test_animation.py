"""Tests of `ringsim.analysis.animation` and `troubles`: what a moving picture shows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ringsim import Network, load_network
from ringsim.analysis.animation import MAX_RANKS, MAX_TRANSFERS, make_animation
from ringsim.analysis.troubles import TroubledRank, find_troubles
from ringsim.registry import build
from ringsim.schedule import Collective, Schedule, ScheduleError, Transfer
from ringsim.simulation import simulate
from tests.ringsim.made_networks import DEAD_LINK, SLOW_LINK, SLOW_RANK, made_network, network_of_nics

NETWORK = Network(latency_s=10e-6, bandwidth_bytes_per_s=1e9, reduce_bytes_per_s=5e9)


def test_the_counts_of_a_ring() -> None:
    """Each share is added once: 2, 3, then all 4; all that follows is complete."""
    animation = make_animation(build(Collective.ALL_REDUCE, "ring", 4), NETWORK, 4096)
    by_step = [sorted(set(animation.held[animation.timeline.step == step].tolist())) for step in range(6)]
    assert by_step == [[2], [3], [4], [4], [4], [4]]
    assert animation.finished.tolist() == (animation.timeline.step >= 2).tolist()
    assert animation.needed == 4
    assert (animation.initial == np.arange(4)[:, None]).all()
    assert animation.wanted.all()
    assert (animation.held == animation.result.sum(axis=1)).all()


def test_steps_end_in_their_order() -> None:
    """When all transfers up to that step are applied; the last with the run."""
    animation = make_animation(build(Collective.ALL_REDUCE, "torus", 6), NETWORK, 6000)
    assert (np.diff(animation.step_end_s) >= 0).all()
    assert animation.step_end_s[-1] == animation.timeline.time_s
    rows = animation.timeline.step <= 3
    assert animation.step_end_s[3] == animation.timeline.applied_s[rows].max()


def test_a_timeline_in_another_order_means_the_same() -> None:
    """A record lists the transfers of a step by their senders."""
    schedule = build(Collective.ALL_REDUCE, "halving_doubling", 8)
    timeline = simulate(schedule, NETWORK, 8192)
    order = np.lexsort((timeline.chunk, timeline.dst, timeline.src, timeline.step))[::-1]
    order = order[np.argsort(timeline.step[order], kind="stable")]
    columns = {name: getattr(timeline, name)[order] for name in timeline.columns()}
    shuffled = make_animation(schedule, NETWORK, 8192, timeline=replace(timeline, **columns))
    plain = make_animation(schedule, NETWORK, 8192)
    assert shuffled.held.tolist() == plain.held[order].tolist()
    assert (shuffled.sent == plain.sent[order]).all()


def test_a_run_that_never_finishes_says_who_hangs() -> None:
    """And its steps end, as far as they do, where it came to its stop."""
    schedule = build(Collective.ALL_REDUCE, "ring", 4)
    animation = make_animation(schedule, made_network(DEAD_LINK), 2**20)
    assert animation.stall is not None
    assert [rank.rank for rank in animation.stall.ranks if rank.doing == "sends"] == [2]
    assert np.isfinite(animation.step_end_s).all()
    assert animation.step_end_s[-1] == animation.timeline.until_s
    (pair,) = [pair for pair in animation.troubles.pairs if pair.fails_at_s is not None]
    assert (pair.src, pair.dst, pair.fails_at_s) == (2, 3, 300e-6)


def test_a_slow_link_and_a_slow_rank_are_named() -> None:
    """Nothing else is."""
    schedule = build(Collective.ALL_REDUCE, "ring", 4)
    troubles = find_troubles(schedule, made_network(f"{SLOW_LINK}\n{SLOW_RANK}"), 4 * 2**30)
    (pair,) = troubles.pairs
    assert (pair.src, pair.dst) == (2, 3)
    assert pair.slowdown == pytest.approx(4, rel=1e-3)
    assert troubles.ranks == (TroubledRank(1, 3.0),)
    assert find_troubles(schedule, NETWORK, 2**20).pairs == ()
    assert find_troubles(schedule, NETWORK, 2**20).parts == ()
    assert find_troubles(schedule, made_network(), 2**20).ranks == ()


def test_a_nic_that_is_slower_than_the_others_is_named() -> None:
    """With its rate and theirs; what it slows down is slow, and nothing else."""
    ring = build(Collective.ALL_REDUCE, "ring", 4)
    troubles = find_troubles(ring, network_of_nics(10, 10, 1, 10), 2**22)
    assert [str(part) for part in troubles.parts] == ["the NIC of host c gives 125 MB/s, most give 1.25 GB/s"]
    assert [(pair.src, pair.dst, round(pair.slowdown)) for pair in troubles.pairs] == [(1, 2, 10), (2, 3, 10)]


@pytest.mark.parametrize(
    ("rates", "slow"),
    [
        ((10, 1), ["b"]),
        ((1, 1, 10), []),
        ((10, 10, 9.9), []),
        ((10, 1, 2, 10, 10), ["b", "c"]),
        ((1, 10, 1, 10), ["a", "c"]),
    ],
)
def test_slow_is_what_most_others_are_not(rates: tuple[float, ...], slow: list[str]) -> None:
    """Of two NICs the slower one; not all others where one is faster; the slowest first."""
    parts = find_troubles(build(Collective.ALL_REDUCE, "direct", len(rates)), network_of_nics(*rates), 2**22).parts
    assert [part.name for part in parts] == [f"the NIC of host {name}" for name in slow]


def test_a_slow_cable_is_named_if_a_transfer_takes_it() -> None:
    """A ring over two pairs of hosts does; a schedule within one of them does not."""
    network = load_network(Path(__file__).parents[3] / "docs" / "networks" / "cables.toml")
    ring = find_troubles(build(Collective.ALL_REDUCE, "ring", 4), network, 2**22)
    assert [str(part) for part in ring.parts] == ["the link between left and right gives 125 MB/s, most give 1.25 GB/s"]
    assert [(pair.src, pair.dst) for pair in ring.pairs] == [(1, 2), (3, 0)]
    steps = [[Transfer(0, 1, 0, False)], [Transfer(1, 0, 0, False)]]
    within = Schedule.from_transfers(Collective.BROADCAST, "within", 4, 1, steps)
    assert find_troubles(within, network, 2**22).parts == ()


def test_what_no_page_can_show_is_refused() -> None:
    """In one line that says the limit and what to do instead."""
    with pytest.raises(ValueError, match=f"has 32,512 transfers: an animation shows at most {MAX_TRANSFERS:,}; take"):
        make_animation(build(Collective.ALL_REDUCE, "ring", 128), NETWORK, 2**20)
    with pytest.raises(ValueError, match=f"has 200 ranks: an animation shows at most {MAX_RANKS}; .* --trace"):
        make_animation(build(Collective.BROADCAST, "binomial_tree", 200), NETWORK, 2**20)


def test_a_schedule_that_is_wrong_is_refused() -> None:
    """A picture would show sums that are none."""
    schedule = Schedule.from_transfers(Collective.BROADCAST, "mine", 3, 1, [[Transfer(0, 1, 0, reduce=False)]])
    with pytest.raises(ScheduleError, match="rank 2"):
        make_animation(schedule, NETWORK, 100)
