"""Traces of programs: what a file may hold."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringsim.traces import Group, HeldBytes, ProgramTrace, StepMemory, TracedStep, TraceRequest
from tests.ringsim.traces.made_trace import all_reduce, call, compute, traced, wait

REQUEST = TraceRequest("my train.py", ("--lr", "0.1"), False, 4, 1, 8, 2, "step.trace.json", True, "/home/me")
STEP = TracedStep((compute(0.25), call(0), wait(0)), (all_reduce(64, is_async=True),))
TRACE = replace(traced(STEP), rank=1, request=REQUEST)


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    """All of it; older ones have no memory, and say neither how they were recorded nor which calls come before."""
    peak, end = HeldBytes(1, 2, 3, 4), HeldBytes(5, 6, 7, 8)
    trace = replace(TRACE, memory=StepMemory(peak, end))
    trace.save(tmp_path / "step.trace.json")
    assert ProgramTrace.load(tmp_path / "step.trace.json") == trace
    assert (STEP.compute_s, STEP.size_bytes) == (0.25, 64)
    assert (peak.total, end.total) == (10, 26)
    old = deepcopy(trace.as_dict())
    del old["request"], old["memory"], old["steps"][0]["calls"][0]["after_calls"]
    assert ProgramTrace.from_dict(old) == replace(TRACE, request=None)


@pytest.mark.parametrize(
    ("request_", "command"),
    [
        (REQUEST, "--device cpu --fake --ranks 4 --ranks-per-host 8 --rank 1 --steps 2 'my train.py' --lr 0.1"),
        (
            TraceRequest("trainers", ("--task", "lm"), True, 16, 0, 8, 3, "a.json"),
            "--ranks 16 --ranks-per-host 8 --rank 0 --steps 3 -m trainers --task lm",
        ),
    ],
)
def test_a_request_as_a_command(request_: TraceRequest, command: str) -> None:
    """As a shell takes it."""
    assert request_.command == f"ringsim trace {command}"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("rank",), 4, "rank 4: there are only 4 ranks"),
        (("steps",), [], "steps: must have at least one entry"),
        (("steps", 0, "events", 1, "call"), 1, r"events\[1\].call = 1: must be 0, one of 1 calls in order"),
        (("steps", 0, "events", 0, "call"), 0, r"events\[0\].call = 0: must be -1, as it is a computation"),
        (("steps", 0, "events", 2, "call"), 1, r"events\[2\].call = 1: must be one of the 1 calls made before"),
        (("steps", 0, "events", 2, "kind"), "call", r"events\[2\].call = 0: must be 1, one of 1 calls in order"),
        (("steps", 0, "events"), [], "events: 0 of 1 calls are made"),
        (("steps", 0, "calls", 0, "after"), 1, r"calls\[0\].after = 1: must be an event before 1, where it is made"),
        (("steps", 0, "calls", 0, "after_calls"), [0], "after_calls: 0 must be one of the 0 calls made before"),
        (("groups", 0, "ranks"), [0, 4], r"groups\[0\].ranks: must be some of 4 ranks, none of them twice"),
        (("groups", 0, "ranks"), [0, 0], r"groups\[0\].ranks: must be some of 4 ranks, none of them twice"),
        (("steps", 0, "events", 0, "seconds"), -1.0, r"steps\[0\].events\[0\].seconds = -1.0: must"),
        (("steps", 0, "events", 0, "kind"), "sleep", r"steps\[0\].events\[0\].kind = \"sleep\": must be one of"),
        (("steps", 0, "calls", 0, "group"), 1, r"steps\[0\].calls\[0\].group = 1: must be one of 1 groups"),
        (("steps", 0, "calls", 0, "peer"), 4, r"steps\[0\].calls\[0\].peer = 4: its group has only 4 ranks"),
        (("steps", 0, "calls", 0, "bytes"), 4, r"steps\[0\].calls\[0\].bytes: unknown key"),
        (("request", "rank"), 2, "request: asks for rank 2 of 4, but the trace is of rank 1 of 4"),
        (("request", "arguments"), [4], r"request.arguments\[0\] = 4: must be text of one line"),
        (("memory",), {"peak": {"parameters": -1, "gradients": 0, "optimizer": 0, "rest": 0}, "end": {}},
         r"memory\.peak\.parameters = -1: must be a whole number, at least 0"),
        (("format",), "ringsim-sweep", "not a ringsim-program-trace file; `ringsim trace` writes one"),
    ],
)  # fmt: skip
def test_what_no_trace_can_be_is_refused(place: tuple[Any, ...], value: object, message: str) -> None:
    """With place, value and rule; so is a request of a rank that there is not."""
    with pytest.raises(ValueError, match="rank 4: must be less than the 4 ranks"):
        TraceRequest("train.py", (), False, 4, 4, 2, 3, "step.trace.json")
    data = deepcopy(TRACE.as_dict())
    holder: Any = data
    for name in place[:-1]:
        holder = holder[name]
    holder[place[-1]] = value
    with pytest.raises(ValueError, match=message):
        ProgramTrace.from_dict(data)


def test_the_name_of_a_group() -> None:
    """Which tells groups of one size apart."""
    names = {(3,): "rank 3", (4, 5): "ranks 4 to 5", (1, 9, 17): "ranks 1 to 17 by 8", (0, 1, 3): "3 ranks",
             (1, 0): "2 ranks"}  # fmt: skip
    assert {ranks: Group(ranks, "gloo").name for ranks in names} == names
