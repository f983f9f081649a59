"""Doubts about a calibration from logs, and what these leave open: a line for the user each.

All of them warn, and refuse nothing. Two runs of one setting on a busy cluster may lie as far apart as TCP and RDMA do,
and then both are true: the network is uncertain, and its intervals say so. And a host whose GPUs share one NIC is
described rightly by the log of one GPU.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from ringsim.calibration.cases import MISFIT, FittedParameter, TimedCase, repeated
from ringsim.calibration.protocol_time import unmet_settings
from ringsim.calibration.questions import Question, QuestionColumns
from ringsim.measurements import RING_TESTS
from ringsim.network import Calibration, Cluster
from ringsim.units import format_rate, format_size, format_time, plural

# Two times so far apart that no network is within MISFIT of both.
_APART = (1 + MISFIT) ** 2
# Of the timings that two logs both have. The fit leaves out as many: a run that was disturbed has a few such times. In
# 35 public tables 29 of 1,068 times in place are that far from those out of place, and never a tenth of a table.
_DISTURBED = 0.1


def contradiction_line(cases: Iterable[TimedCase]) -> str:
    """Return one line on the two logs that differ most in what both measured; "" if all agree but for a few times.

    If they do, it is on the log whose own runs of the same differ most.
    """
    cases = list(cases)
    by_files: dict[tuple[str, ...], list[tuple[TimedCase, TimedCase]]] = {}
    for some in repeated(cases):
        for pair in combinations(some, 2):
            fast, slow = sorted(pair, key=lambda case: case.calibrated_s)
            by_files.setdefault(tuple(sorted(case.file for case in pair)), []).append((fast, slow))
    contradictions = [pairs for pairs in by_files.values() if _num_apart(pairs) > _DISTURBED * len(pairs)]
    if not contradictions:
        return _line_within(cases)
    pairs = max(contradictions, key=lambda pairs: max(map(_factor, pairs)))
    fast, slow = max(pairs, key=_factor)
    more = f"; {plural(len(contradictions) - 1, 'more pair')} of logs as well" if len(contradictions) > 1 else ""
    return (
        f"contradictory: {slow.collective} {format_size(slow.size_bytes)} on {plural(slow.num_ranks, 'rank')} of "
        f"{plural(slow.num_nodes, 'host')} takes {format_time(slow.calibrated_s)} in {_name(slow, fast)} and "
        f"{format_time(fast.calibrated_s)} in {_name(fast, slow)}, {_factor((fast, slow)):.1f} times as long, and "
        f"{_num_apart(pairs)} of their {len(pairs)} common timings differ by more than a factor of {_APART:.1f}{more}: "
        "their settings differ: calibrate them separately"
    )


def _line_within(cases: Iterable[TimedCase]) -> str:
    """Return one line on the log that holds several runs, of which some take much longer than others; else ""."""
    by_file: dict[str, list[TimedCase]] = {}
    for case in cases:
        if len(case.rows) > 1:  # of more than one table
            by_file.setdefault(case.file, []).append(case)
    contradictory = [
        own for own in by_file.values() if sum(_range(case) > _APART for case in own) > _DISTURBED * len(own)
    ]
    if not contradictory:
        return ""
    own = max(contradictory, key=lambda own: max(map(_range, own)))
    worst = max(own, key=_range)
    return (
        f"contradictory: {worst.collective} {format_size(worst.size_bytes)} on {plural(worst.num_ranks, 'rank')} of "
        f"{plural(worst.num_nodes, 'host')} takes {format_time(min(worst.times_s))} to "
        f"{format_time(max(worst.times_s))} in {worst.file_name}, and {sum(_range(case) > _APART for case in own)} of "
        f"its {len(own)} repeated timings differ by more than a factor of {_APART:.1f}: the settings of its runs "
        "differ: put them into separate files, and calibrate these separately"
    )


def _range(case: TimedCase) -> float:
    return max(case.times_s) / min(case.times_s)


def _factor(pair: tuple[TimedCase, TimedCase]) -> float:
    fast, slow = pair
    return slow.calibrated_s / fast.calibrated_s


def _num_apart(pairs: Sequence[tuple[TimedCase, TimedCase]]) -> int:
    return sum(_factor(pair) > _APART for pair in pairs)


def _name(case: TimedCase, other: TimedCase) -> str:
    """Return the name of its file, with the folder where the other's is the same without."""
    return case.file if case.file_name == other.file_name else case.file_name


def settings_line(cluster: Cluster, questions: Sequence[Question]) -> str:
    """Return one line on settings of NCCL that are not followed, as the network has no such thing; "" if all are."""
    unmet = unmet_settings(cluster, questions)
    if not unmet:
        return ""
    asked = sorted({settings.as_text() for settings in (question.settings for question in unmet)})
    where = sorted({f"{question.test} on {plural(question.num_nodes, 'host')}" for question in unmet})
    timings = plural(len(unmet), "timing")
    return (
        f"not followed: {', '.join(asked)}: {cluster.name} has no formula for that with {' or '.join(where)}: "
        f"{timings} {'is' if len(unmet) == 1 else 'are'} predicted as if NCCL were free to choose"
    )


def undecided_line(parameters: Iterable[FittedParameter], cases: Sequence[TimedCase]) -> str:
    """Return one line on what the logs leave open, and which log would tell most of it; "" if there is none."""
    undecided, measure = sum(not parameter.seen_in for parameter in parameters), _most_telling(cases)
    if not undecided or not measure:
        return ""
    return (
        f"undecided: the logs do not determine {undecided} of the parameters, which keep their prior values; "
        f"a log of {measure} would determine more"
    )


