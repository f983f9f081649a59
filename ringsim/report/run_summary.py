"""A simulated collective, its `Explanation`, `Advice` and `NetworkBound`, and a synthesis, as text."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ringsim import analysis
from ringsim.analysis import SimulatedCollective
from ringsim.estimates import INSIDE, NOT_BOUNDED, Estimate
from ringsim.network import Floats
from ringsim.report.network_table import uniform_note
from ringsim.report.table import DataTable, TableCell, TableColumn
from ringsim.synthesis import Synthesis
from ringsim.text_table import MAX_NAMED, WIDTH, align_columns, first_named, text_template, wrap_text
from ringsim.units import format_rate, format_size, format_time, plural


def how_timed(run: SimulatedCollective) -> str:
    """Return the origin of the time, and notes."""
    return "; ".join([run.timed, *run.notes])


def describe(
    run: SimulatedCollective,
    explanation: analysis.Explanation | None = None,
    width: int | None = WIDTH,
    further: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the text of a run, its explanation and further rows; width: None: unlimited."""
    rows = [("timed", how_timed(run))] if run.library else []
    rows += [("transfers", f"{run.num_transfers} in {plural(run.num_steps, 'step')}"), *_times(run)]
    rows += lines(explanation) if explanation else ()
    if note := uniform_note(run.described or {}):
        rows.append(("network", note))
    rows += further
    title = f"{run.collective.value} {run.algorithm}, {plural(run.num_ranks, 'rank')}"
    title += ", in order" if run.in_order else ""
    indent = "  "
    lines_of_text = [indent + line for line in align_columns(rows, width=width and width - len(indent))]
    return "\n".join([f"{title}, {format_size(run.size_bytes)}", *lines_of_text])


def expected_rows(expected: Estimate | None) -> list[tuple[str, str]]:
    """Return a row with the interval, if known."""
    if expected is None:
        return []
    between = f"{format_time(expected.low)} .. {format_time(expected.high)}" if expected.is_bounded else NOT_BOUNDED
    return [(f"expected to {INSIDE:.0%}", between)]


def _times(run: SimulatedCollective) -> list[tuple[str, str]]:
    rows = [("time", "never finishes" if run.time_s is None else format_time(run.time_s))]
    rows += expected_rows(run.expected)
    if library := run.library:
        start_s = library["start_s"]
        start = "" if start_s is None else f", {format_time(start_s)} of the time is its start"
        rows.append(("protocol", library["protocol"] + start))
    if run.closed_form_s is not None:
        rows.append(("closed form", format_time(run.closed_form_s)))
    rates = ("algbw", run.algbw_bytes_per_s), ("busbw", run.busbw_bytes_per_s)
    return [*rows, *((name, "-" if rate is None else format_rate(rate)) for name, rate in rates)]


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
    """Return one row per rank."""
    number = TableColumn("rank", cell=lambda rank: TableCell(str(rank), rank))
    return DataTable.of(analysis.times_of_ranks(explanation), [number, *analysis.RANK_TIMES]).text()


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


_GAIN = 1.005  # times as fast, from which an alternative helps
_FEW_NAMED = 3  # alternatives without a gain, and resources of a bound
_FAR = 0.2  # above the bound, from which a search may gain something
AS_FAST = 0.0005  # above the bound; shown as 0.0 %


def format_walkthrough(
    run: SimulatedCollective,
    walkthrough: Mapping[str, Any],
    explanation: analysis.Explanation | None,
    advice: analysis.Advice,
    bound: analysis.NetworkBound | None = None,
    *,
    wide: bool = False,
) -> str:
    """Return the steps, the costs, the bounds, and the best improvements, each under its heading.

    bound: for any algorithm. wide: with alternatives without a gain.
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
        network=uniform_note(run.described or {}),
        timed=how_timed(run),
        walkthrough=walkthrough,
        bounds=align_columns(rows),
        helping=align_columns(helping),
        useless=useless,
        skipped=[other for other in advice.alternatives if other.skipped],
        never=[other.label for other in advice.alternatives if other.time_s == math.inf],
    )


def search_hint(advice: analysis.Advice, bound: analysis.NetworkBound | None) -> str:
    """Return a hint if bandwidth is the bound and all algorithms are far above it; else ""."""
    fastest_s = min([advice.time_s, *(other.sorting_s for other in advice.alternatives if other.is_algorithm)])
    if not bound or bound.latency_s >= bound.throughput_s or not _FAR < bound.excess(fastest_s) < math.inf:
        return ""
    above = f"the fastest of these algorithms is {bound.excess(fastest_s):.0%} above the bound"
    return f"\n  {above}: ringsim synthesize searches for a faster schedule"


def bound_line(bound: analysis.NetworkBound, time_s: float) -> str:
    """Return the excess over the bound, and its reason."""
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


def synthesis_dict(synthesis: Synthesis, run: SimulatedCollective, seed: int) -> dict[str, Any]:
    """Return a synthesis for JSON."""
    return run.as_dict() | {
        "seed": seed,
        "is_named": synthesis.is_named,
        "found_s": synthesis.found_s,
        "num_tried": synthesis.num_tried,
        "bound": synthesis.bound.as_dict() if synthesis.bound else None,
        "named": [{"algorithm": one.algorithm, "order": one.order, "time_s": one.time_s, "skipped": one.skipped or None}
                  for one in synthesis.named],
    }  # fmt: skip


def format_synthesis(
    synthesis: Synthesis, run: SimulatedCollective, explanation: analysis.Explanation | None, *, wide: bool = False
) -> str:
    """Return the run of its schedule, the bound, and the named algorithms; wide: unwrapped."""
    width = None if wide else WIDTH
    bound = [("bound", bound_line(synthesis.bound, synthesis.time_s))] if synthesis.bound else []
    blocks = [describe(run, explanation, width, bound)]
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
