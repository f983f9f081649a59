"""`choose`: what a collective library does on a network, as a schedule and the network of the hosts over its protocol.

NCCL estimates the time of each of its algorithms with each of its protocols by a formula, and takes the one that is
over first (ncclTopoGetAlgoTime in src/graph/tuning.cc). `predict` has the formula; what it names is simulated here.
"""

import math
from collections.abc import Iterable

from ringsim.algorithms import NCCL_ALGORITHMS, RANKS_PER_HOST, RanksPerHost, fill_hosts
from ringsim.analysis import Taken, Timing
from ringsim.calibration.intervals import intervals
from ringsim.calibration.library_pace import MAX_TRANSFERS, Formula, LibraryChoice, formulas
from ringsim.calibration.questions import Question
from ringsim.measurements import TESTS
from ringsim.native import DIRECT
from ringsim.network import AnyNetwork, Cluster, Network
from ringsim.registry import base_name, build
from ringsim.schedule import Collective, Schedule, same_transfers
from ringsim.simulation import RULE, Runtime, predict_time

# The algorithm of the formulas by which NCCL's schedules are timed, and a single ring, which stands for one of NCCL's.
_IN_FORMULAS = {"ring": "ring", "nccl_ring": "ring", "nccl_tree": "tree", "nvls": "in_switch"}


def choose(
    network: AnyNetwork,
    collective: Collective,
    num_ranks: int,
    size_bytes: int,
    max_transfers: float = MAX_TRANSFERS,
    *,
    ranks_per_host: RanksPerHost = None,
    runtime: Runtime = RULE,
) -> LibraryChoice:
    """Return what the network's library chooses by its own formula: NCCL's rings, trees or in-network reduction.

    What goes between two ranks only (DIRECT) it sends straight, with the last protocol.

    ranks_per_host: that take part, on every host or on each; None: all that a host has. runtime: as of `simulate`.

    Raises ValueError where it is not known, see `why_unknown`, and where more than `max_transfers` would have to be
    simulated.
    """
    if why := why_unknown(network, num_ranks, ranks_per_host):
        raise ValueError(f"{given_name(network)}: NCCL's choice is not known: {why}")
    if collective in DIRECT:
        schedule = build(collective, "direct", num_ranks, size_bytes)
        choice = LibraryChoice(schedule, size_bytes, network.spec.protocols[-1], network)
    else:
        hosts = fill_hosts(num_ranks, ranks_per_host or _ranks_per_host(network, num_ranks))
        question = Question.on_hosts(collective.value, size_bytes, hosts)
        taken = _fastest(formulas(network, question))
        within = _within(network, question, taken.time_s)
        choice = LibraryChoice(taken.schedule, size_bytes, taken.protocol, network, taken, within)
    choice.require_known(max_transfers, runtime)
    return choice


def _fastest(known: Iterable[Formula]) -> Formula:
    return min(known, key=lambda formula: formula.time_s)


def _within(network: AnyNetwork, question: Question, time_s: float) -> tuple[float, float] | None:
    expected = intervals(network, [question]) if isinstance(network, Cluster) and time_s > 0 else []
    return (expected[0].low_s / time_s, expected[0].high_s / time_s) if expected else None


def why_unknown(network: AnyNetwork, num_ranks: int, ranks_per_host: RanksPerHost = None) -> str:
    """Return why nobody can tell what its library takes; "" if `choose` can, whose arguments these are."""
    spec, hosts = network.spec, fill_hosts(num_ranks, ranks_per_host or _ranks_per_host(network, num_ranks))
    link = spec.host.link if len(hosts) == 1 else spec.host.nics
    if not spec.protocols:
        return "it does not describe NCCL: give --network with a file that does"
    if num_ranks == 1:
        return "a single rank sends nothing"
    if spec.max_ranks is not None and num_ranks > spec.max_ranks:
        return f"its hosts have {spec.max_ranks} ranks"
    if spec.placed_hosts or math.isinf(link.bandwidth_bytes_per_s):
        return "it does not describe hosts that are all alike, with bandwidths of links and NICs: name an algorithm"
    return ""


def _ranks_per_host(network: AnyNetwork, num_ranks: int) -> int:
    return min(network.spec.ranks_per_host or num_ranks, num_ranks)


