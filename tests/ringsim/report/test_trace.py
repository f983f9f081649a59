"""Tests of `ringsim.report.trace`."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim import Collective, Network, Schedule, Timeline, explain
from ringsim.network import AnyNetwork
from ringsim.network.file_reader import read_network
from ringsim.registry import build
from ringsim.report.trace import MAX_TRANSFERS, write_trace
from ringsim.simulation import IN_ORDER, simulate
from tests.ringsim.analysis.test_usage import NETWORKS
from tests.ringsim.strategies import schedules


def events_of(*runs: tuple[str, Timeline]) -> dict[str, list[dict[str, Any]]]:
    """Return the written events by phase; read again without allowing anything that JSON does not have."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write_trace(path, runs)
        assert [each.name for each in Path(folder).iterdir()] == ["trace.json"]
        trace = json.loads(path.read_text(), parse_constant=pytest.fail)
    events = defaultdict(list)
    for event in trace["traceEvents"]:
        events[event["ph"]].append(event)
    return events


def nanoseconds(microseconds: float) -> int:
    """A time as written, to compare without rounding."""
    return round(microseconds * 1000)


@given(schedules(), NETWORKS, st.integers(0, 10**5))
def test_slices_of_a_thread_do_not_overlap(schedule: Schedule, network: AnyNetwork, size: int) -> None:
    """Two slices for each transfer, and none over another, which the viewers would drop; arrows lead between them."""
    timeline = simulate(schedule, network, size)
    events = events_of(("run", timeline))
    assert len(events["X"]) == 2 * len(timeline)
    threads = defaultdict(list)
    for event in events["X"]:
        begin = nanoseconds(event["ts"])
        threads[event["pid"], event["tid"]].append((begin, begin + nanoseconds(event["dur"])))
    for slices in threads.values():
        assert all(end <= begin for (_, end), (begin, _) in pairwise(slices))
    named = {(event["pid"], event["tid"]) for event in events["M"] if event["name"] == "thread_name"}
    assert set(threads) <= named
    slices = {(event["pid"], event["tid"], event["ts"]) for event in events["X"]}
    begins = {event["id"]: event for event in events["s"]}
    assert len(events["f"]) == len(begins) == sum(e["dur"] > 0 for e in events["X"] if e["name"].startswith("send"))
    for event in events["f"]:
        row, begin = event["id"], begins[event["id"]]
        assert (begin["pid"], event["pid"]) == (timeline.src[row] + 1, timeline.dst[row] + 1)
        assert begin["ts"] <= event["ts"]
        assert {(end["pid"], end["tid"], end["ts"]) for end in (begin, event)} <= slices


def test_times_and_names() -> None:
    """Microseconds; who sends what to whom, and what becomes of it."""
    schedule = build(Collective.REDUCE_SCATTER, "ring", 2)
    events = events_of(("simulated", simulate(schedule, Network(1e-6, 1e9, 1e9, receive_overhead_s=5e-7), 3000)))
    sends = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in events["X"] if e["tid"] == 1]
    assert sends == [(1, "send chunk 1 to rank 1", 0.0, 1.5), (2, "send chunk 0 to rank 0", 0.0, 1.5)]
    applies = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in events["X"] if e["tid"] == 0]
    assert applies == [(2, "reduce chunk 1 from rank 0", 2.5, 2.0), (1, "reduce chunk 0 from rank 1", 2.5, 2.0)]
    assert events["X"][0]["args"] == {"step": 0, "chunk": 1, "src": 0, "dst": 1}
    names = [e["args"]["name"] for e in events["M"] if e["name"] == "process_name"]
    assert names == ["simulated rank 0", "simulated rank 1"]


def test_runs_stand_side_by_side() -> None:
    """No process or arrow belongs to two of them, and what a rank sends at once lies in several threads."""
    timeline = simulate(build(Collective.ALL_REDUCE, "direct", 3), Network(1e-6, 1e9), 3000)
    events = events_of(("one", timeline), ("other", timeline))
    named = [(e["pid"], e["args"]["name"]) for e in events["M"] if e["name"] == "process_name"]
    assert named == [(1 + 3 * run + rank, f"{name} rank {rank}") for run, name in enumerate(("one", "other"))
                     for rank in range(3)]  # fmt: skip
    assert len({event["id"] for event in events["s"]}) == len(events["s"]) == 2 * len(timeline)
    assert [e["args"]["name"] for e in events["M"] if e["name"] == "thread_name"] == ["apply", "send 1", "send 2"] * 6


def test_a_run_that_never_finishes(tmp_path: Path) -> None:
    """What never happens is left out; each rank that hangs says in a thread what it does or waits for, to the end."""
    failing = '[host]\nranks = 1\n[host.nic]\nbandwidth = "1GB/s"\n[[failure]]\nlink = "host0.nic0.out"\n'
    network, schedule = read_network(failing, "test.toml"), build(Collective.ALL_GATHER, "direct", 3)
    in_order = events_of(("run", simulate(schedule, network, 3000, runtime=IN_ORDER)))
    assert sorted(e["pid"] for e in in_order["X"] if e["name"].startswith("send")) == [2, 2, 3, 3]
    assert [e["pid"] for e in in_order["X"] if e["name"].startswith("copy")] == [1, 1]
    assert len(in_order["s"]) == len(in_order["f"]) == 2
    explanation = explain(schedule, network, 3000)
    assert explanation.stall is not None
    runs = [("fine", simulate(schedule, Network(1e-6, 1e9), 3000)), ("hangs", explanation.timeline)]
    write_trace(tmp_path / "trace.json", runs, [None, explanation.stall])
    events = json.loads((tmp_path / "trace.json").read_text(), parse_constant=pytest.fail)["traceEvents"]
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and e["args"]["name"] == "hangs"}
    slices = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) in threads]
    assert [(e["pid"], e["name"]) for e in slices] == [
        (4, "sends to rank 1 without end: chunk 0, step 0"),
        (5, "waits for rank 0: chunk 0, step 0"),
        (6, "waits for rank 0: chunk 0, step 0"),
    ]
    until_us = explanation.stall.until_s * 1e6
    assert all(e["dur"] > 0 and e["ts"] + e["dur"] > until_us for e in slices)
    assert slices[0]["args"] == {"step": 0, "src": 0, "dst": 1, "chunk": 0, "failed": ["host0.nic0.out"]}
    others = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X" and e not in slices}
    assert not others & threads


def test_too_many_and_nowhere(tmp_path: Path) -> None:
    """One line, and no file is left behind."""
    path = tmp_path / "trace.json"
    many = Timeline.empty(2, 1, MAX_TRANSFERS)
    with pytest.raises(ValueError, match="trace.json: a trace holds at most 500,000 transfers; these are 500,001"):
        write_trace(path, [("many", many), ("one more", Timeline.empty(2, 1, 1))])
    with pytest.raises(OSError, match="missing"):
        write_trace(tmp_path / "missing" / "trace.json", [])
    assert not list(tmp_path.iterdir())
    write_trace(path, [])
    assert json.loads(path.read_text()) == {"displayTimeUnit": "ns", "traceEvents": []}
