"""`advise`: simulate a collective on better networks and with other algorithms."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from ringsim.analysis.costs import candidates
from ringsim.files import finite_or_none
from ringsim.libraries import library_of
from ringsim.limits import ADVISED_TRANSFERS, ADVISED_UNSHARED_TRANSFERS, estimated_transfers, format_count
from ringsim.network import Network
from ringsim.registry import ALGORITHMS, build
from ringsim.schedule import Schedule, ScheduleError
from ringsim.simulation import has_contention

SEGMENTS = 4

_LATENCIES = frozenset(
    {"latency_s", "uplink_latency_s", "switch_hop_latency_s"}
    | {f"{kind}_latency_s" for kind in ("link", "hop", "tree_link", "tree_hop")}  # of a library's protocols
)
# A better network, its fields that change, and their factor.
_CHANGES: tuple[tuple[str, frozenset[str], float], ...] = (
    ("twice the bandwidth of all links", frozenset({"bandwidth_bytes_per_s", "uplink_bytes_per_s"}), 2),
    ("half the latency of all links", _LATENCIES, 0.5),
    ("twice the rate at which ranks add", frozenset({"reduce_bytes_per_s"}), 2),
    ("half the overhead of each message", frozenset({"send_overhead_s", "receive_overhead_s"}), 0.5),
    ("twice the bandwidth of the hosts' memory", frozenset({"memory_bytes_per_s"}), 2),
    ("twice the rate at which a core copies", frozenset({"copy_bytes_per_s"}), 2),
    ("twice the cores of each host", frozenset({"cores"}), 2),
)
_FAULTS: tuple[tuple[str, str, Any], ...] = (
    ("no slow links", "slow_links", ()),
    ("no slow ranks", "slow_ranks", ()),
    ("no failures", "failures", ()),
    ("no jitter", "jitter", None),
)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A change that may help. time_s: infinite if the run never finishes, None if skipped."""

    name: str
    time_s: float | None
    skipped: str = ""

    @property
    def is_algorithm(self) -> bool:
        return " " not in self.name

    @property
    def label(self) -> str:
        return f"algorithm {self.name}" if self.is_algorithm else self.name

    @property
    def sorting_s(self) -> float:
        return math.inf if self.time_s is None else self.time_s


@dataclass(frozen=True, slots=True)
class Advice:
    """The simulated time, and the alternatives, the fastest first."""

    time_s: float
    alternatives: tuple[Alternative, ...]

    def gain(self, alternative: Alternative) -> float | None:
        """Return the speed-up; None if it is unknown or not finite."""
        return self.time_s / alternative.sorting_s if 0 < alternative.sorting_s < math.inf > self.time_s else None

    def as_dicts(self) -> list[dict[str, Any]]:
        return [
            {
                "name": other.name,
                "time_s": finite_or_none(other.time_s),
                "times_as_fast": self.gain(other),
                "skipped": other.skipped or None,
            }
            for other in self.alternatives
        ]


def advise(
    schedule: Schedule,
    network: Network,
    size_bytes: int,
    build_other: Callable[[str], Schedule] | None = None,
    on_progress: Callable[[int, int, str], object] = lambda *_: None,
) -> Advice:
    """Simulate better links, ranks and hosts, and all other algorithms.

    build_other: builds an algorithm by its name in the same rank placement; by default in rank order.
    on_progress: called with the number of simulations done, their total and "simulating".
    """
    make = build_other or partial(build, schedule.collective, num_ranks=schedule.num_ranks, size_bytes=size_bytes)
    runs = [(name, lambda: schedule, other) for name, other in better_networks(network)]
    others = _other_algorithms(schedule, network, size_bytes)
    runs += [(name, partial(_build_small, make, schedule, network, name), network) for name in others]
    alternatives, time_on = [], partial(library_of(network).time_s, measured=network)
    for name, make_one, other in runs:
        alternatives.append(_simulated(name, make_one, other, size_bytes, time_on))
        on_progress(len(alternatives), len(runs), "simulating")
    time_s = time_on(schedule, network, size_bytes)
    return Advice(time_s, tuple(sorted(alternatives, key=lambda alternative: alternative.sorting_s)))


def _build_small(make: Callable[[str], Schedule], schedule: Schedule, network: Network, name: str) -> Schedule:
    estimate = estimated_transfers(partial(build, schedule.collective, name), schedule.num_ranks)
    if estimate > (ADVISED_UNSHARED_TRANSFERS if network.message_costs else ADVISED_TRANSFERS):
        raise ValueError(f"about {format_count(estimate)} transfers")
    return make(name)


def _other_algorithms(schedule: Schedule, network: Network, size_bytes: int) -> Iterator[str]:
    own = schedule.algorithm
    if (schedule.collective, own) in ALGORITHMS and schedule.num_ranks > 1:
        # The number of segments follows from the chunks, not from the schedule's name.
        plain = build(schedule.collective, own, schedule.num_ranks, size_bytes)
        is_plain = (plain.num_chunks, plain.num_steps) == (schedule.num_chunks, schedule.num_steps)
        yield f"{own}/{SEGMENTS}" if is_plain else own
    yield from (name for name in candidates(schedule.collective, [network]) if name != own)


def _simulated(
    name: str, make: Callable[[], Schedule], network: Network, size_bytes: int, time_on: Callable[..., float]
) -> Alternative:
    try:
        schedule = make()
    except (ValueError, ScheduleError) as error:
        return Alternative(name, None, " ".join(str(error).split()))
    is_shared = has_contention(schedule, network.topology(schedule.num_ranks))
    if schedule.num_transfers > (ADVISED_TRANSFERS if is_shared else ADVISED_UNSHARED_TRANSFERS):
        return Alternative(name, None, f"{schedule.num_transfers:,} transfers")
    return Alternative(name, time_on(schedule, network, size_bytes))


def better_networks(network: Network) -> Iterator[tuple[str, Network]]:
    """Yield each improvement that changes the network, and the improved network."""
    for name, field, value in _FAULTS:
        if getattr(network.spec, field) != value:
            yield name, network.with_spec(**{field: value})
    for name, names, factor in _CHANGES:
        other = network.with_numbers(partial(_scaled, names, factor))
        if other != network:
            yield name, other


def _scaled(names: frozenset[str], factor: float, _place: str, field: str, number: float) -> float:
    return type(number)(number * factor) if field in names else number
