"""A simulated collective, its `Explanation`, `Advice` and `NetworkBound`, and a synthesis, as text and JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ringsim import analysis
from ringsim.estimates import INSIDE, NOT_BOUNDED, Estimate, ends_of
from ringsim.libraries import Plan
from ringsim.network import Floats, Network
from ringsim.report.network_table import uniform_note
from ringsim.report.table import DataTable, TableCell, TableColumn
from ringsim.schedule import Schedule
from ringsim.simulation import RULE, OnProgress, Runtime, closed_form_of, ignore_progress, predict_time
from ringsim.synthesis import Synthesis
from ringsim.text_table import MAX_NAMED, WIDTH, align_columns, first_named, text_template, wrap_text
from ringsim.units import format_rate, format_size, format_time, plural


def summarise(
    schedule: Schedule,
    network: Network,
    size_bytes: int,
    explanation: analysis.Explanation | None = None,
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
        "algbw_bytes_per_s": analysis.algbw_bytes_per_s(size_bytes, time_s),
        "busbw_bytes_per_s": analysis.busbw_bytes_per_s(collective, num_ranks, size_bytes, time_s),
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
    explanation: analysis.Explanation | None = None,
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


_RANK_COLUMNS = "busy_s", "sending_s", "applying_s", "waiting_s", "last_active_s"


def as_dict(explanation: analysis.Explanation) -> dict[str, Any]:
    """Return an explanation for JSON, without the times by rank."""
    path, ranks, links = explanation.path, explanation.ranks, explanation.links
    spent = {f"{kind.value}_s": seconds for kind, seconds in path.seconds().items()} if path else {}
    link, used = links.bottleneck, links.utilisation
    busiest = None if link is None else {"name": links.name(link), "utilisation": float(used[link])}
    return {
        "critical_path": {"num_transfers": path.num_transfers, **spent} if path else None,
        "busiest_rank": _rank_as_dict(ranks, ranks.busiest),
        "slowest_rank": _rank_as_dict(ranks, ranks.slowest),
        "bottleneck": busiest and {**busiest, "num_links_as_busy": int(analysis.among_most(used).sum())},
    }


def ranks_as_dicts(explanation: analysis.Explanation) -> list[dict[str, Any]]:
    """Return each rank's times for JSON."""
    return [_rank_as_dict(explanation.ranks, rank) for rank in range(explanation.timeline.num_ranks)]


def _rank_as_dict(ranks: analysis.RankUsage, rank: int) -> dict[str, Any]:
    return {"rank": rank, **{name: float(getattr(ranks, name)[rank]) for name in _RANK_COLUMNS}}


def lines(explanation: analysis.Explanation) -> Iterator[tuple[str, str]]:
    """Yield the subjects and sentences of an explanation."""
    path, ranks, links = explanation.path, explanation.ranks, explanation.links
    if path is not None and path.time_s > 0:
        shares = {kind: share for kind, share in path.shares().items() if share >= 0.0005}  # not 0.0 %
        yield "critical path", ", ".join(f"{kind.value} {_percent(share)}" for kind, share in shares.items())
    if ranks.until_s > 0:
        kinds = ranks.busy_s, ranks.sending_s, ranks.applying_s
        busy, sending, applying = (_percent(times_s[ranks.busiest] / ranks.until_s) for times_s in kinds)
        which = _which(ranks.busiest, ranks.busy_s)
        yield "busiest", f"{which}, busy {busy}: sending {sending}, applying {applying}"
        if explanation.blocked is None:
            done_s = format_time(ranks.last_active_s[ranks.slowest])
            yield "slowest", f"{_which(ranks.slowest, ranks.last_active_s)}, last active at {done_s}"
    if links.bottleneck is not None:
        others = int(analysis.among_most(links.utilisation).sum()) - 1
        also = f", as {'is one' if others == 1 else f'are {others}'} more" if others else ""
        used = _percent(links.utilisation[links.bottleneck])
        yield "bottleneck", f"{links.name(links.bottleneck)}, {used} used{also}"
    if explanation.blocked:
        stalled, *more = analysis.format_blocked(explanation.blocked)
        yield "stalled", stalled
        yield from (("", line) for line in more)


def _which(rank: int, values: Floats) -> str:
    num_as_large = int(analysis.among_most(values).sum())
    if num_as_large == len(values) > 1:
        return "all ranks alike"
    also = f" and {num_as_large - 1} more" if num_as_large > 1 else ""
    return f"rank {rank}{also}"


def ranks_table(explanation: analysis.Explanation) -> str:
    """Return a table with one row per rank."""
    number = TableColumn("rank", cell=lambda rank: TableCell(str(rank), rank))
    return DataTable.of(ranks_as_dicts(explanation), [number, *_RANK_COLUMNS]).text()


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


_GAIN = 1.005  # times as fast, from which an alternative helps
_FEW_NAMED = 3  # alternatives without a gain, and resources of a bound
_FAR = 0.2  # above the bound, from which a search may gain something
AS_FAST = 0.0005  # above the bound; shown as 0.0 %


