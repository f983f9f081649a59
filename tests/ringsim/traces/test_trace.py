"""Traces of programs: what a file may hold."""

from copy import deepcopy
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from ringsim.traces import Group, HeldBytes, ProgramTrace, StepMemory, TracedStep, TraceRequest
from tests.refusals import said_by
from tests.ringsim.traces.made_trace import all_reduce, call, compute, traced, wait

REQUEST = TraceRequest("my train.py", ("--lr", "0.1"), False, 4, 1, 8, 2, "step.trace.json", True, "/home/me")
STEP = TracedStep((compute(0.25), call(0), wait(0)), (all_reduce(64, is_async=True),))
TRACE = replace(traced(STEP), rank=1, request=REQUEST)


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    """All of it; older ones have no memory, and say neither how they were recorded nor which calls come before."""
    peak, end = HeldBytes(1, 2, 3, 4), HeldBytes(5, 6, 7, 8)
    trace = replace(TRACE, memory=StepMemory(peak, end, 9))
    trace.save(tmp_path / "step.trace.json")
    assert ProgramTrace.load(tmp_path / "step.trace.json") == trace
    assert (STEP.compute_s, STEP.size_bytes) == (0.25, 64)
    assert (peak.total, end.total) == (10, 26)
    old = deepcopy(trace.as_dict())
    del old["request"], old["memory"], old["steps"][0]["calls"][0]["after_calls"]
    assert ProgramTrace.from_dict(old) == replace(TRACE, request=None)


def test_a_request_as_a_command() -> None:
    """As a shell takes it."""
    of_module = TraceRequest("trainers", ("--task", "lm"), True, 16, 0, 8, 3, "a.json")
    assert [request.command.removeprefix("ringsim trace ") for request in (REQUEST, of_module)] == [
        "--device cpu --fake --ranks 4 --ranks-per-host 8 --rank 1 --steps 2 'my train.py' --lr 0.1",
        "--ranks 16 --ranks-per-host 8 --rank 0 --steps 3 -m trainers --task lm",
    ]


MISTAKES: list[tuple[str, Any]] = [
    ("rank", 4), ("steps", []), ("format", "ringsim-sweep"), ("request.rank", 2), ("request.arguments", [4]),
    ("groups.0.ranks", [0, 4]), ("groups.0.ranks", [0, 0]), ("steps.0.events", []), ("steps.0.events.1.call", 1),
    ("steps.0.events.0.call", 0), ("steps.0.events.2.call", 1), ("steps.0.events.2.kind", "call"),
    ("steps.0.events.0.seconds", -1.0), ("steps.0.events.0.kind", "sleep"), ("steps.0.calls.0.after", 1),
    ("steps.0.calls.0.after_calls", [0]), ("steps.0.calls.0.group", 1), ("steps.0.calls.0.peer", 4),
    ("steps.0.calls.0.bytes", 4),
    ("memory", {"peak": {"parameters": -1, "gradients": 0, "optimizer": 0, "rest": 0}, "end": {}}),
]  # fmt: skip


def test_what_no_trace_can_be_is_refused(snapshot: SnapshotAssertion) -> None:
    """With place, value and rule."""
    told = []
    for place, value in MISTAKES:
        data = deepcopy(TRACE.as_dict())
        *outer, last = (int(name) if name.isdigit() else name for name in place.split("."))
        reduce(getitem, outer, data)[last] = value
        told.append(f"{place}: {said_by(ValueError, ProgramTrace.from_dict, data)}")
    assert told == snapshot


def test_the_name_of_a_group() -> None:
    """Which tells groups of one size apart."""
    names = {"rank 3": (3,), "ranks 4 to 5": (4, 5), "ranks 1 to 17 by 8": (1, 9, 17), "3 ranks": (0, 1, 3)}
    assert [Group(ranks, "gloo").name for ranks in (*names.values(), (1, 0))] == [*names, "2 ranks"]
