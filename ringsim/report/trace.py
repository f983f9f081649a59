"""`write_trace`: timelines as a trace file for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

Each rank is a process. One thread of it shows the chunks that the rank applies; another one shows its sends, or several
where sends overlap, since the slices of one thread must not. An arrow leads from each send to the application of its
chunk. In a run that never finishes, each rank that hangs has a thread that names the operation it hangs in, or waits
for.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ringsim.analysis import Stall, hanging_text
from ringsim.calibration import ComparedRun
from ringsim.files import atomic_file
from ringsim.schedule import Bools, Ints
from ringsim.simulation import Seconds, Timeline
from ringsim.traces import ProgramTrace
from ringsim.training_step import StepTimeline

MAX_TRANSFERS = 500_000  # of all runs; at four events each, more than a browser likes to hold
_LINES_AT_ONCE = 10_000
_APPLIES = 0  # the number of that thread; those that send come after it, and then what hangs
_STOPPED, _AT_LEAST_US = 0.05, 1.0  # of the time of the run, and beside it: how far beyond its end that is drawn


def write_trace(
    path: str | os.PathLike[str], runs: Sequence[tuple[str, Timeline]], stalls: Sequence[Stall | None] = ()
) -> None:
    """Write runs with their names, one below the other; transfers that never happen are left out.

    stalls: for each run what hangs in it, as `explain` finds it, None if it finishes; nothing: all finish.

    Times are rounded to nanoseconds, finer than which the viewers do not go. The file appears complete or not at all.

    Raises OSError if it cannot be written, ValueError for more than MAX_TRANSFERS transfers.

        >>> from ringsim import Network, ring_all_reduce, simulate, write_trace
        >>> timeline = simulate(ring_all_reduce(4), Network(1e-5, 1e9), 2**20)
        >>> write_trace("ring.json", [("simulated", timeline)])  # for ui.perfetto.dev
    """
    with atomic_file(Path(path)) as file:
        file.writelines(trace_lines(runs, str(path), stalls))


def trace_lines(
    runs: Sequence[tuple[str, Timeline]], name: str, stalls: Sequence[Stall | None] | None = None
) -> Iterator[bytes]:
    """Yield what `write_trace` writes; `name` is the file's, for messages."""
    yield from event_lines(
        sum(len(timeline) for _, timeline in runs), _all_lines(runs, stalls or [None] * len(runs)), name
    )


def event_lines(num_transfers: int, lines: Iterator[str], name: str) -> Iterator[bytes]:
    """Yield a trace file whose events are `lines`, which describe `num_transfers` transfers.

    Raises ValueError, which names the file, for more than MAX_TRANSFERS transfers.
    """
    if num_transfers > MAX_TRANSFERS:
        raise ValueError(f"{name}: a trace holds at most {MAX_TRANSFERS:,} transfers; these are {num_transfers:,}")
    yield b'{"displayTimeUnit": "ns", "traceEvents": ['
    separator = "\n"
    while batch := list(islice(lines, _LINES_AT_ONCE)):
        yield (separator + ",\n".join(batch)).encode()
        separator = ",\n"
    yield b"\n]}\n"


def _all_lines(runs: Sequence[tuple[str, Timeline]], stalls: Sequence[Stall | None]) -> Iterator[str]:
    """Yield an event a line. Processes and arrows are numbered through all runs."""
    first_pid, first_arrow = 1, 0
    for (name, timeline), stall in zip(runs, stalls, strict=True):
        row, num_rows = pack_sends(timeline)
        sends = _sends(timeline, (_APPLIES + 1 + row).tolist(), first_pid, first_arrow)
        yield from chain(_names(name, first_pid, num_rows.tolist()), sends, _applies(timeline, first_pid, first_arrow))
        if stall:
            yield from _hanging(stall, num_rows.tolist(), first_pid)
        first_pid += timeline.num_ranks
        first_arrow += len(timeline)