def format_walkthrough(
    run: Mapping[str, Any],
    told: Mapping[str, Any],
    explanation: analysis.Explanation | None,
    advice: analysis.Advice,
    bound: analysis.NetworkBound | None = None,
    *,
    wide: bool = False,
) -> str:
    """Return the steps, the costs, the bounds, and the best improvements, each under its heading.

    run: from `summarise`. told: from `walk_through`. bound: for any algorithm. wide: name alternatives without a gain.
    """
    rows = [("time", format_time(advice.time_s) if math.isfinite(advice.time_s) else "never finishes")]
    if bound and bound.time_s > 0 and advice.time_s < math.inf:
        rows.append(("bound", bound_line(bound, advice.time_s)))
    rows += lines(explanation) if explanation else ()
    timed = [other for other in advice.alternatives if other.sorting_s < math.inf]
    gains = {other: math.inf if advice.time_s == math.inf else advice.gain(other) or 0.0 for other in timed}
    useless = [f"{other.label} ({format_time(other.sorting_s)})" for other, gain in gains.items() if gain < _GAIN]
    if not wide:
        useless = first_named(useless, "more (--wide)", _FEW_NAMED)
    helping = [
        (other.label, format_time(other.sorting_s), f"{gain:.3g} times as fast" if gain < math.inf else "finishes")
        for other, gain in gains.items()
        if gain >= _GAIN
    ]
    return text_template(Path(__file__).with_name("explain.txt")).render(
        run=run,
        network=uniform_note(run["network"]),
        timed=how_timed(run),
        told=told,
        bounds=align_columns(rows),
        helping=align_columns(helping),
        useless=useless,
        skipped=[other for other in advice.alternatives if other.skipped],
        never=[other.label for other in advice.alternatives if other.time_s == math.inf],
    )


def search_hint(advice: analysis.Advice, bound: analysis.NetworkBound | None) -> str:
    """Hint at a search if bandwidth is the bound and all algorithms are far above it; else ""."""
    fastest_s = min([advice.time_s, *(other.sorting_s for other in advice.alternatives if other.is_algorithm)])
    if not bound or bound.latency_s >= bound.throughput_s or not _FAR < bound.excess(fastest_s) < math.inf:
        return ""
    above = f"the fastest of these algorithms is {bound.excess(fastest_s):.0%} above the bound"
    return f"\n  {above}: ringsim synthesize searches for a faster schedule"


def bound_line(bound: analysis.NetworkBound, time_s: float) -> str:
    """Return a time's excess over the bound, and the bound's reason."""
    excess = bound.excess(time_s)
    above = f"{100 * excess:.{1 if excess < 1 else 0}f} % above" if excess >= AS_FAST else "as fast as"
    return f"{above} what this network allows ({format_time(bound.time_s)}: {bound_reason(bound)})"


def bound_reason(bound: analysis.NetworkBound) -> str:
    """Return the latency, ranks or resources behind the bound."""
    if bound.latency_s >= bound.throughput_s:
        return "latency only"
    if not bound.ranks:
        return "total bytes over all links"
    names = ", ".join(first_named(bound.resources, most=_FEW_NAMED)) or "the bandwidth of a pair of ranks"
    ranks = plural(len(bound.ranks), "rank")
    if len(bound.ranks) <= MAX_NAMED:
        ranks = f"{'rank' if len(bound.ranks) == 1 else 'ranks'} {', '.join(map(str, bound.ranks))}"
    return f"{names} {'from' if bound.leaves else 'to'} {ranks}"


def synthesis_dict(
    synthesis: Synthesis, network: Network, size_bytes: int, seed: int, explanation: analysis.Explanation | None
) -> dict[str, Any]:
    """Return the fastest schedule, the bound and the named algorithms, for JSON."""
    return summarise(synthesis.schedule, network, size_bytes, explanation) | {
        "seed": seed,
        "is_named": synthesis.is_named,
        "found_s": synthesis.found_s,
        "num_tried": synthesis.num_tried,
        "bound": synthesis.bound.as_dict() if synthesis.bound else None,
        "named": [{"algorithm": one.algorithm, "order": one.order, "time_s": one.time_s, "skipped": one.skipped or None}
                  for one in synthesis.named],
    }  # fmt: skip


def format_synthesis(
    synthesis: Synthesis, result: dict[str, Any], explanation: analysis.Explanation | None, *, wide: bool = False
) -> str:
    """Return the run, its bound, and the named algorithms. result: of `synthesis_dict`; wide: unwrapped."""
    width = None if wide else WIDTH
    bound = [("bound", bound_line(synthesis.bound, synthesis.time_s))] if synthesis.bound else []
    blocks = [describe(result, explanation, width, bound)]
    if synthesis.is_named:
        tried, name = plural(synthesis.num_tried, "schedule"), synthesis.named[0].options
        text = f"None of {tried} that were tried is faster than the built-in algorithm {name}; the fastest of them"
        blocks.append(wrap_text(f"{text} takes {format_time(synthesis.found_s)}.", width))
    return "\n\n".join([*blocks, "\n".join(_named_lines(synthesis, width))])


def _named_lines(synthesis: Synthesis, width: int | None) -> list[str]:
    timed = [(one.options, one.time_s) for one in synthesis.named if one.time_s is not None]
    over = [f"{time_s / synthesis.time_s:.2f}" if synthesis.time_s > 0 else "-" for _, time_s in timed]
    rows = [(name, format_time(time_s), times) for (name, time_s), times in zip(timed, over, strict=True)]
    skipped = [f"{one.options} skipped: {one.skipped}" for one in synthesis.named if one.time_s is None]
    table = align_columns([("algorithm", "time", "over it"), *rows], "lrr")
    return [*table, *(wrap_text(line, width, "  ") for line in skipped)]
