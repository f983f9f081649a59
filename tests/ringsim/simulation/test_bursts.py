"""Links that save up while they are not in use: by hand, and call after call."""

import pytest
from msgspec.structs import replace

from ringsim import Collective, Network, Schedule, predict_time
from ringsim.libraries import OURS
from ringsim.network.spec import Host, Link, Nics, Processor, Spec
from ringsim.registry import build
from ringsim.simulation import QueuedCall, time_queue
from ringsim.simulation.rates import PEAK_RATIO

RATE, BURST = 1e6, 1000


def ports(burst_bytes: int = BURST, latency_s: float = 0.0) -> Network:
    """Ranks with a port each that saves up so much."""
    return Network("ports", Spec(host=Host(link=Link(latency_s, RATE, burst_bytes=burst_bytes))))


def chain(rounds: int) -> Schedule:
    """Rank 0 sends a chunk to rank 1, and so many times in all, one after the other."""
    rows = [(0, 1, number, False) for number in range(rounds)]
    return Schedule.from_columns(Collective.ALL_REDUCE, "chain", 2, rounds, rows)


@pytest.mark.parametrize("size", [500, 1000, 1500, 9000])
def test_a_message_passes_at_once_as_far_as_the_burst_goes(size: int) -> None:
    """The rest goes at the rate, to which the bucket fills up meanwhile, too."""
    at_once_s = min(size / PEAK_RATIO / RATE, BURST / (PEAK_RATIO - 1) / RATE)
    rest_s = max(size - PEAK_RATIO * RATE * at_once_s, 0.0) / RATE
    assert predict_time(chain(1), ports(), size) == pytest.approx(at_once_s + rest_s, rel=1e-9)


def test_a_pause_fills_the_bucket() -> None:
    """A call half a millisecond after the last one finds 500 bytes, and one a second later all."""
    calls = [QueuedCall(chain(1), 2000, ready_s=ready_s) for ready_s in (0.0, 1.5e-3, 1.0)]
    taken_s = [span.end_s - span.begin_s for span in time_queue(calls, ports(), OURS.runtime)]
    assert taken_s == pytest.approx([1e-3, 1.5e-3, 1e-3], rel=2e-3)


CALLS = 60  # of which the first may still empty the bucket
NETWORKS = {
    "a rank a host": Spec(host=Host(cores=2, link=Link(3e-5, 1e8, burst_bytes=2**17))),
    "two ranks a host": Spec(host=Host(nics=Nics(3e-5, 1e8, burst_bytes=2**17)), ranks_per_host=2),
}


@pytest.mark.parametrize(
    ("algorithm", "size", "name"),
    [
        *(("ring", size, name) for size in (2**14, 2**20) for name in NETWORKS),
        ("halving_doubling", 2**17, "two ranks a host"),
        ("binomial_tree", 2**20, "a rank a host"),
    ],
)
def test_calls_that_follow_each_other_take_what_is_predicted(algorithm: str, size: int, name: str) -> None:
    """As many calls in a row settle at the time that one is predicted to take: alone, or as links gather its bytes."""
    processor = Processor(3e-5, 3e-5, 1e10, 5e9, call_s=1e-4)
    network = Network("", replace(NETWORKS[name], processor=processor))
    schedule = build(Collective.ALL_REDUCE, algorithm, 4)
    call = QueuedCall(schedule, size, call_s=OURS.call_cost(network).call_s)
    spans = time_queue([call] * CALLS, network, OURS.runtime)
    settled_s = (spans[-1].end_s - spans[CALLS // 2 - 1].end_s) / (CALLS - CALLS // 2)
    assert OURS.predict_call(schedule, network, size) == pytest.approx(settled_s, rel=0.01)
