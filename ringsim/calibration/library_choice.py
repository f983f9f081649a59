"""`choose`: what a collective library does on a network, as a schedule and the network of the hosts over its protocol.

NCCL estimates the time of each of its algorithms with each of its protocols by a formula, and takes the one that is
over first (ncclTopoGetAlgoTime in src/graph/tuning.cc). `predict` has the formula; what it names is simulated here.
"""

import math
from dataclasses import dataclass, replace

from ringsim.algorithms import (
    nccl_ring_all_gather,
    nccl_ring_all_reduce,
    nccl_ring_reduce_scatter,
    nccl_tree_all_reduce,
    nccl_tree_segments,
    nvls_all_reduce,
    nvls_segments,
)
from ringsim.analysis import Taken, Timing
from ringsim.calibration.intervals import intervals
from ringsim.calibration.protocol_time import fastest_protocol_of, predict, ring_filling, ring_pace, tree_filling
from ringsim.calibration.questions import TESTS, Question
from ringsim.network import AnyNetwork, Cluster, Host, Network, Protocol
from ringsim.registry import build
from ringsim.schedule import Collective, Schedule
from ringsim.simulation import RULE, Runtime, lists_more_than, predict_time

MAX_TRANSFERS = 2**19  # of a schedule that is simulated without having been asked for by name
_RINGS = {
    Collective.ALL_REDUCE: nccl_ring_all_reduce,
    Collective.REDUCE_SCATTER: nccl_ring_reduce_scatter,
    Collective.ALL_GATHER: nccl_ring_all_gather,
}


@dataclass(frozen=True, slots=True)
class LibraryChoice:
    """A schedule, the protocol over which it is sent, and the network of the hosts over that protocol.

    start_s: what the library takes beside the schedule. within: the time is expected to be so many times as long, at
    least and at most, with a probability of `INSIDE`; None where it is not known, see `intervals`.
    """

    schedule: Schedule
    protocol: str
    start_s: float
    network: AnyNetwork
    within: tuple[float, float] | None = None

    def time_s(self, size_bytes: int, *, runtime: Runtime = RULE) -> float:
        """Return the seconds of the collective, its start included. runtime: as of `simulate`."""
        sent_bytes = self.sent_bytes(size_bytes)
        return self.start_s + predict_time(self.schedule, self.network, sent_bytes, runtime=runtime)

    def sent_bytes(self, size_bytes: int) -> int:
        """Return the size to simulate: of many transfers few stand for all if chunks are even, as NCCL's are."""
        return size_bytes if self.schedule.num_transfers <= MAX_TRANSFERS else in_even_chunks(self.schedule, size_bytes)


