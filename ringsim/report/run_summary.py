"""A simulated collective, and its `Explanation`, as text and JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ringsim.analysis import Explanation, RankUsage, algbw_bytes_per_s, among_most, busbw_bytes_per_s, format_blocked
from ringsim.estimates import INSIDE, NOT_BOUNDED, Estimate, ends_of
from ringsim.libraries import Plan
from ringsim.network import Floats, Network
from ringsim.report.network_table import uniform_note
from ringsim.report.table import DataTable, TableCell, time_cell
from ringsim.schedule import Schedule
from ringsim.simulation import RULE, OnProgress, Runtime, closed_form_of, ignore_progress, predict_time
from ringsim.text_table import WIDTH, align_columns
from ringsim.units import format_rate, format_size, format_time, plural


def summarise(
    schedule: Schedule,
    network: Network,
    size_bytes: int,
    explanation: Explanation | None = None,
    on_progress: OnProgress = ignore_progress,
    library: Plan | None = None,
    *,
    runtime: Runtime = RULE,
) -> dict[str, Any]:
    """Return the simulated time of one collective and reference figures, for JSON.

    explanation: of the same collective; avoids a second simulation. library: its start is part of the time.
    `time_s` is None if the collective never finishes.
    """
    collective, num_ranks = schedule.collective, schedule.num_ranks
    known_s = library.formula_s(runtime) if library else None
    formula_s = None if known_s else closed_form_of(schedule, network, size_bytes, runtime=runtime)
    if explanation and known_s is None:
        time_s = explanation.timeline.time_s + (library.start_s if library else 0.0)
    elif library:
        time_s = library.time_s(runtime=runtime, on_progress=on_progress)
    else:
        time_s = predict_time(schedule, network, size_bytes, runtime=runtime, on_progress=on_progress)
    within = library.within if library and math.isfinite(time_s) else None
    return {
        "collective": collective.value,
        "algorithm": schedule.algorithm,
        "num_ranks": num_ranks,
        "num_chunks": schedule.num_chunks,
        "num_steps": schedule.num_steps,
        "num_transfers": schedule.num_transfers,
        "size_bytes": size_bytes,
        "network": network.as_dict(),
        "in_order": runtime.in_order,
        "timed": library.how_timed(runtime, is_simulated=explanation is not None) if library else "simulated",
        "notes": library.notes if library else [],
        "time_s": time_s if math.isfinite(time_s) else None,
        "closed_form_s": formula_s,
        "algbw_bytes_per_s": algbw_bytes_per_s(size_bytes, time_s),
        "busbw_bytes_per_s": busbw_bytes_per_s(collective, num_ranks, size_bytes, time_s),
        "stalled": explanation.blocked.as_dict() if explanation and explanation.blocked else None,
        "explained": as_dict(explanation) if explanation else None,
        "library": library
        and {
            "protocol": library.protocol.name,
            "start_s": library.start_s if known_s is None or explanation else None,  # takes a simulation
        },
        **ends_of(within.map(lambda ratio: time_s * ratio) if within else None),
    }


def how_timed(result: Mapping[str, Any]) -> str:
    """Return the origin of the time, and notes."""
    return "; ".join([result["timed"], *result["notes"]])


def describe(
    result: dict[str, Any],
    explanation: Explanation | None = None,
    width: int | None = WIDTH,
    further: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the text of `summarise`, the explanation and further rows. width: in characters; None: unlimited."""
    rows = [("timed", how_timed(result))] if result["library"] else []
    rows += [("transfers", f"{result['num_transfers']} in {plural(result['num_steps'], 'step')}"), *_times(result)]
    rows += lines(explanation) if explanation else ()
    if note := uniform_note(result["network"]):
        rows.append(("network", note))
    rows += further
    title = f"{result['collective']} {result['algorithm']}, {plural(result['num_ranks'], 'rank')}"
    title += ", in order" if result["in_order"] else ""
    indent = "  "
    lines_of_text = [indent + line for line in align_columns(rows, width=width and width - len(indent))]
    return "\n".join([f"{title}, {format_size(result['size_bytes'])}", *lines_of_text])


def expected_rows(expected: Estimate | None) -> list[tuple[str, str]]:
    """Return a row with the interval of a prediction, if known."""
    if expected is None:
        return []
    between = f"{format_time(expected.low)} .. {format_time(expected.high)}" if expected.is_bounded else NOT_BOUNDED
    return [(f"expected to {INSIDE:.0%}", between)]


