"""Doubts about a calibration from logs, and what these leave open: a line for the user each.

All of them warn, and refuse nothing. Two runs of one setting on a busy cluster may lie as far apart as TCP and RDMA do,
and then both are true: the network is uncertain, and its intervals say so. And a host whose GPUs share one NIC is
described rightly by the log of one GPU.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from operator import itemgetter

from ringsim.calibration.timings import MISFIT, FittedParameter, Timing, repeated
from ringsim.libraries import Call, guessed_from, unmet_settings
from ringsim.measurements import RING_TESTS
from ringsim.network import Network
from ringsim.units import format_rate, format_size, format_time, plural

# Two times so far apart that no network is within MISFIT of both.
_APART = (1 + MISFIT) ** 2
# Of the timings that two logs both have. The fit leaves out as many: a run that was disturbed has a few such times. In
# 35 public tables 29 of 1,068 times in place are that far from those out of place, and never a tenth of a table.
_DISTURBED = 0.1


_Timing = tuple[float, Timing]  # the seconds, and the case with its log


def _repetitions(cases: Sequence[Timing]) -> Iterator[tuple[_Timing, _Timing]]:
    """Yield each two times of the same collective, the shorter first, from two logs or from two runs of one log."""
    for some in repeated(cases):
        for pair in combinations(some, 2):
            fast, slow = sorted(pair, key=lambda case: case.calibrated_s)
            yield (fast.calibrated_s, fast), (slow.calibrated_s, slow)
    for case in cases:
        if len(case.rows) > 1:  # of more than one table
            yield (min(case.times_s), case), (max(case.times_s), case)


def contradiction_line(cases: Iterable[Timing]) -> str:
    """Return one line on the two logs that differ most in what both measured; "" if all agree but for a few times.

    If they do, it is on the log whose own runs of the same differ most.
    """
    by_files: dict[tuple[str, ...], list[tuple[float, _Timing, _Timing]]] = {}
    for fastest, slowest in _repetitions(list(cases)):
        files = tuple(sorted((fastest[1].file, slowest[1].file)))
        by_files.setdefault(files, []).append((slowest[0] / fastest[0], fastest, slowest))
    contradictions = {
        files: (*max(repetitions, key=itemgetter(0)), num_apart, len(repetitions))
        for files, repetitions in by_files.items()
        if (num_apart := sum(factor > _APART for factor, *_ in repetitions)) > _DISTURBED * len(repetitions)
    }
    if not contradictions:
        return ""
    files = max(contradictions, key=lambda files: (files[0] != files[1], contradictions[files][0]))
    factor, (fast_s, fast), (slow_s, slow), num_apart, num_common = contradictions[files]
    more = f"; {plural(len(contradictions) - 1, 'more contradiction')} as well" if len(contradictions) > 1 else ""
    collective, size_bytes, num_ranks, num_nodes, *_ = slow.call
    return (
        f"contradictory: {collective} {format_size(size_bytes)} on {plural(num_ranks, 'rank')} of "
        f"{plural(num_nodes, 'host')} takes {format_time(slow_s)} in {_name(slow, fast)} and "
        f"{format_time(fast_s)} in {_name(fast, slow)}, {factor:.1f} times as long, and "
        f"{num_apart} of {num_common} common timings differ by more than a factor of {_APART:.1f}{more}: "
        "the settings of these runs differ: calibrate them from separate files, each alone"
    )


def _name(case: Timing, other: Timing) -> str:
    """Return the name of its file, with the folder where the other's is the same without."""
    return case.file if case.file_name == other.file_name and case.file != other.file else case.file_name


def settings_line(cluster: Network, calls: Sequence[Call]) -> str:
    """Return one line on settings of NCCL that are not followed, as the network has no such thing; "" if all are."""
    unmet = unmet_settings(cluster, calls)
    if not unmet:
        return ""
    asked = sorted({settings.as_text() for settings in (call.settings for call in unmet)})
    where = sorted({f"{call.collective} on {plural(call.num_nodes, 'host')}" for call in unmet})
    timings = plural(len(unmet), "timing")
    return (
        f"not followed: {', '.join(asked)}: {cluster.name} has no formula for that with {' or '.join(where)}: "
        f"{timings} {'is' if len(unmet) == 1 else 'are'} predicted as if NCCL were free to choose"
    )


def undecided_line(parameters: Iterable[FittedParameter], cases: Sequence[Timing]) -> str:
    """Return one line on what the logs leave open, and which log would tell most of it; "" if there is none."""
    undecided, measure = sum(not parameter.seen_in for parameter in parameters), _most_telling(cases)
    if not undecided or not measure:
        return ""
    return (
        f"undecided: the logs do not determine {undecided} of the parameters, which keep their prior values; "
        f"a log of {measure} would determine more"
    )


