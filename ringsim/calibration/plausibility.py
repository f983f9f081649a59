"""`doubt_line`: whether logs give latencies that no cluster has, what may be wrong then, and what to measure."""

from collections.abc import Sequence
from typing import NamedTuple

from ringsim.calibration.cases import TimedCase
from ringsim.calibration.from_logs import FittedParameter, LogFit
from ringsim.units import format_time

_FILES_NAMED = 3


class _HopKind(NamedTuple):
    """A kind of hop: what it is called, the latency beyond which it is doubted, why it may be, how to measure it."""

    name: str
    most_s: float
    causes: str
    measure: str


# Fitted to 60 public logs of nccl-tests, OSU and Gloo (docs/fidelity.md, "Clusters"), from Ethernet of 10 Gbit/s to
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


def doubt_line(fit: LogFit) -> str:
    """Return one line on the least plausible latency per hop that the logs show; "" if all may be."""
    doubted = [parameter for parameter in fit.parameters if _excess(parameter) > 1]
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