def _times(result: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("time", "never finishes" if result["time_s"] is None else format_time(result["time_s"]))]
    low_s, high_s = result.get("predicted_low_s"), result.get("predicted_high_s")
    if low_s is not None and high_s is not None:
        rows += expected_rows(Estimate(result["time_s"], low_s, high_s))
    if library := result["library"]:
        start_s = library["start_s"]
        start = "" if start_s is None else f", {format_time(start_s)} of the time is its start"
        rows.append(("protocol", library["protocol"] + start))
    if result["closed_form_s"] is not None:
        rows.append(("closed form", format_time(result["closed_form_s"])))
    rates = [(name, result[f"{name}_bytes_per_s"]) for name in ("algbw", "busbw")]
    return [*rows, *((name, "-" if rate is None else format_rate(rate)) for name, rate in rates)]


_RANK_COLUMNS = {"busy_s": "busy", "sending_s": "sending", "applying_s": "applying", "waiting_s": "waiting",
                 "last_active_s": "last active"}  # fmt: skip


def as_dict(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation for JSON, without the times by rank."""
    path, ranks, links = explanation.path, explanation.ranks, explanation.links
    spent = {f"{kind.value}_s": seconds for kind, seconds in path.seconds().items()} if path else {}
    link = links.bottleneck
    return {
        "critical_path": {"num_transfers": path.num_transfers, **spent} if path else None,
        "busiest_rank": _rank_as_dict(ranks, ranks.busiest),
        "slowest_rank": _rank_as_dict(ranks, ranks.slowest),
        "bottleneck": None
        if link is None
        else {
            "name": links.name(link),
            "utilisation": float(links.utilisation[link]),
            "num_links_as_busy": int(among_most(links.utilisation).sum()),
        },
    }


def ranks_as_dicts(explanation: Explanation) -> list[dict[str, Any]]:
    """Return each rank's times for JSON."""
    return [_rank_as_dict(explanation.ranks, rank) for rank in range(explanation.timeline.num_ranks)]


def _rank_as_dict(ranks: RankUsage, rank: int) -> dict[str, Any]:
    return {"rank": rank, **{name: float(getattr(ranks, name)[rank]) for name in _RANK_COLUMNS}}


def lines(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """Yield the subjects and sentences of an explanation."""
    path, ranks, links = explanation.path, explanation.ranks, explanation.links
    if path is not None and path.time_s > 0:
        shares = sorted(path.shares().items(), key=lambda item: -item[1])
        shown = [f"{kind.value} {_percent(share)}" for kind, share in shares if share >= 0.0005]  # not 0.0 %
        yield "critical path", ", ".join(shown)
    if ranks.until_s > 0:
        kinds = ranks.busy_s, ranks.sending_s, ranks.applying_s
        busy, sending, applying = (_percent(times_s[ranks.busiest] / ranks.until_s) for times_s in kinds)
        which = _which(ranks.busiest, ranks.busy_s)
        yield "busiest", f"{which}, busy {busy}: sending {sending}, applying {applying}"
        if explanation.blocked is None:
            done_s = format_time(ranks.last_active_s[ranks.slowest])
            yield "slowest", f"{_which(ranks.slowest, ranks.last_active_s)}, last active at {done_s}"
    if links.bottleneck is not None:
        others = int(among_most(links.utilisation).sum()) - 1
        also = f", as {'is one' if others == 1 else f'are {others}'} more" if others else ""
        used = _percent(links.utilisation[links.bottleneck])
        yield "bottleneck", f"{links.name(links.bottleneck)}, {used} used{also}"
    if explanation.blocked:
        stalled, *more = format_blocked(explanation.blocked)
        yield "stalled", stalled
        yield from (("", line) for line in more)


def _which(rank: int, values: Floats) -> str:
    num_as_large = int(among_most(values).sum())
    if num_as_large == len(values) > 1:
        return "all ranks alike"
    also = f" and {num_as_large - 1} more" if num_as_large > 1 else ""
    return f"rank {rank}{also}"


def ranks_table(explanation: Explanation) -> str:
    """Return a table with one row per rank."""
    ranks = explanation.ranks
    rows = [
        (TableCell(str(rank), rank), *(time_cell(getattr(ranks, name)[rank]) for name in _RANK_COLUMNS))
        for rank in range(explanation.timeline.num_ranks)
    ]
    return DataTable(("rank", *_RANK_COLUMNS.values()), rows).text()


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