def _most_telling(cases: Sequence[Timing]) -> str:
    """Return the log that is missing most: the collective, and on what it runs."""
    num_hosts = {case.call.num_nodes for case in cases if case.call.collective in RING_TESTS}
    per_host = max(math.ceil(case.call.num_ranks / case.call.num_nodes) for case in cases)
    most, on_each = max(num_hosts, default=1), f"with {plural(per_host, 'rank')} on each,"
    hosts = plural(most, "host")
    missing = {
        f"all_reduce on 2 hosts, {on_each}": most == 1,
        f"all_reduce on one host, with {plural(per_host, 'rank')},": 1 not in num_hosts and per_host > 1,
        f"all_reduce from 8 bytes on, on {hosts}, {on_each}": min(case.call.size_bytes for case in cases) > _SMALL,
        f"all_reduce on {4 * most} hosts, {on_each}": len(num_hosts - {1}) == 1,
        f"all_gather, which tells rings from trees, on {hosts},": all(
            case.call.collective not in RING_TESTS[1:] for case in cases
        ),
    }
    return next((log for log, is_missing in missing.items() if is_missing), "")


_SMALL = 2**16  # bytes: what is longer says little of latencies
_FILES_NAMED = 3


# Fitted to 60 public logs of nccl-tests, OSU and Gloo (docs/accuracy.md, "Clusters"), from Ethernet of 10 Gbit/s to
# InfiniBand NDR, a hop from host to host takes at most 354 us, one within a host at most 13 us. The limits are about
# three and four times as much: what lies beyond is rather a mistake, or a busy machine, than a network.
# By the end of a parameter's name: the kind of hop, the latency beyond which it is doubted, why it may be, and how to
# measure it.
_HOP_KINDS = {
    "hop_latency": (
        "from host to host",
        1e-3,
        "were the hosts busy, did NCCL use the wrong interface (NCCL_SOCKET_IFNAME), are --nodes and --ranks-per-node "
        "right?",
        "sendrecv_perf -b 8 -e 8 with one rank on each of two hosts",
    ),
    "link_latency": (
        "within a host",
        50e-6,
        "were its cores busy, did NCCL send through sockets (NCCL_DEBUG=INFO names the transport), is --nodes right?",
        "sendrecv_perf -b 8 -e 8 with two ranks of one host",
    ),
}


def doubt_line(parameters: Iterable[FittedParameter]) -> str:
    """Return one line on the least plausible latency per hop that the logs show; "" if all may be."""
    hops = [(parameter, _HOP_KINDS.get(parameter.name.rpartition(" ")[2])) for parameter in parameters]
    doubted = [
        (parameter.value / hop[1], parameter, hop) for parameter, hop in hops if hop and parameter.value > hop[1]
    ]
    if not doubted:
        return ""
    _, worst, (name, most_s, causes, measure) = max(doubted, key=itemgetter(0))
    more = f", and {len(doubted) - 1} more like it" if len(doubted) > 1 else ""
    files = sorted({case.file_name for case in worst.seen_in})
    more_files = f" and {len(files) - _FILES_NAMED} more" if len(files) > _FILES_NAMED else ""
    return (
        f"implausible: {worst.name} is {format_time(worst.value)}{more}: a hop {name} takes less than "
        f"{format_time(most_s)}; seen in {', '.join(files[:_FILES_NAMED])}{more_files}: {causes} {measure} "
        "measures a hop alone"
    )


def nic_line(cluster: Network, num_senders: int) -> str:
    """Return one line if the rate at which `num_senders` ranks of a host send is a guess; "" if it is known."""
    known = guessed_from(cluster, num_senders)
    if known is None:
        return ""
    rate = format_rate(cluster.spec.host.nics.bandwidth_bytes_per_s)
    num_nics = max(known, num_senders, cluster.spec.ranks_per_host or 1)
    return (
        f"the logs of {cluster.name} send from {plural(known, 'rank')} of a host at a time; how fast "
        f"{plural(num_senders, 'rank')} of a host can send is not known, and {rate} each is a guess: calibrate with a "
        f"log of {plural(num_senders, 'rank')} on each of several hosts, or give calibrate --nic, such as "
        f"{num_nics}x400Gbit/s"
    )


def one_host_line(cluster: Network, num_ranks: int) -> str:
    """Return one line if more ranks are predicted for a host than it was calibrated with; "" for other networks."""
    known, cores = cluster.calibration.num_ranks if cluster.calibration else None, cluster.spec.host.cores
    if known is None or num_ranks <= known:
        return ""
    shared = f", which share its {plural(cores, 'core')}" if cores else ""
    return (
        f"extrapolated: {cluster.name} is one host, calibrated on {plural(known, 'rank')}, predicted for "
        f"{num_ranks:,}{shared}; for several hosts calibrate with probes of several"
    )
