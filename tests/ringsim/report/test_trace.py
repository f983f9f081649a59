"""Tests of `ringsim.report.trace`."""

import json
import math
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
    """Two slices for each transfer; in a thread each ends before the next begins, or the viewers would drop it."""
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


@given(schedules(), st.integers(1000, 10**5))
def test_an_arrow_leads_from_each_sending_to_its_application(schedule: Schedule, size: int) -> None:
    """It begins in the slice of the one and ends where that of the other begins."""
    timeline = simulate(schedule, Network(1e-5, 1e9, 4e9, 1e-6, 2e-6), size)
    events = events_of(("run", timeline))
    assert len(events["s"]) == len(events["f"]) == len(timeline)
    begins = {event["id"]: event for event in events["s"]}
    slices = {(event["pid"], event["tid"], event["ts"]) for event in events["X"]}
    for event in events["f"]:
        row, begin = event["id"], begins[event["id"]]
        assert (begin["pid"], event["pid"]) == (timeline.src[row] + 1, timeline.dst[row] + 1)
        assert begin["ts"] <= event["ts"]
        assert {(each["pid"], each["tid"], each["ts"]) for each in (begin, event)} <= slices


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
    """A predicted and a measured run: no process, thread or arrow belongs to both."""
    timeline = simulate(build(Collective.ALL_REDUCE, "ring", 3), Network(1e-6, 1e9), 3000)
    events = events_of(("predicted", timeline), ("measured", timeline))
    names = {e["pid"]: e["args"]["name"] for e in events["M"] if e["name"] == "process_name"}
    assert names == {rank + 1: f"predicted rank {rank}" for rank in range(3)} | {
        rank + 4: f"measured rank {rank}" for rank in range(3)
    }
    assert len({event["id"] for event in events["s"]}) == len(events["s"]) == 24


def test_what_is_sent_at_once_lies_in_several_threads() -> None:
    """Each of 4 ranks sends to 3 others at once."""
    timeline = simulate(build(Collective.ALL_REDUCE, "direct", 4), Network(1e-6, 1e9), 3000)
    threads = [e["args"]["name"] for e in events_of(("run", timeline))["M"] if e["name"] == "thread_name"]
    assert threads == ["apply", "send 1", "send 2", "send 3"] * 4


def test_what_never_happens_is_left_out() -> None:
    """Nothing leaves rank 0: four of six are sent and applied; in order, only those rank 0 does not come before."""
    failing = '[host]\nranks = 1\n[host.nic]\nbandwidth = "1GB/s"\n[[failure]]\nlink = "host0.nic0.out"\n'
    timeline = simulate(build(Collective.ALL_GATHER, "direct", 3), read_network(failing, "test.toml"), 3000)
    assert sum(map(math.isfinite, timeline.applied_s)) == 4
    timeline = simulate(
        build(Collective.ALL_GATHER, "direct", 3), read_network(failing, "test.toml"), 3000, runtime=IN_ORDER
    )
    events = events_of(("run", timeline))
    assert sorted(e["pid"] for e in events["X"] if e["name"].startswith("send")) == [2, 2, 3, 3]
    assert [e["pid"] for e in events["X"] if e["name"].startswith("copy")] == [1, 1]
    assert len(events["s"]) == len(events["f"]) == 2


def test_what_hangs_has_a_thread_of_its_own(tmp_path: Path) -> None:
    """Of each rank that never finishes: what it does or waits for, from its last activity to beyond the run's end."""
    failing = '[host]\nranks = 1\n[host.nic]\nbandwidth = "1GB/s"\n[[failure]]\nlink = "host0.nic0.out"\n'
    network = read_network(failing, "test.toml")
    explanation = explain(build(Collective.ALL_GATHER, "direct", 3), network, 3000)
    assert explanation.stall is not None
    finished = simulate(build(Collective.ALL_GATHER, "direct", 3), Network(1e-6, 1e9), 3000)
    runs = [("fine", finished), ("hangs", explanation.timeline)]
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
