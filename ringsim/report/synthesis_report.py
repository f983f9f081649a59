"""A synthesized schedule as text and JSON: how far it is from the bound, what bounds it, and the named ones beside."""

from typing import Any

from ringsim.analysis import Explanation
from ringsim.network import AnyNetwork
from ringsim.report.run_summary import describe, summarise
from ringsim.report.walkthrough_text import bound_line
from ringsim.synthesis import NamedTime, Synthesis
from ringsim.text_table import WIDTH, align_columns, wrap_text
from ringsim.units import format_time, plural


def synthesis_dict(
    synthesis: Synthesis, network: AnyNetwork, size_bytes: int, seed: int, explanation: Explanation | None
) -> dict[str, Any]:
    """Return the summary of the fastest schedule, with what it is compared with, for JSON."""
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
    """Return what `synthesis_dict` gave for people: the run, its bound, and the named algorithms.

    wide: lines are as long as they are, and all named algorithms are listed.
    """
    width = None if wide else WIDTH
    blocks = [describe(result, explanation, width)]
    if synthesis.bound:
        blocks[0] += "\n" + wrap_text(
            f"  bound          {bound_line(synthesis.bound, synthesis.time_s)}", width, " " * 17
        )
    if synthesis.is_named:
        tried = plural(synthesis.num_tried, "schedule")
        name = synthesis.named[0].options
        text = (
            f"None of {tried} that were tried is faster than the built-in algorithm {name}; the fastest of them takes "
        )
        blocks.append(wrap_text(f"{text}{format_time(synthesis.found_s)}.", width))
    blocks.append("\n".join(_named_lines(synthesis, width)))
    return "\n\n".join(blocks)


def _named_lines(synthesis: Synthesis, width: int | None) -> list[str]:
    rows = [("algorithm", "time", "over it")]
    skipped = []
    for one in synthesis.named:
        if one.time_s is None:
            skipped.append(f"{one.options} skipped: {one.skipped}")
        else:
            rows.append((one.options, format_time(one.time_s), _times(one, synthesis)))
    return [*align_columns(rows, "lrr"), *(wrap_text(line, width, "  ") for line in skipped)]


def _times(one: NamedTime, synthesis: Synthesis) -> str:
    return f"{(one.time_s or 0.0) / synthesis.time_s:.2f}" if synthesis.time_s > 0 else "-"