def choose(
    network: AnyNetwork,
    collective: Collective,
    num_ranks: int,
    size_bytes: int,
    max_transfers: float = MAX_TRANSFERS,
    *,
    ranks_per_host: int | None = None,
    runtime: Runtime = RULE,
) -> LibraryChoice | None:
    """Return what the network's library chooses by its own formula: NCCL's rings, trees or in-network reduction.

    ranks_per_host: that take part; None: all that a host has. runtime: as of `simulate`.

    None where it is not known, see `why_unknown`, and where more than `max_transfers` would have to be simulated.
    """
    if why_unknown(network, num_ranks, ranks_per_host):
        return None
    spec, per_host = network.spec, ranks_per_host or _ranks_per_host(network, num_ranks)
    question = Question(collective.value, size_bytes, num_ranks, num_ranks // per_host)
    [(formula_time_s, taken)] = predict(network, [question])
    algorithm, _, name = taken.partition(" ")  # PAT has no schedule here: a ring stands for it
    protocol = next((known for known in spec.protocols if known.name == name), spec.protocols[-1])
    schedule = _schedule(collective, algorithm, num_ranks, size_bytes, per_host)
    choice = over_protocol(schedule, network, protocol, *_factors(network, schedule, question, protocol))
    choice = replace(choice, within=_within(network, question, formula_time_s))
    sent_bytes = choice.sent_bytes(size_bytes)
    too_many = lists_more_than(max_transfers, schedule, choice.network, sent_bytes, runtime=runtime)
    return None if too_many else choice


def _within(network: AnyNetwork, question: Question, time_s: float) -> tuple[float, float] | None:
    expected = intervals(network, [question]) if isinstance(network, Cluster) else []
    return (expected[0].low_s / time_s, expected[0].high_s / time_s) if expected else None


def formula_s(network: AnyNetwork, collective: Collective, num_ranks: int, size_bytes: int, num_hosts: int) -> float:
    """Return the seconds by the library's own formula, for what is too large to be simulated."""
    [(time_s, _)] = predict(network, [Question(collective.value, size_bytes, num_ranks, num_hosts)])
    return time_s


def why_unknown(network: AnyNetwork, num_ranks: int, ranks_per_host: int | None = None) -> str:
    """Return why nobody can tell what its library takes; "" if `choose` can, whose arguments these are."""
    spec, per_host = network.spec, ranks_per_host or _ranks_per_host(network, num_ranks)
    link = spec.host.link if per_host == num_ranks else spec.host.nics
    if not spec.protocols:
        return "it does not describe NCCL: give --network with a file that does"
    if num_ranks == 1:
        return "one rank sends nothing"
    if spec.max_ranks is not None and num_ranks > spec.max_ranks:
        return f"its hosts have {spec.max_ranks} ranks"
    if spec.placed_hosts or math.isinf(link.bandwidth_bytes_per_s):
        return "it does not describe hosts that are all alike, with the bandwidth of their links and NICs"
    return f"{num_ranks} ranks do not fill its hosts of {per_host}" if num_ranks % per_host else ""


def _ranks_per_host(network: AnyNetwork, num_ranks: int) -> int:
    return min(network.spec.ranks_per_host or num_ranks, num_ranks)


def fastest_protocol(
    schedule: Schedule,
    network: AnyNetwork,
    size_bytes: int,
    *,
    runtime: Runtime = RULE,
    ranks_per_host: int | None = None,
) -> LibraryChoice | None:
    """Return the protocol over which a simulation of the schedule ends first; None if the library has none.

    In-network reduction has the last one only, as in NCCL. What has more than MAX_TRANSFERS is not simulated so often:
    a ring takes the one that the library's formula says, and anything else the last one, which is that of large
    tensors. runtime: as of `simulate`. ranks_per_host: as of `choose`.
    """
    choices = _over_protocols(schedule, network, size_bytes, ranks_per_host)
    return min(choices, key=lambda choice: choice.time_s(size_bytes, runtime=runtime), default=None)


def library_time(
    schedule: Schedule, network: AnyNetwork, size_bytes: int, *, measured: AnyNetwork | None = None
) -> float:
    """Return the seconds of a schedule as the library sends it; those of `predict_time` where the network has none.

    measured: the network of which `network` is a better one, such as with twice the bandwidth. Rings keep the pace that
    they have there, as the measured steps are those of its links.
    """
    choices = _over_protocols(schedule, network, size_bytes, measured=measured)
    if not choices:
        return predict_time(schedule, network, size_bytes)
    return min(choice.time_s(size_bytes) for choice in choices)


def _over_protocols(
    schedule: Schedule,
    network: AnyNetwork,
    size_bytes: int,
    ranks_per_host: int | None = None,
    measured: AnyNetwork | None = None,
) -> list[LibraryChoice]:
    """Return the schedule over each protocol that it may take; a ring at its measured pace, as when it is chosen."""
    protocols, question = network.spec.protocols, _question(schedule, network, size_bytes, ranks_per_host)
    if schedule.algorithm == "nvls":
        protocols = protocols[-1:]
    elif schedule.num_transfers > MAX_TRANSFERS:
        name = fastest_protocol_of(network, question, "ring") if question and _is_ring(schedule) else ""
        protocols = tuple(protocol for protocol in protocols if protocol.name == name) or protocols[-1:]
    return [
        over_protocol(schedule, network, protocol, *_factors(measured or network, schedule, question, protocol))
        for protocol in protocols
    ]


def _is_ring(schedule: Schedule) -> bool:
    return schedule.algorithm in ("ring", "nccl_ring")


def _question(schedule: Schedule, network: AnyNetwork, size_bytes: int, ranks_per_host: int | None) -> Question | None:
    """Return what to ask the library's formula of a ring or a tree; None if there is no formula for it."""
    num_ranks, test = schedule.num_ranks, schedule.collective.value
    if not (_is_ring(schedule) or schedule.algorithm == "nccl_tree") or test not in TESTS:
        return None
    if why_unknown(network, num_ranks, ranks_per_host):
        return None
    return Question(test, size_bytes, num_ranks, num_ranks // (ranks_per_host or _ranks_per_host(network, num_ranks)))


def _factors(
    network: AnyNetwork, schedule: Schedule, question: Question | None, protocol: Protocol
) -> tuple[float, float]:
    """Return the pace and the filling of a ring or a tree, as of `over_protocol`."""
    if question is None:
        return 1.0, 1.0
    if _is_ring(schedule):
        return ring_pace(network, question), ring_filling(network, question)
    is_tree = schedule.algorithm == "nccl_tree"
    return 1.0, tree_filling(network, question, protocol) if is_tree else 1.0


def library_takes(
    network: AnyNetwork, collective: Collective, num_ranks: int, size_bytes: int, max_transfers: float = MAX_TRANSFERS
) -> Taken:
    """Return what the library chooses, with its time. Raises ValueError where that is not known."""
    choice = required_choice(network, collective, num_ranks, size_bytes, max_transfers)
    return Taken(choice.schedule, f"{choice.schedule.algorithm} {choice.protocol}", choice.time_s(size_bytes))


def required_choice(
    network: AnyNetwork,
    collective: Collective,
    num_ranks: int,
    size_bytes: int,
    max_transfers: float = MAX_TRANSFERS,
    *,
    runtime: Runtime = RULE,
) -> LibraryChoice:
    """Return what `choose` does. Raises ValueError, which says why, where the choice is not known."""
    choice = choose(network, collective, num_ranks, size_bytes, max_transfers, runtime=runtime)
    if choice is None:
        why = why_unknown(network, num_ranks) or f"more than {max_transfers:,.0f} transfers would have to be simulated"
        raise ValueError(f"{given_name(network)}: what NCCL would take is not known: {why}")
    return choice


def given_name(network: AnyNetwork) -> str:
    """Return the name of a network as its user gave it; a uniform one has none."""
    return "the default network (--latency, --bandwidth)" if isinstance(network, Network) else network.name


def over_protocol(
    schedule: Schedule, network: AnyNetwork, protocol: Protocol, pace: float = 1.0, filling: float = 1.0
) -> LibraryChoice:
    """Return the schedule over this protocol: its start, its latencies, and its share of the bandwidths.

    pace: all of that takes so many times as long, see `ring_pace`. filling: the bytes do, see `ring_filling` and
    `tree_filling`.
    """
    library = network.spec.library
    is_tree, in_switch = schedule.algorithm == "nccl_tree", schedule.algorithm == "nvls" and library.switch_share
    share = protocol.share * (library.tree_share or 1.0 if is_tree else 1.0)
    link_s = protocol.tree_link_latency_s if is_tree else protocol.link_latency_s
    hop_s = protocol.tree_hop_latency_s if is_tree else protocol.hop_latency_s
    start_s = protocol.start_s
    if in_switch and library.switch_hop_latency_s is not None:
        hop_s = library.switch_hop_latency_s
    if in_switch and library.switch_latency_s is not None:
        start_s = max(0.0, library.switch_latency_s - 2 * link_s)
    host = _scaled(network.spec.host, pace * link_s, pace * hop_s, share / pace / filling)
    return LibraryChoice(schedule, protocol.name, pace * start_s, network.with_spec(host=host))


def in_even_chunks(schedule: Schedule, size_bytes: int, element_bytes: int = 1) -> int:
    """Return the size, rounded up so that all chunks have the same number of elements.

    NCCL rounds up what it cuts, too (runRing in src/device/all_reduce.h); only its last chunk is shorter.
    """
    unit = schedule.num_chunks * element_bytes
    return -(-size_bytes // unit) * unit


def _scaled(host: Host, link_latency_s: float, hop_latency_s: float, share: float) -> Host:
    link = replace(host.link, latency_s=link_latency_s, bandwidth_bytes_per_s=host.link.bandwidth_bytes_per_s * share)
    nics = replace(
        host.nics, latency_s=hop_latency_s / 2, bandwidth_bytes_per_s=host.nics.bandwidth_bytes_per_s * share
    )
    return replace(host, link=link, nics=nics)


def _schedule(collective: Collective, algorithm: str, num_ranks: int, size_bytes: int, per_host: int) -> Schedule:
    if algorithm == "tree":
        return nccl_tree_all_reduce(num_ranks, nccl_tree_segments(num_ranks, size_bytes, per_host), per_host)
    if algorithm == "in_switch":
        return nvls_all_reduce(num_ranks, nvls_segments(num_ranks, size_bytes, per_host), per_host)
    ring = _RINGS.get(collective)
    return ring(num_ranks, per_host) if ring else build(collective, "ring", num_ranks, size_bytes)


AS_LIBRARY = Timing(library_time, library_takes, "library")  # of sweeps
