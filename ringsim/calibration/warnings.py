"""Warnings about a calibration and its predictions: one line each, "" for none. The sentences are in warnings.j2.

Warnings refuse nothing: two runs on a busy cluster may differ as much as TCP and RDMA, and the intervals are then wide.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from ringsim.calibration.timings import MISFIT, FittedParameter, Timing, repeated
from ringsim.libraries import Call, guessed_from, unmet_settings
from ringsim.measurements import RING_TESTS
from ringsim.network import Network
from ringsim.text_table import load_template
from ringsim.units import format_rate, format_size, format_time, plural

_APART = (1 + MISFIT) ** 2  # the factor between two times beyond which no network is within MISFIT of both
# The share of the common timings of two logs that may be apart. The fit leaves out as many: a run that was disturbed
# has a few such times. In 35 public tables 29 of 1,068 times in place are that far from those out of place, and never
# a tenth of a table.
_DISTURBED = 0.1


def warning_line(name: str, /, **facts: Any) -> str:
    """Return the line of the macro `name` of warnings.j2."""
    filters = {"plural": plural, "rate": format_rate, "size": format_size, "time": format_time}
    template = load_template(Path(__file__).with_name("warnings.j2"), filters, trim_blocks=True)
    return str(getattr(template.module, name)(**facts)).strip().replace("\n", " ")


class _Pair(NamedTuple):
    """Times of the same collective from two logs or two runs."""

    fast_s: float
    fast: Timing
    slow_s: float
    slow: Timing

    @property
    def factor(self) -> float:
        return self.slow_s / self.fast_s

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(sorted((self.fast.file, self.slow.file)))


def _pairs(cases: Sequence[Timing]) -> Iterator[_Pair]:
    for some in repeated(cases):
        for pair in combinations(some, 2):
            fast, slow = sorted(pair, key=lambda case: case.calibrated_s)
            yield _Pair(fast.calibrated_s, fast, slow.calibrated_s, slow)
    for case in cases:
        if len(case.rows) > 1:  # of more than one table
            yield _Pair(min(case.times_s), case, max(case.times_s), case)


def contradiction_warning(cases: Iterable[Timing]) -> str:
    """Warn of the two logs, or one log's runs, whose common timings differ most; a few may differ."""
    by_files: dict[tuple[str, ...], list[_Pair]] = {}
    for pair in _pairs(list(cases)):
        by_files.setdefault(pair.files, []).append(pair)
    contradictions = [
        (max(pairs, key=lambda pair: pair.factor), num_apart, len(pairs))
        for pairs in by_files.values()
        if (num_apart := sum(pair.factor > _APART for pair in pairs)) > _DISTURBED * len(pairs)
    ]
    if not contradictions:
        return ""
    pair, num_apart, num_common = max(contradictions, key=lambda one: (len({*one[0].files}), one[0].factor))
    slow, fast = pair.slow, pair.fast
    is_ambiguous = slow.file_name == fast.file_name and slow.file != fast.file
    slow_file, fast_file = (case.file if is_ambiguous else case.file_name for case in (slow, fast))
    return warning_line(
        "contradictory", pair=pair, slow_file=slow_file, fast_file=fast_file, least_factor=_APART,
        num_apart=num_apart, num_common=num_common, num_more=len(contradictions) - 1,
    )  # fmt: skip


def settings_warning(cluster: Network, calls: Sequence[Call]) -> str:
    """Warn of NCCL settings that the network does not describe."""
    unmet = unmet_settings(cluster, calls)
    if not unmet:
        return ""
    settings = sorted({call.settings.as_text() for call in unmet})
    places = sorted({f"{call.collective} on {plural(call.num_nodes, 'host')}" for call in unmet})
    return warning_line("not_followed", name=cluster.name, settings=settings, places=places, num_timings=len(unmet))


