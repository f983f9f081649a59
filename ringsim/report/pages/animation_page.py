"""`animation_page`: a page that plays one run of a collective, or two on one time axis."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ringsim import analysis
from ringsim.report.colours import contributor_colours
from ringsim.report.network_table import network_facts
from ringsim.report.pages import asset, page
from ringsim.schedule import held_at_start
from ringsim.simulation import Seconds
from ringsim.text_table import as_sentence
from ringsim.units import format_size, format_time, plural, time_unit

_TICKS = 10**6  # of the whole time; a pixel is at least a hundred ticks
_SCRIPTS = ("run.js", "canvas.js", "graph.js", "grid.js", "lanes.js", "player.js")
MAX_SIDES = 2


def animation_page(views: Sequence[analysis.RunView], note: str = "") -> str:
    """Return the text of a page that shows who sends what, what each rank holds, and when: one run, or two.

    The page's address may end in `#step=3` (the end of the third step), `#t=0.5` (half of the time) or `#chunk=0`
    (follow a chunk). note: a sentence below the title.
    Raises ValueError for another number of runs, or too many transfers or chunks, and ScheduleError for an incorrect
    schedule.

        >>> from ringsim import Network, RunView, animation_page, ring_all_reduce
        >>> view = RunView(ring_all_reduce(4), Network.uniform(latency_s=1e-5, bandwidth_bytes_per_s=1e9), 2**20)
        >>> animation_page([view]).startswith("<!DOCTYPE html>")
        True
    """
    if not 1 <= len(views) <= MAX_SIDES:
        raise ValueError(f"{len(views)} runs: a page shows 1 or {MAX_SIDES}")
    for view in views:
        analysis.check_animated(view.schedule)
    first_s = min(float(run.timeline.start_s.min(initial=0.0)) for run in views)
    last_s = max(run.timeline.until_s for run in views)
    last_s = last_s if last_s > first_s else first_s + 1.0
    runs = [_run(view, first_s, last_s) for view in views]
    data = {"firstS": first_s, "lastS": last_s, "unit": time_unit(last_s), "runs": runs}
    script = "\n".join(asset(f"animation/{name}") for name in _SCRIPTS)
    slow_parts = dict.fromkeys(analysis.format_slow_parts(run.slow_parts) for run in views)
    return page(
        "animation.j2", _title(views), asset("animation.css"), script, data,
        lines=[*_subtitles(views), note], slow_parts=slow_parts,
    )  # fmt: skip


def _title(views: Sequence[analysis.RunView]) -> str:
    schedule = views[0].schedule
    names = " compared with ".join(dict.fromkeys(run.name.partition(",")[0] for run in views))
    ranks, size = plural(schedule.num_ranks, "rank"), format_size(views[0].size_bytes)
    return f"{schedule.collective.value}, {names}: {ranks}, {size}"


def _subtitles(views: Sequence[analysis.RunView]) -> list[str]:
    goal = analysis.goal_sentence(views[0].schedule)
    networks = ("  ·  ".join(network_facts(run.network.as_dict())) or f"network {run.network.name}" for run in views)
    return [as_sentence(goal), *dict.fromkeys(networks)]


def _run(run: analysis.RunView, first_s: float, last_s: float) -> dict[str, Any]:
    schedule, timeline, graph = run.schedule, run.timeline, run.graph
    received = timeline.dst, timeline.src, timeline.start_s, timeline.applied_s
    held = held_at_start(schedule.collective, schedule.num_ranks, schedule.num_chunks)
    return {
        "name": run.name,
        "time": format_time(timeline.time_s) if math.isfinite(timeline.time_s) else "never finishes",
        "numRanks": schedule.num_ranks,
        "numChunks": schedule.num_chunks,
        "numSteps": schedule.num_steps,
        "reduces": schedule.collective.reduces,
        "colours": contributor_colours(schedule.num_ranks),
        "templates": [*analysis.templates(schedule), analysis.COMPLETE],
        "firstRow": np.searchsorted(timeline.step, np.arange(schedule.num_steps + 1)).tolist(),
        **{name: getattr(timeline, name).astype(int).tolist() for name in ("src", "dst", "chunk", "reduce")},
        "times": _times(run, first_s, last_s),
        "sendRows": [column.tolist() for column in analysis.pack_sends(timeline)],
        "receiveRows": [column.tolist() for column in analysis.pack_rows(*received, schedule.num_ranks)],
        # The contribution that each rank first holds of each chunk, -1 for none.
        "initial": np.where(held, np.arange(schedule.num_ranks)[:, None], -1).ravel().tolist(),
        "phases": [phase._asdict() for phase in run.phases],
        "sentences": run.sentences,
        "stepEnd": _ticks(run.step_end_s, first_s, last_s),
        "shape": graph.shape.value,
        "pairs": graph.pairs.tolist(),
        "hosts": graph.hosts,
        **{name: getattr(graph, name).round(4).tolist() for name in ("places", "bends")},
        **_faults(run, first_s, last_s),
    }


def _ticks(times_s: Seconds, first_s: float, last_s: float) -> list[int | None]:
    """Return integers from 0 to _TICKS; None: never."""
    ticks = (times_s - first_s) / (last_s - first_s) * _TICKS
    return [round(tick) if math.isfinite(tick) else None for tick in ticks.tolist()]


def _times(run: analysis.RunView, first_s: float, last_s: float) -> dict[str, list[int | None]]:
    """Return each transfer's start in ticks, and the differences of its events, which have fewer digits."""
    timeline = run.timeline
    columns = {"left": "sent_s", "arrived": "arrived_s", "apply": "apply_s", "applied": "applied_s"}
    before = _ticks(timeline.start_s, first_s, last_s)
    times = {"start": before}
    for name, column in columns.items():
        after = _ticks(getattr(timeline, column), first_s, last_s)
        pairs = zip(before, after, strict=True)
        times[name] = [None if early is None or late is None else late - early for early, late in pairs]
        before = after
    return times


def _faults(run: analysis.RunView, first_s: float, last_s: float) -> dict[str, Any]:

    def tick(time_s: float | None) -> int | None:
        return None if time_s is None else _ticks(np.array([time_s]), first_s, last_s)[0]

    pairs = [[pair.src, pair.dst, round(pair.slowdown, 2), tick(pair.fails_at_s)] for pair in run.slow_parts.pairs]
    ranks = [[rank.rank, round(rank.slowdown, 2), tick(rank.fails_at_s)] for rank in run.slow_parts.ranks]
    stuck = [[rank.rank, rank.doing, rank.peer] for rank in run.blocked.ranks] if run.blocked else []
    stalled = analysis.format_blocked(run.blocked) if run.blocked else []
    return {"troubledPairs": pairs, "troubledRanks": ranks, "stalled": stalled, "stuck": stuck}