def _names(name: str, first_pid: int, num_rows: Sequence[int]) -> Iterator[str]:
    """Of the processes and their threads; they also say in which order these are shown."""
    for rank, count in enumerate(num_rows):
        pid = first_pid + rank
        yield from named_events("process", pid, 0, f"{name} rank {rank}", pid)
        yield from named_events("thread", pid, _APPLIES, "apply", count + 1)
        for tid in range(1, count + 1):
            yield from named_events("thread", pid, tid, "send" if count == 1 else f"send {tid}", tid)


def _hanging(stall: Stall, num_rows: Sequence[int], first_pid: int) -> Iterator[str]:
    """Yield a slice for each rank that hangs, from its last activity to beyond the last that ends in the run."""
    end_us = _microseconds(stall.until_s * (1 + _STOPPED)) + _AT_LEAST_US
    for stalled in stall.ranks:
        pid, tid = first_pid + stalled.rank, num_rows[stalled.rank] + 1
        yield from named_events("thread", pid, tid, "hangs", tid + 1)
        begin_us = _microseconds(stalled.last_active_s)
        args = {**asdict(stalled.transfer), "failed": list(stalled.failed)}
        event = {"ph": "X", "name": hanging_text(stalled, first_step=0), "pid": pid, "tid": tid, "ts": begin_us}
        yield json.dumps({**event, "dur": round(end_us - begin_us, 3), "args": args})


def named_events(kind: str, pid: int, tid: int, name: str, place: int) -> Iterator[str]:
    """Yield the events that give a process or a thread its name, and its place among the others."""
    for event, args in ((f"{kind}_name", {"name": name}), (f"{kind}_sort_index", {"sort_index": place})):
        yield json.dumps({"ph": "M", "name": event, "pid": pid, "tid": tid, "args": args})


def _sends(timeline: Timeline, tid: Sequence[int], first_pid: int, first_arrow: int) -> Iterator[str]:
    has_arrow = _arrows(timeline).tolist()
    for activity in slices(timeline, timeline.start_s, timeline.sent_s, (timeline.src + first_pid).tolist(), tid):
        yield activity.line(f"send chunk {activity.chunk} to rank {activity.dst}")
        if has_arrow[activity.row]:
            yield activity.arrow("s", first_arrow)  # after the slice, and so tied to it


def _applies(timeline: Timeline, first_pid: int, first_arrow: int) -> Iterator[str]:
    has_arrow, reduce = _arrows(timeline).tolist(), timeline.reduce.tolist()
    pid, tid = (timeline.dst + first_pid).tolist(), [_APPLIES] * len(timeline)
    for activity in slices(timeline, timeline.apply_s, timeline.applied_s, pid, tid):
        if has_arrow[activity.row]:
            yield activity.arrow("f", first_arrow)  # before the slice: the end of an arrow is tied to what begins next
        yield activity.line(
            f"{'reduce' if reduce[activity.row] else 'copy'} chunk {activity.chunk} from rank {activity.src}"
        )


def _arrows(timeline: Timeline) -> Bools:
    """Which transfers get one: those that are applied, and whose sending is long enough to be seen."""
    long_enough: Bools = _nanoseconds(timeline.sent_s) > _nanoseconds(timeline.start_s)
    return long_enough & np.isfinite(timeline.applied_s)


class Slice(NamedTuple):
    """An activity of a rank, its times in nanoseconds."""

    row: int
    step: int
    src: int
    dst: int
    chunk: int
    pid: int
    tid: int
    begin: int
    end: int

    def line(self, name: str) -> str:
        """Return the activity as an event."""
        return (
            f'{{"ph": "X", "name": "{name}", "pid": {self.pid}, "tid": {self.tid}, "ts": {_us(self.begin)}, '
            f'"dur": {_us(self.end - self.begin)}, "args": {{"step": {self.step}, "chunk": {self.chunk}, '
            f'"src": {self.src}, "dst": {self.dst}}}}}'
        )

    def arrow(self, phase: str, first_arrow: int) -> str:
        """Return the event of one end of the transfer's arrow."""
        return (
            f'{{"ph": "{phase}", "cat": "transfer", "name": "transfer", "id": {first_arrow + self.row}, '
            f'"pid": {self.pid}, "tid": {self.tid}, "ts": {_us(self.begin)}}}'
        )