def undetermined_warning(parameters: Iterable[FittedParameter], cases: Sequence[Timing]) -> str:
    """Warn of parameters that the logs do not determine, and name the most informative further log."""
    num_undetermined = sum(not parameter.seen_in for parameter in parameters)
    num_hosts = {case.call.num_nodes for case in cases if case.call.collective in RING_TESTS}
    per_host = max(math.ceil(case.call.num_ranks / case.call.num_nodes) for case in cases)
    most = max(num_hosts, default=1)
    missing = {
        "two hosts": most == 1,
        "one host": 1 not in num_hosts and per_host > 1,
        "small": min(case.call.size_bytes for case in cases) > _SMALL,
        "more hosts": len(num_hosts - {1}) == 1,
        "ring": all(case.call.collective not in RING_TESTS[1:] for case in cases),
    }
    most_informative = next((log for log, is_missing in missing.items() if is_missing), "")
    if not num_undetermined or not most_informative:
        return ""
    return warning_line(
        "undecided", num_undetermined=num_undetermined, missing=most_informative, per_host=per_host, num_hosts=most
    )


_SMALL = 2**16  # bytes: longer messages tell little of latencies
_FILES_NAMED = 3
# Fitted to 60 public logs of nccl-tests, OSU and Gloo (docs/accuracy.md, "Clusters"), from Ethernet of 10 Gbit/s to
# InfiniBand NDR, a hop from host to host takes at most 354 us, one within a host at most 13 us. The limits are about
# three and four times as much: a longer one is rather a mistake, or a busy machine, than a network.
_LONGEST_HOPS_S = {"hop_latency": 1e-3, "link_latency": 50e-6}  # by the end of a parameter's name


def implausible_warning(parameters: Iterable[FittedParameter]) -> str:
    """Warn of the least plausible latency of a hop."""
    hops = [(parameter, parameter.name.rpartition(" ")[2]) for parameter in parameters]
    too_long = [
        (parameter.value / _LONGEST_HOPS_S[kind], parameter, kind)
        for parameter, kind in hops
        if kind in _LONGEST_HOPS_S and parameter.value > _LONGEST_HOPS_S[kind]
    ]
    if not too_long:
        return ""
    _, worst, kind = max(too_long, key=lambda hop: hop[0])
    files = sorted({case.file_name for case in worst.seen_in})
    return warning_line(
        "implausible", parameter=worst, kind=kind, limit_s=_LONGEST_HOPS_S[kind], files=files[:_FILES_NAMED],
        num_more=len(too_long) - 1, num_more_files=max(len(files) - _FILES_NAMED, 0),
    )  # fmt: skip


def nic_warning(cluster: Network, num_senders: int) -> str:
    """Warn if the rate at which `num_senders` ranks of a host send is a guess."""
    known = guessed_from(cluster, num_senders)
    if known is None:
        return ""
    return warning_line(
        "guessed_nics", name=cluster.name, num_known=known, num_senders=num_senders,
        bytes_per_s=cluster.spec.host.nics.bandwidth_bytes_per_s,
        num_nics=max(known, num_senders, cluster.spec.ranks_per_host or 1),
    )  # fmt: skip


def fabric_warning(cluster: Network, num_hosts: Iterable[int]) -> str:
    """Warn of numbers of hosts outside the range of the measured `fabric`."""
    known = [point.hosts for point in cluster.spec.fabric]
    others = sorted(number for number in set(num_hosts) - {1} if known and not known[0] <= number <= known[-1])
    return warning_line("other_hosts", name=cluster.name, known=known, others=others) if others else ""


def one_host_warning(cluster: Network, num_ranks: int) -> str:
    """Warn if a prediction has more ranks on one host than the calibration."""
    known = cluster.calibration.num_ranks if cluster.calibration else None
    if known is None or num_ranks <= known:
        return ""
    cores = cluster.spec.host.cores
    return warning_line("extrapolated", name=cluster.name, num_known=known, num_ranks=num_ranks, cores=cores)
