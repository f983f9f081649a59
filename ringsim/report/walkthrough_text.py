"""A `Walkthrough` and the `Advice` beside it as text for people, and the latter as JSON."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ringsim.analysis import Advice, Alternative, Explanation, NetworkBound, ToldPhase, Walkthrough
from ringsim.report.bound_line import bound_line
from ringsim.report.network_table import uniform_note
from ringsim.report.run_summary import how_timed, lines
from ringsim.text_table import align_columns
from ringsim.units import format_size, format_time, plural

MAX_STEPS = 8  # of a phase, that are told one by one
_FEW_STEPS = 3  # told of a longer phase
_GAIN = 1.005  # times as fast; what gains less does not help
_NEAREST = 3  # of what gains nothing
_FAR = 0.2  # above the bound: what is nearer leaves a search little to gain


def format_walkthrough(
    run: Mapping[str, Any],
    told: Walkthrough,
    explanation: Explanation | None,
    advice: Advice,
    bound: NetworkBound | None = None,
    *,
    wide: bool = False,
) -> str:
    """Return the steps, the costs, what bounds the run, and what would help most, each under its heading.

    run: as `summarise` returns it. bound: the least time of any algorithm, if it is known.
    wide: with all that would not help, and not only the nearest to it.
    """
    blocks = [_heading(run, told), *map(_phase, told.phases)]
    blocks.append(_block("Amount of data and number of steps", map(_sentence, told.costs)))
    blocks.append(_block("What bounds it", _bounds(explanation, advice, bound)))
    blocks.append(_block("What would help most, by simulation", _alternatives(advice, wide)))
    return "\n\n".join(blocks)


def _block(heading: str, body: Iterator[str]) -> str:
    return "\n".join([heading, *(f"  {line}" for line in body)])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _heading(run: Mapping[str, Any], told: Walkthrough) -> str:
    chunk = format_size(run["size_bytes"] / run["num_chunks"])
    chunks = f" in {run['num_chunks']} chunks of {chunk}" if run["num_chunks"] > 1 else ""
    ranks = plural(run["num_ranks"], "rank")
    title = f"{run['collective']} {run['algorithm']}, {ranks}, {format_size(run['size_bytes'])}{chunks}"
    note = uniform_note(run["network"])
    about = [f"Network: {note}."] if note else []
    about += [f"Timed {how_timed(run)}."] if run["library"] else []
    return "\n".join([title, *about, _sentence(told.goal), *([_sentence(told.skipped)] if told.skipped else [])])


def _phase(phase: ToldPhase) -> str:
    first, last = phase.first + 1, phase.last + 1  # people count steps from 1
    span = f"step {first}" if first == last else f"steps {first} to {last}"
    return _block(f"{phase.name}, {span}", _steps(phase))


def _steps(phase: ToldPhase) -> Iterator[str]:
    if phase.rule:
        yield _sentence(phase.rule)
    shown = phase.steps if len(phase.steps) <= MAX_STEPS else phase.steps[:_FEW_STEPS]
    width = len(f"step {phase.last + 1}")
    for step in shown:
        yield f"{f'step {step.number + 1}':<{width}}  {step.sentence}"
        if step.example:
            yield f"{'':<{width}}  {step.example}"
    if len(shown) < len(phase.steps):
        last = phase.steps[-1]
        if len(phase.steps) > len(shown) + 1:
            yield f"steps {shown[-1].number + 2} to {last.number} follow the same pattern"
        yield f"step {last.number + 1}  {last.sentence}"


def _bounds(explanation: Explanation | None, advice: Advice, bound: NetworkBound | None) -> Iterator[str]:
    time = format_time(advice.time_s) if math.isfinite(advice.time_s) else "never finishes"
    least = (
        [("bound", bound_line(bound, advice.time_s))] if bound and bound.time_s > 0 and advice.time_s < math.inf else []
    )
    yield from align_columns([("time", time), *least, *(lines(explanation) if explanation else ())])


def _alternatives(advice: Advice, wide: bool) -> Iterator[str]:
    timed = [other for other in advice.alternatives if other.time_s is not None and math.isfinite(other.time_s)]
    helping = [other for other in timed if not advice.time_s < math.inf or (advice.gain(other) or 0) >= _GAIN]
    if helping:
        rows = [(_what(other), format_time(other.sorting_s), _gain(advice, other)) for other in helping]
        yield from align_columns(rows)
    else:
        yield "none of the alternatives that were simulated"
    others = [other for other in timed if other not in helping]
    if others:
        shown = others if wide else others[:_NEAREST]
        named = [f"{_what(other)} ({format_time(other.sorting_s)})" for other in shown]
        more = [f"and {len(others) - len(shown)} more (--wide)"] if others[len(shown) :] else []
        yield f"no gain: {', '.join([*named, *more])}"
    for other in advice.alternatives:
        if other.skipped:
            yield f"not simulated: {other.name}: {other.skipped}"
    never = [_what(other) for other in advice.alternatives if other.time_s == math.inf]
    if never:
        yield f"never finishes either: {', '.join(never)}"


def search_hint(advice: Advice, bound: NetworkBound | None) -> str:
    """Return a line on a search if bandwidths bound the collective and every algorithm is far above that; else none."""
    fastest_s = min([advice.time_s, *(other.sorting_s for other in advice.alternatives if _is_algorithm(other))])
    if not bound or bound.latency_s >= bound.throughput_s or not _FAR < bound.excess(fastest_s) < math.inf:
        return ""
    above = f"the fastest of these algorithms is {bound.excess(fastest_s):.0%} above the bound"
    return f"\n  {above}: ringsim synthesize searches for a faster schedule"


def _is_algorithm(other: Alternative) -> bool:
    return " " not in other.name


def _what(other: Alternative) -> str:
    return f"algorithm {other.name}" if _is_algorithm(other) else other.name


def _gain(advice: Advice, other: Alternative) -> str:
    gain = advice.gain(other)
    return "finishes" if gain is None else f"{gain:.3g} times as fast"


def advice_dict(advice: Advice) -> list[dict[str, Any]]:
    """Return the alternatives for JSON, the fastest first; None for a time that never comes or was not simulated."""
    return [
        {
            "name": other.name,
            "time_s": other.time_s if other.time_s is not None and math.isfinite(other.time_s) else None,
            "times_as_fast": advice.gain(other),
            "skipped": other.skipped or None,
        }
        for other in advice.alternatives
    ]