def _most_telling(cases: Sequence[TimedCase]) -> str:
    """Return the log that is missing most: the collective, and on what it runs."""
    hosts = {case.num_nodes for case in cases if case.collective in RING_TESTS}
    per_host = max(math.ceil(case.num_ranks / case.num_nodes) for case in cases)
    ranks, most = plural(per_host, "rank"), max(hosts, default=1)
    if most == 1:
        return f"all_reduce on 2 hosts, with {ranks} on each,"
    if 1 not in hosts and per_host > 1:
        return f"all_reduce on one host, with {ranks},"
    if min(case.size_bytes for case in cases) > _SMALL:
        return f"all_reduce from 8 bytes on, on {plural(most, 'host')}, with {ranks} on each,"
    if len(hosts - {1}) == 1:
        return f"all_reduce on {4 * most} hosts, with {ranks} on each,"
    if not any(case.collective in RING_TESTS[1:] for case in cases):
        return f"all_gather, which tells rings from trees, on {plural(most, 'host')},"
    return ""


_SMALL = 2**16  # bytes: what is longer says little of latencies
_FILES_NAMED = 3


class _HopKind(NamedTuple):
    """A kind of hop: what it is called, the latency beyond which it is doubted, why it may be, how to measure it."""

    name: str
    most_s: float
    causes: str
    measure: str


# Fitted to 60 public logs of nccl-tests, OSU and Gloo (docs/accuracy.md, "Clusters"), from Ethernet of 10 Gbit/s to
# InfiniBand NDR, a hop from host to host takes at most 354 us, one within a host at most 13 us. The limits are about
# three and four times as much: what lies beyond is rather a mistake, or a busy machine, than a network.
_HOP_KINDS = {
    "hop_latency": _HopKind(
        "from host to host",
        1e-3,
        "were the hosts busy, did NCCL use the wrong interface (NCCL_SOCKET_IFNAME), are --nodes and --ranks-per-node "
        "right?",
        "sendrecv_perf -b 8 -e 8 with one rank on each of two hosts",
    ),
    "link_latency": _HopKind(
        "within a host",
        50e-6,
        "were its cores busy, did NCCL send through sockets (NCCL_DEBUG=INFO names the transport), is --nodes right?",
        "sendrecv_perf -b 8 -e 8 with two ranks of one host",
    ),
}


def doubt_line(parameters: Iterable[FittedParameter]) -> str:
    """Return one line on the least plausible latency per hop that the logs show; "" if all may be."""
    doubted = [parameter for parameter in parameters if _excess(parameter) > 1]
    if not doubted:
        return ""
    worst = max(doubted, key=_excess)
    hop = _HOP_KINDS[_kind(worst)]
    more = f", and {len(doubted) - 1} more like it" if len(doubted) > 1 else ""
    return (
        f"implausible: {worst.name} is {format_time(worst.value)}{more}: a hop {hop.name} takes less than "
        f"{format_time(hop.most_s)}; seen in {_files(worst.seen_in)}: {hop.causes} {hop.measure} measures a hop alone"
    )


def _kind(parameter: FittedParameter) -> str:
    """Return the last word of such as "LL hop_latency"."""
    return parameter.name.rpartition(" ")[2]


def _excess(parameter: FittedParameter) -> float:
    hop = _HOP_KINDS.get(_kind(parameter))
    return parameter.value / hop.most_s if hop else 0.0


def _files(cases: Sequence[TimedCase]) -> str:
    files = sorted({case.file_name for case in cases})
    more = f" and {len(files) - _FILES_NAMED} more" if len(files) > _FILES_NAMED else ""
    return ", ".join(files[:_FILES_NAMED]) + more


def senders_per_host(questions: Iterable[Question]) -> set[int]:
    """Return how many ranks of a host send to others at once, of those questions that are about several hosts."""
    across = [question for question in questions if question.num_nodes > 1]
    return {math.ceil(senders) for senders in QuestionColumns.from_questions(across).senders} if across else set()


def guessed_from(cluster: Cluster, num_senders: int) -> int | None:
    """Return how many ranks of a host sent in the logs from which the rate of `num_senders` of them is a guess.

    None where it is no guess: the NICs were given, the logs have as many senders, or collectives with several numbers
    of them, of which none is less, show how many NICs there are.
    """
    calibration = cluster.calibration
    if calibration is None or calibration.senders_per_host is None or cluster.spec.host.nics.count:
        return None
    seen, most = _seen(calibration), calibration.senders_per_host
    if most > max(seen, default=0):  # groups of ranks, which the cells do not tell, sent at once
        seen = {most}
    if num_senders in seen:
        return None
    if num_senders > max(seen):
        return max(seen)
    several = len(_seen(calibration, RING_TESTS)) > 1  # what the fit takes for several, see `assumptions`
    return None if several else min(senders for senders in seen if senders > num_senders)


def _seen(calibration: Calibration, tests: tuple[str, ...] = ()) -> set[int]:
    """Return the numbers of senders in the logs; of these collectives alone, if some are given."""
    return senders_per_host(
        Question(cells.collective, 1, cells.num_ranks, cells.num_hosts)
        for cells in calibration.cells
        if not tests or cells.collective in tests
    )


def nic_line(cluster: Cluster, num_senders: int) -> str:
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


def one_host_line(cluster: Cluster, num_ranks: int) -> str:
    """Return one line if more ranks are predicted for a host than it was calibrated with; "" for other networks."""
    known, cores = cluster.calibration.num_ranks if cluster.calibration else None, cluster.spec.host.cores
    if known is None or num_ranks <= known:
        return ""
    shared = f", which share its {plural(cores, 'core')}" if cores else ""
    return (
        f"extrapolated: {cluster.name} is one host, calibrated on {plural(known, 'rank')}, predicted for "
        f"{num_ranks:,}{shared}; for several hosts calibrate with probes of several"
    )