def slices(
    timeline: Timeline, begin_s: Seconds, end_s: Seconds, pid: Sequence[int], tid: Sequence[int]
) -> Iterator[Slice]:
    """Yield an activity for each transfer that has ended, in the order of time, with its process and thread."""
    begin, end = _nanoseconds(begin_s), _nanoseconds(end_s)
    order = np.lexsort((end_s, begin_s))
    names = [column.tolist() for column in (timeline.step, timeline.src, timeline.dst, timeline.chunk)]
    busy_until: dict[tuple[int, int], int] = {}
    for row in order[np.isfinite(end_s[order])].tolist():
        thread = pid[row], tid[row]
        # Rows are packed with an allowance for rounding, which the viewers do not make: they drop what overlaps.
        begins = max(int(begin[row]), busy_until.get(thread, 0))
        busy_until[thread] = ends = max(int(end[row]), begins)
        step, src, dst, chunk = (column[row] for column in names)
        yield Slice(row, step, src, dst, chunk, *thread, begins, ends)


def _nanoseconds(times: Seconds) -> Seconds:
    return np.rint(times * 1e9)


def _microseconds(time_s: float) -> float:
    return round(time_s * 1e6, 3)


def _us(nanoseconds: int) -> str:
    """Microseconds as a decimal number, exactly."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


_ROUNDING = 1e-9  # of the whole time: what begins that little before the other's end begins with it


def pack_sends(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return a row for each transfer, (num_transfers,), in the fewest without overlaps, and their number by sender.

    Where there is a choice, a sending stays in the row of the last one to the same receiver.
    """
    rounding = _ROUNDING * timeline.until_s
    rows = np.zeros(len(timeline), dtype=np.int64)
    busy_until: list[list[float]] = [[] for _ in range(timeline.num_ranks)]
    receiver: list[list[int]] = [[] for _ in range(timeline.num_ranks)]
    columns = (timeline.src, timeline.dst, timeline.start_s, timeline.sent_s)
    sends = list(zip(*(column.tolist() for column in columns), strict=True))
    # By their beginning: then any free row will do, and a new one is needed only where all are in use.
    for index in np.argsort(timeline.start_s, kind="stable").tolist():
        src, dst, start, left = sends[index]
        row = _free_row(busy_until[src], receiver[src], start + rounding, dst)
        if row == len(busy_until[src]):
            busy_until[src].append(left)
            receiver[src].append(dst)
        busy_until[src][row], receiver[src][row] = left, dst
        rows[index] = row
    return rows, np.array([max(len(some), 1) for some in busy_until], dtype=np.int64)


def _free_row(busy_until: list[float], receiver: list[int], start: float, dst: int) -> int:
    free = [row for row, until in enumerate(busy_until) if until <= start]
    return next((row for row in free if receiver[row] == dst), free[0] if free else len(busy_until))


def write_run_trace(path: str | os.PathLike[str], runs: Sequence[ComparedRun]) -> None:
    """Write all runs, each predicted and below it measured, on the same axis of time.

    A process stands for each side, in it a thread for each rank; where a rank has several transfers under way it has
    several, as slices of one thread must not overlap. A slice is a transfer, in the thread of its sender, from when it
    was issued to when it was applied. The viewers choose colours by names, so the same transfer has the same name on
    both sides.

    The file appears complete or not at all. Raises OSError if it cannot be written, ValueError for too many transfers.
    """
    sides = chain.from_iterable(_sides(run) for run in runs)
    lines = chain.from_iterable(_process(pid, name, side) for pid, (name, side) in enumerate(sides, 1))
    with atomic_file(Path(path)) as file:
        file.writelines(event_lines(sum(2 * len(run.measured) for run in runs), lines, str(path)))


