"""`write_step_trace`: a simulated training step as a trace file for Perfetto, a thread for each stream."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from ringsim.files import atomic_file
from ringsim.report.trace import event_lines, named_events
from ringsim.traces import ProgramTrace
from ringsim.training_step import StepTimeline

_PROCESS = 1
_COMPUTING = 0  # the number of that thread; after it come those of the groups


def write_step_trace(path: Path, timeline: StepTimeline, trace: ProgramTrace) -> None:
    """Write the computations, what they wait for, and the calls of each group; whole or not at all.

    Calls of one group that are under way at once overlap in its thread. Raises OSError if it cannot be written.
    """
    lines = chain(_names(trace), _computations(timeline), _calls(timeline))
    num_events = len(timeline.computations) + len(timeline.waits) + len(timeline.calls)
    with atomic_file(path) as file:
        file.writelines(event_lines(num_events, lines, str(path)))


def _names(trace: ProgramTrace) -> Iterator[str]:
    yield from named_events("process", _PROCESS, 0, f"rank {trace.rank} of {trace.num_ranks}", 0)
    yield from named_events("thread", _PROCESS, _COMPUTING, "compute", 0)
    for number, group in enumerate(trace.groups, 1):
        yield from named_events("thread", _PROCESS, number, group.name, number)


def _computations(timeline: StepTimeline) -> Iterator[str]:
    for event, begin_s, end_s in timeline.computations:
        operators = {operator.name: operator.count for operator in timeline.step.events[event].operators}
        yield _slice("compute", _COMPUTING, begin_s, end_s, operators)
    for call, begin_s, end_s in timeline.waits:
        yield _slice(f"wait for {timeline.step.calls[call].collective} {call}", _COMPUTING, begin_s, end_s, {})


def _calls(timeline: StepTimeline) -> Iterator[str]:
    for number, (call, span) in enumerate(zip(timeline.step.calls, timeline.calls, strict=True)):
        arguments = {"size_bytes": call.size_bytes, "dtype": call.dtype, "algorithm": span.algorithm}
        yield _slice(f"{call.collective} {number}", call.group + 1, span.begin_s, span.end_s, arguments)


def _slice(name: str, thread: int, begin_s: float, end_s: float, arguments: dict[str, object] | dict[str, int]) -> str:
    times = {"ts": round(begin_s * 1e6, 3), "dur": round((end_s - begin_s) * 1e6, 3)}
    return json.dumps({"ph": "X", "name": name, "pid": _PROCESS, "tid": thread, **times, "args": arguments})
