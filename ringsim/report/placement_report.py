"""A rank placement as text and JSON: what it gains, and what held the ranks up before and does now; and read back."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringsim.analysis import Congestion, RankPlacement
from ringsim.files import finite_or_none, parse_json, quoted, read_text, values
from ringsim.network import AnyNetwork
from ringsim.schedule import Schedule
from ringsim.text_table import WIDTH, align_columns
from ringsim.units import format_size, format_time, plural, whole_number

SLOW = 2.0  # times the quickest of all hops, before and now
MAX_NAMED = 6  # slow hops
MARGIN = 22  # characters before what the rows say


def placement_dict(
    schedule: Schedule, network: AnyNetwork, size_bytes: int, placement: RankPlacement, seed: int = 0
) -> dict[str, Any]:
    """Return the rank placement with its gain and what it is about, for JSON; a time without end becomes None.

    before, now: the busiest resource, for how long its messages need it in all, and of the hops (pairs of ranks)
    those that take `SLOW` times as long as the quickest of all, for a message that shares nothing, the slowest first.
    """
    chunk_bytes = schedule.chunk_bytes(size_bytes)
    congestion = Congestion(schedule, network.topology(schedule.num_ranks), chunk_bytes)
    placements = {"before": range(schedule.num_ranks), "now": placement.order}
    hops = {when: congestion.message_s(ranks) for when, ranks in placements.items()}
    slow_s = SLOW * min((time_s for message_s in hops.values() for time_s in message_s.values()), default=0.0)
    return {
        "collective": schedule.collective.value,
        "algorithm": schedule.algorithm,
        "num_ranks": schedule.num_ranks,
        "size_bytes": size_bytes,
        "network": network.as_dict(),
        "seed": seed,
        "evaluations": placement.evaluations,
        "order": list(placement.order),
        "time_before_s": finite_or_none(placement.time_before_s),
        "time_s": finite_or_none(placement.time_s),
        "gain": finite_or_none(placement.gain),
        **{when: _held_up_by(congestion, ranks, hops[when], slow_s) for when, ranks in placements.items()},
    }


def _held_up_by(
    congestion: Congestion, ranks: Sequence[int], hops: Mapping[tuple[int, int], float], slow_s: float
) -> dict[str, Any]:
    name, busy_s = congestion.busiest(ranks) or (None, None)
    slow = sorted((hop for hop, time_s in hops.items() if time_s > slow_s), key=lambda hop: (-hops[hop], hop))
    return {"busiest": name, "busy_s": busy_s, "num_hops": len(hops), "slow_hops": [list(hop) for hop in slow]}


def format_placement(report: Mapping[str, Any], wide: bool = False) -> str:
    """Return what `placement_dict` gave, for people; a long order whole only if `wide`."""
    width = None if wide else WIDTH
    before, now = report["before"], report["now"]
    rows = [("order", _order(report["order"], width))]
    states = {"": before} if _is_unchanged(report) else {" before": before, " now": now}
    rows.append(("time", _times(report)))
    if before["busiest"]:
        busiest = " -> ".join(f"{state['busiest']}, {format_time(state['busy_s'])}" for state in states.values())
        rows.append(("busiest", busiest))
    rows += [(f"slow hops{when}", _slow_hops(state)) for when, state in states.items()]
    if _is_unchanged(report):
        rows.append(("may help", _what_may_help(report)))
    rows.append(("simulated", plural(report["evaluations"], "order")))
    schedule = f"{report['collective']} {report['algorithm']}, {plural(report['num_ranks'], 'rank')}"
    title = f"{schedule}, {format_size(report['size_bytes'])}"
    return "\n".join([title, *(f"  {line}" for line in align_columns(rows, width=width and width - 2))])


def _order(order: Sequence[int], width: int | None) -> str:
    text = ",".join(map(str, order))
    if width is None or len(text) <= width - MARGIN:
        return text
    shown = text[: text.rfind(",", 0, 24) + 1]
    return f"{shown}... (--wide shows it, -o saves it)"


def _is_unchanged(report: Mapping[str, Any]) -> bool:
    return bool(report["order"] == list(range(report["num_ranks"])))


def _times(report: Mapping[str, Any]) -> str:
    before_s, now_s = report["time_before_s"], report["time_s"]
    if now_s is None:
        return "never ends, in any simulated order, because of a failure"
    if _is_unchanged(report):
        return f"{format_time(now_s)}: no faster order found"
    if before_s is None:
        return f"never ends -> {format_time(now_s)}: now it ends"
    return f"{format_time(before_s)} -> {format_time(now_s)}, {report['gain']:.2f} times as fast"


def _what_may_help(report: Mapping[str, Any]) -> str:
    """Return what to try where no order does."""
    if report["time_s"] is None:
        return "ringsim simulate reports which part fails and which ranks wait"
    every = "a ring uses every NIC in any order; " if "ring" in report["algorithm"] else ""
    return f"{every}ringsim explain simulates all other algorithms, and ringsim synthesize searches for a schedule"


def _slow_hops(state: Mapping[str, Any]) -> str:
    slow = state["slow_hops"]
    named = ", ".join(f"{src}-{dst}" for src, dst in slow[:MAX_NAMED]) + ", ..." * (len(slow) > MAX_NAMED)
    return f"{len(slow)} of {state['num_hops']}" + f": {named}" * bool(slow)


def parse_placement(text: str) -> tuple[int, ...]:
    """Return the ranks in the order of their places, from numbers or the name of a file.

    A file holds either these numbers, or JSON that is a list of them or has one as "order".

    Raises ValueError for text that is neither, and for a file that cannot be read.
    """
    if numbers := _ranks_of(text):
        return numbers
    content = _content(text)
    if numbers := _ranks_of(content):
        return numbers
    try:
        data = parse_json(content)
    except ValueError as error:
        raise ValueError(f"{text}: is not an order: must be numbers such as 0,2,1,3, or JSON: {error}") from None
    ranks = data.get("order") if isinstance(data, dict) else data
    if not isinstance(ranks, list) or not all(values.is_whole(rank) for rank in ranks):
        raise ValueError(f'{text}: is not an order: JSON must be a list of ranks, or have one as "order"')
    return tuple(ranks)


def _ranks_of(text: str) -> tuple[int, ...] | None:
    numbers = [whole_number(part.strip()) for part in text.split(",")]
    return None if None in numbers else tuple(number for number in numbers if number is not None)


def _content(name: str) -> str:
    try:
        return read_text(Path(name))
    except OSError as error:
        raise ValueError(f"{quoted(name, 300)} is not an order, 0,2,1,3, and not a file: {error.strerror}") from None