def _sides(compared: ComparedRun) -> Iterator[tuple[str, Timeline]]:
    """With their names; times from when the first rank began, since the viewers know none below 0."""
    run = compared.run
    first = min(run.begin_s)
    for side, timeline in (("predicted", compared.predicted), ("measured", compared.measured)):
        start, applied = timeline.start_s - first, timeline.applied_s - first
        under_way = replace(timeline, start_s=start, sent_s=applied, applied_s=applied)
        yield f"{run.collective.value} {run.algorithm} {side} over {run.transport}", under_way


def _process(pid: int, name: str, timeline: Timeline) -> Iterator[str]:
    row, num_rows = pack_sends(timeline)
    first_tid = np.cumsum(num_rows) - num_rows
    yield from named_events("process", pid, 0, name, pid)
    for rank, count in enumerate(num_rows.tolist()):
        for beside in range(count):
            tid = int(first_tid[rank]) + beside
            yield from named_events("thread", pid, tid, f"rank {rank}" + (f", {beside + 1}" if beside else ""), tid)
    reduce, tids = timeline.reduce.tolist(), (first_tid[timeline.src] + row).tolist()
    for activity in slices(timeline, timeline.start_s, timeline.applied_s, [pid] * len(timeline), tids):
        does = "reduce" if reduce[activity.row] else "copy"
        yield activity.line(
            f"{does} chunk {activity.chunk}, rank {activity.src} to rank {activity.dst}, step {activity.step}"
        )


_STEP_PROCESS = 1
_COMPUTING = 0  # the number of that thread; after it come those of the groups


def write_step_trace(path: Path, timeline: StepTimeline, trace: ProgramTrace) -> None:
    """Write the computations, what they wait for, and the calls of each group; whole or not at all.

    Calls of one group that are under way at once overlap in its thread.

    Raises ValueError for a step that never ends, OSError if it cannot be written.
    """
    timeline.require_end()
    lines = chain(_names_of_step(trace), _computations(timeline), _calls_of_step(timeline))
    num_events = len(timeline.computations) + len(timeline.waits) + len(timeline.calls)
    with atomic_file(path) as file:
        file.writelines(event_lines(num_events, lines, str(path)))


def _names_of_step(trace: ProgramTrace) -> Iterator[str]:
    yield from named_events("process", _STEP_PROCESS, 0, f"rank {trace.rank} of {trace.num_ranks}", 0)
    yield from named_events("thread", _STEP_PROCESS, _COMPUTING, "compute", 0)
    for number, group in enumerate(trace.groups, 1):
        yield from named_events("thread", _STEP_PROCESS, number, group.name, number)


def _computations(timeline: StepTimeline) -> Iterator[str]:
    for event, begin_s, end_s in timeline.computations:
        operators = {operator.name: operator.count for operator in timeline.step.events[event].operators}
        yield _slice("compute", _COMPUTING, begin_s, end_s, operators)
    for call, begin_s, end_s in timeline.waits:
        yield _slice(f"wait for {timeline.step.calls[call].collective} {call}", _COMPUTING, begin_s, end_s, {})


def _calls_of_step(timeline: StepTimeline) -> Iterator[str]:
    for number, (call, span) in enumerate(zip(timeline.step.calls, timeline.calls, strict=True)):
        arguments = {"size_bytes": call.size_bytes, "dtype": call.dtype, "algorithm": span.algorithm}
        yield _slice(f"{call.collective} {number}", call.group + 1, span.begin_s, span.end_s, arguments)


def _slice(name: str, thread: int, begin_s: float, end_s: float, arguments: dict[str, object] | dict[str, int]) -> str:
    times = {"ts": round(begin_s * 1e6, 3), "dur": round((end_s - begin_s) * 1e6, 3)}
    return json.dumps({"ph": "X", "name": name, "pid": _STEP_PROCESS, "tid": thread, **times, "args": arguments})
