"""A `NetworkBound` in words: "12.0 % above what this network allows"."""

from ringsim.analysis import NetworkBound
from ringsim.units import format_time, plural

MAX_NAMED_RESOURCES = 3
MAX_NAMED_RANKS = 8
AS_FAST = 0.0005  # above the bound, up to which a time would be shown as 0.0 % above


def bound_line(bound: NetworkBound, time_s: float) -> str:
    """Return how far a time is above the least that the network allows, and what that follows from."""
    allowed = f"what this network allows ({format_time(bound.time_s)}: {bound_reason(bound)})"
    excess = bound.excess(time_s)
    return f"as fast as {allowed}" if excess < AS_FAST else f"{_percent(excess)} above {allowed}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 1 else f"{100 * share:.0f} %"


def bound_reason(bound: NetworkBound) -> str:
    """Return what the bound follows from."""
    if bound.latency_s >= bound.throughput_s:
        return "latency only"
    if not bound.ranks:
        return "total bytes over all links"
    names = ", ".join(bound.resources[:MAX_NAMED_RESOURCES]) or "the bandwidth of a pair of ranks"
    more = len(bound.resources) - MAX_NAMED_RESOURCES
    behind = (
        f"{plural(len(bound.ranks), 'rank')}"
        if len(bound.ranks) > MAX_NAMED_RANKS
        else f"{'rank' if len(bound.ranks) == 1 else 'ranks'} {', '.join(map(str, bound.ranks))}"
    )
    return f"{names}{f' and {more} more' if more > 0 else ''} {'from' if bound.leaves else 'to'} {behind}"
