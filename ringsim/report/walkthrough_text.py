"""The text of a walkthrough, of `Advice`, of a `NetworkBound`, and of a synthesis."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringsim.analysis import Advice, Explanation, NetworkBound
from ringsim.network import Network
from ringsim.report.network_table import uniform_note
from ringsim.report.run_summary import describe, how_timed, lines, summarise
from ringsim.synthesis import Synthesis
from ringsim.text_table import WIDTH, align_columns, text_template, wrap_text
from ringsim.units import format_time, plural

_GAIN = 1.005  # times as fast, from which an alternative helps
_NEAREST = 3  # alternatives without a gain that are named
_FAR = 0.2  # above the bound, from which a search may gain something
MAX_NAMED_RESOURCES = 3
MAX_NAMED_RANKS = 8
AS_FAST = 0.0005  # above the bound; shown as 0.0 %


def format_walkthrough(
    run: Mapping[str, Any],
    told: Mapping[str, Any],
    explanation: Explanation | None,
    advice: Advice,
    bound: NetworkBound | None = None,
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
    if not wide and len(useless) > _NEAREST:
        useless[_NEAREST:] = [f"and {len(useless) - _NEAREST} more (--wide)"]
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


def search_hint(advice: Advice, bound: NetworkBound | None) -> str:
    """Hint at a search if bandwidth is the bound and all algorithms are far above it; else ""."""
    fastest_s = min([advice.time_s, *(other.sorting_s for other in advice.alternatives if other.is_algorithm)])
    if not bound or bound.latency_s >= bound.throughput_s or not _FAR < bound.excess(fastest_s) < math.inf:
        return ""
    above = f"the fastest of these algorithms is {bound.excess(fastest_s):.0%} above the bound"
    return f"\n  {above}: ringsim synthesize searches for a faster schedule"


def bound_line(bound: NetworkBound, time_s: float) -> str:
    """Return a time's excess over the bound, and the bound's reason."""
    excess = bound.excess(time_s)
    above = f"{100 * excess:.{1 if excess < 1 else 0}f} % above" if excess >= AS_FAST else "as fast as"
    return f"{above} what this network allows ({format_time(bound.time_s)}: {bound_reason(bound)})"


def bound_reason(bound: NetworkBound) -> str:
    """Return the latency, ranks or resources behind the bound."""
    if bound.latency_s >= bound.throughput_s:
        return "latency only"
    if not bound.ranks:
        return "total bytes over all links"
    names = ", ".join(bound.resources[:MAX_NAMED_RESOURCES]) or "the bandwidth of a pair of ranks"
    more = len(bound.resources) - MAX_NAMED_RESOURCES
    ranks = plural(len(bound.ranks), "rank")
    if len(bound.ranks) <= MAX_NAMED_RANKS:
        ranks = f"{'rank' if len(bound.ranks) == 1 else 'ranks'} {', '.join(map(str, bound.ranks))}"
    return f"{names}{f' and {more} more' if more > 0 else ''} {'from' if bound.leaves else 'to'} {ranks}"


def synthesis_dict(
    synthesis: Synthesis, network: Network, size_bytes: int, seed: int, explanation: Explanation | None
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
    synthesis: Synthesis, result: dict[str, Any], explanation: Explanation | None, *, wide: bool = False
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