def fastest_protocol(
    schedule: Schedule,
    network: AnyNetwork,
    size_bytes: int,
    *,
    runtime: Runtime = RULE,
    ranks_per_host: RanksPerHost = None,
) -> LibraryChoice | None:
    """Return the schedule over the protocol by which it ends first; None if the library has none.

    In-network reduction has the last one only, as in NCCL. What has more than MAX_TRANSFERS is not simulated so often:
    it takes the one that the library's formula says, or the last one, which is that of large tensors, where there is no
    formula. runtime: as of `simulate`. ranks_per_host: as of `choose`.
    """
    choices = _over_protocols(schedule, network, size_bytes, ranks_per_host)
    return min(choices, key=lambda choice: choice.time_s(runtime=runtime), default=None)


def library_time(
    schedule: Schedule, network: AnyNetwork, size_bytes: int, *, measured: AnyNetwork | None = None
) -> float:
    """Return the seconds of a schedule as the library sends it; those of `predict_time` where the network has none.

    measured: the network of which `network` is a better one, such as with twice the bandwidth. The schedule keeps the
    pace that it has there, as what was measured there, such as the steps of a ring, does not follow from better links.
    """
    choices = _over_protocols(schedule, network, size_bytes, measured=measured)
    if not choices:
        return predict_time(schedule, network, size_bytes)
    return min(choice.time_s() for choice in choices)


def _over_protocols(
    schedule: Schedule,
    network: AnyNetwork,
    size_bytes: int,
    ranks_per_host: RanksPerHost = None,
    measured: AnyNetwork | None = None,
) -> list[LibraryChoice]:
    """Return the schedule over each protocol that it may take, at the pace of the library's formula if there is one."""
    protocols = network.spec.protocols
    schedule = _on_its_hosts(schedule, network, size_bytes)
    known = _formulas(schedule, measured or network, size_bytes, ranks_per_host)
    if base_name(schedule.algorithm) == "nvls":
        protocols = protocols[-1:]
    elif schedule.num_transfers > MAX_TRANSFERS:
        name = _fastest(known.values()).protocol.name if known else ""
        protocols = tuple(protocol for protocol in protocols if protocol.name == name) or protocols[-1:]
    return [LibraryChoice(schedule, size_bytes, protocol, network, known.get(protocol.name)) for protocol in protocols]


def _on_its_hosts(schedule: Schedule, network: AnyNetwork, size_bytes: int) -> Schedule:
    """Return NCCL's own algorithm on the hosts of the network, where its name did not say how many ranks these have."""
    name, per_host = schedule.algorithm, network.spec.ranks_per_host
    if name not in NCCL_ALGORITHMS or per_host in (None, RANKS_PER_HOST):
        return schedule
    default, own = (
        build(schedule.collective, name + hosts, schedule.num_ranks, size_bytes) for hosts in ("", f"@{per_host}")
    )
    is_default = all(map(same_transfers, schedule.steps[:1], default.steps[:1]))  # and not in other places
    return own if is_default else schedule


def _formulas(
    schedule: Schedule, network: AnyNetwork, size_bytes: int, ranks_per_host: RanksPerHost
) -> dict[str, Formula]:
    """Return what the library's formula says of a schedule with each protocol; nothing if there is none for it."""
    num_ranks, test, own = schedule.num_ranks, schedule.collective.value, base_name(schedule.algorithm)
    if own not in _IN_FORMULAS or test not in TESTS or why_unknown(network, num_ranks, ranks_per_host):
        return {}
    hosts = fill_hosts(num_ranks, ranks_per_host or _ranks_per_host(network, num_ranks))
    known = formulas(network, Question.on_hosts(test, size_bytes, hosts), _IN_FORMULAS[own])
    return {formula.protocol.name: formula for formula in known}


def library_takes(
    network: AnyNetwork, collective: Collective, num_ranks: int, size_bytes: int, max_transfers: float = MAX_TRANSFERS
) -> Taken:
    """Return what the library chooses, with its time. Raises ValueError where that is not known."""
    choice = choose(network, collective, num_ranks, size_bytes, max_transfers)
    return Taken(choice.schedule, f"{choice.schedule.algorithm} {choice.protocol}", choice.time_s())


def given_name(network: AnyNetwork) -> str:
    """Return the name of a network as its user gave it; a uniform one has none."""
    return "the default network (--latency, --bandwidth)" if isinstance(network, Network) else network.name


AS_LIBRARY = Timing(library_time, library_takes)  # of sweeps
