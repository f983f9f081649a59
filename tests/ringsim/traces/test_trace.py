"""Traces of programs: what a file may hold."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from ringsim.traces import Call, Group, ProgramTrace, TracedStep, TraceEvent, TraceEventKind, TraceRequest

STEP = TracedStep(
    (
        TraceEvent(TraceEventKind.COMPUTE, 0.25),
        TraceEvent(TraceEventKind.CALL, call=0),
        TraceEvent(TraceEventKind.WAIT, call=0),
    ),
    (Call("all_reduce", 64, "float32", 0, is_async=True),),
)
TRACE = ProgramTrace(4, 1, 2, (Group((0, 1, 2, 3), "gloo"),), (STEP,), {"program": ["train.py"]})


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    """All of it."""
    TRACE.save(tmp_path / "step.trace.json")
    assert ProgramTrace.load(tmp_path / "step.trace.json") == TRACE
    assert (STEP.compute_s, STEP.size_bytes) == (0.25, 64)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("rank",), 4, "rank 4: there are only 4 ranks"),
        (("steps",), [], "steps: must have at least one entry"),
        (("steps", 0, "events", 1, "call"), 1, r"events\[1\].call = 1: must be one of 1 calls"),
        (("steps", 0, "events", 0, "call"), 0, r"events\[0\].call = 0: must be one of 1 calls"),
        (("steps", 0, "events", 0, "seconds"), -1.0, r"steps\[0\].events\[0\].seconds = -1.0: must"),
        (("steps", 0, "events", 0, "kind"), "sleep", r"steps\[0\].events\[0\].kind = \"sleep\": must be one of"),
        (("steps", 0, "calls", 0, "group"), 1, r"steps\[0\].calls\[0\].group = 1: must be one of 1 groups"),
        (("steps", 0, "calls", 0, "peer"), 4, r"steps\[0\].calls\[0\].peer = 4: its group has only 4 ranks"),
        (("steps", 0, "calls", 0, "bytes"), 4, r"steps\[0\].calls\[0\].bytes: unknown key"),
        (("format",), "ringsim-sweep", "not a ringsim-program-trace file; `ringsim trace` writes one"),
    ],
)
def test_what_no_trace_can_be_is_refused(place: tuple[Any, ...], value: object, message: str) -> None:
    """With place, value and rule."""
    data = deepcopy(TRACE.as_dict())
    holder: Any = data
    for name in place[:-1]:
        holder = holder[name]
    holder[place[-1]] = value
    with pytest.raises(ValueError, match=message):
        ProgramTrace.from_dict(data)


def test_a_request_is_of_a_rank_that_there_is() -> None:
    """Of ranks 0 to 3 here."""
    with pytest.raises(ValueError, match="rank 4: must be less than the 4 ranks"):
        TraceRequest("train.py", (), False, 4, 4, 2, 3, "step.trace.json")
