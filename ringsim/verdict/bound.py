"""`attribute`: what an all_reduce's time is due to, by simulating it on networks that lack one cost after another.

The costs are taken away in this order, and each is charged with the time that its going saves:

1. stragglers: links and ranks that are slower than the others become like them;
2. cores: every rank gets a core whenever it needs one;
3. latency: messages and calls cost nothing but their bytes.

What then is left is bandwidth: bytes on links, through memory, copied and added up. So the four add up to the whole.
Stragglers and too few cores come first, since they make every message and every byte cost more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ringsim.network import Cluster, with_numbers
from ringsim.registry import build
from ringsim.schedule import Collective
from ringsim.simulation import OURS, predict_call

# The fields of a network that say what messages and calls cost, whatever their bytes.
_LATENCIES = {"latency_s", "uplink_latency_s", "send_overhead_s", "receive_overhead_s", "call_s", "torch_call_s"}


class Bound(Enum):
    """The costs that can bound a collective."""

    STRAGGLER = "a straggler"
    CORES = "cores"
    LATENCY = "latency"
    BANDWIDTH = "bandwidth"


@dataclass(frozen=True, slots=True)
class Attribution:
    """The time of an all_reduce by one algorithm, and the seconds that each bound is charged with; they add up."""

    algorithm: str
    num_ranks: int
    size_bytes: int
    seconds: dict[Bound, float]

    @property
    def time_s(self) -> float:
        """The whole time."""
        return sum(self.seconds.values())

    @property
    def bound(self) -> Bound:
        """The bound that is charged with most."""
        return max(self.seconds, key=lambda bound: self.seconds[bound])

    def share(self, bound: Bound) -> float:
        """Return the part of the time that a bound is charged with; 0 where no time passes."""
        return self.seconds[bound] / self.time_s if self.time_s > 0 else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """The parts of the time by cause, the largest first, without those that would be shown as nothing."""
        bounds = sorted(Bound, key=self.share, reverse=True)
        return {bound.value: self.share(bound) for bound in bounds if self.share(bound) >= 0.005}

    @property
    def without_straggler_s(self) -> float:
        """The time if all links and ranks of a kind were alike."""
        return self.time_s - self.seconds[Bound.STRAGGLER]


def all_reduce_s(cluster: Cluster, algorithm: str, num_ranks: int, size_bytes: int) -> float:
    """Return the predicted seconds of one of our all_reduce calls. Raises ValueError where there is no room for it."""
    schedule = build(Collective.ALL_REDUCE, algorithm, num_ranks, size_bytes)
    return predict_call(schedule, cluster, size_bytes, OURS)


def attribute(cluster: Cluster, num_ranks: int, size_bytes: int, algorithm: str = "ring") -> Attribution:
    """Return what the time of an all_reduce is due to. Raises ValueError where the network has no room for the ranks.

    >>> from ringsim import load_network
    >>> attribute(load_network("gbe"), 4, 2**26).bound
    <Bound.BANDWIDTH: 'bandwidth'>
    """
    seconds = {}
    time_s = all_reduce_s(cluster, algorithm, num_ranks, size_bytes)
    for bound, without in _TAKEN_AWAY.items():
        cluster = without(cluster)
        left_s = min(all_reduce_s(cluster, algorithm, num_ranks, size_bytes), time_s)
        seconds[bound] = time_s - left_s
        time_s = left_s
    seconds[Bound.BANDWIDTH] = time_s
    return Attribution(algorithm, num_ranks, size_bytes, seconds)


# One on which nothing costs anything is refused: so latencies are nearly nothing, as far as the network adds up.
_TAKEN_AWAY: dict[Bound, Callable[[Cluster], Cluster]] = {
    Bound.STRAGGLER: lambda cluster: cluster.with_spec(slow_ranks=(), slow_links=()),
    Bound.CORES: lambda cluster: with_numbers(cluster, lambda field, number: None if field == "cores" else number),
    Bound.LATENCY: lambda cluster: with_numbers(
        cluster, lambda field, number: 1e-300 if field in _LATENCIES else number
    ),
}
