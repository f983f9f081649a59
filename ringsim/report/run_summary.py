"""The summary of one simulated collective as text and JSON."""

import math
from typing import Any

from ringsim.analysis import Explanation, algbw_bytes_per_s, busbw_bytes_per_s, format_stall
from ringsim.calibration import LibraryChoice
from ringsim.network import AnyNetwork, Network
from ringsim.report.explanation_table import as_dict, lines
from ringsim.report.network_table import uniform_note
from ringsim.schedule import Schedule
from ringsim.simulation import OnProgress, closed_form_of, ignore_progress, predict_time
from ringsim.text_table import WIDTH, align_columns
from ringsim.units import format_rate, format_size, format_time, plural


def summarise(
    schedule: Schedule,
    network: AnyNetwork,
    size_bytes: int,
    explanation: Explanation | None = None,
    on_progress: OnProgress = ignore_progress,
    library: LibraryChoice | None = None,
    *,
    in_order: bool = False,
) -> dict[str, Any]:
    """Return the simulated time of one collective and figures to compare it with, for JSON.

    explanation: of the same collective, if there is one; then nothing is simulated again.
    on_progress, in_order: as of `simulate`.
    library: what it takes beside the schedule is part of the time.
    `time_s` is None if something fails and the collective never finishes.
    """
    collective, num_ranks = schedule.collective, schedule.num_ranks
    formula_s = None
    if isinstance(network, Network):
        formula_s = closed_form_of(schedule, network, size_bytes, in_order=in_order)
    if explanation:
        time_s = explanation.timeline.time_s
    else:
        time_s = predict_time(schedule, network, size_bytes, in_order=in_order, on_progress=on_progress)
    time_s += library.start_s if library else 0.0
    return {
        "collective": collective.value,
        "algorithm": schedule.algorithm,
        "num_ranks": num_ranks,
        "num_chunks": schedule.num_chunks,
        "num_steps": schedule.num_steps,
        "num_transfers": schedule.num_transfers,
        "size_bytes": size_bytes,
        "network": network.as_dict(),
        "in_order": in_order,
        "time_s": time_s if math.isfinite(time_s) else None,
        "closed_form_s": formula_s,
        "algbw_bytes_per_s": algbw_bytes_per_s(size_bytes, time_s),
        "busbw_bytes_per_s": busbw_bytes_per_s(collective, num_ranks, size_bytes, time_s),
        "stalled": explanation.stall.as_dict() if explanation and explanation.stall else None,
        "explained": as_dict(explanation) if explanation else None,
        "library": {"protocol": library.protocol, "start_s": library.start_s} if library else None,
    }


def describe(result: dict[str, Any], explanation: Explanation | None = None, width: int | None = WIDTH) -> str:
    """Return the summary of `summarise` for people, and the explanation if there is one.

    width: in characters; None for any.
    """
    rows = [("transfers", f"{result['num_transfers']} in {plural(result['num_steps'], 'step')}"), *_times(result)]
    if explanation:
        rows += lines(explanation)
    if note := uniform_note(result["network"]):
        rows.append(("network", note))
    if explanation and explanation.stall:
        first, *others = format_stall(explanation.stall)
        rows += [("stalled", first), *(("", line) for line in others)]
    title = f"{result['collective']} {result['algorithm']}, {plural(result['num_ranks'], 'rank')}"
    title += ", in order" if result["in_order"] else ""
    indent = "  "
    lines_of_text = [indent + line for line in align_columns(rows, width=width and width - len(indent))]
    return "\n".join([f"{title}, {format_size(result['size_bytes'])}", *lines_of_text])


def _times(result: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("time", "never finishes" if result["time_s"] is None else format_time(result["time_s"]))]
    if library := result.get("library"):
        rows.append(("protocol", f"{library['protocol']}, {format_time(library['start_s'])} of the time is its start"))
    if result["closed_form_s"] is not None:
        rows.append(("closed form", format_time(result["closed_form_s"])))
    for name in ("algbw", "busbw"):
        rate = result[f"{name}_bytes_per_s"]
        rows.append((name, "-" if rate is None else format_rate(rate)))
    return rows
