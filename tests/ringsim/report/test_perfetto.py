"""Tests of `ringsim.report.perfetto`."""

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from ringsim import Collective, Network, Schedule, Timeline, explain
from ringsim.analysis import BlockedRun
from ringsim.network import read_network
from ringsim.registry import build
from ringsim.report.perfetto import MAX_TRANSFERS, write_trace
from ringsim.simulation import IN_ORDER, simulate
from tests.ringsim.analysis.test_usage import NETWORKS
from tests.ringsim.strategies import schedules


def events_of(runs: Sequence[tuple[str, Timeline]], blocked: Sequence[BlockedRun | None] = ()) -> dict[str, list[Any]]:
    """Return the written events by phase; read again without allowing anything that JSON does not have."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write_trace(path, runs, *([blocked] if blocked else []))
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
def test_slices_of_a_thread_do_not_overlap(schedule: Schedule, network: Network, size: int) -> None:
    """Two slices for each transfer, and none over another, which the viewers would drop; arrows lead between them."""
    timeline = simulate(schedule, network, size)
    events = events_of([("run", timeline)])
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


def in_words(events: dict[str, list[dict[str, Any]]]) -> str:
    """Processes, their threads, and in each the slices with begin and duration in us."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events["M"] if e["name"] == "thread_name"}
    lines = []
    for process in (e for e in events["M"] if e["name"] == "process_name"):
        lines.append(f"{process['pid']}: {process['args']['name']}")
        for event in events["X"]:
            if event["pid"] == process["pid"]:
                name, length = names[event["pid"], event["tid"]], event["dur"]
                lines.append(f"  {name}: {event['ts']:g} + {length:g}: {event['name']} {event.get('args', '')}")
    return "\n".join([*lines, f"{len(events['s'])} arrows, {len({event['id'] for event in events['s']})} numbers"])


FAILING = '[host]\nranks = 1\n[host.nic]\nbandwidth = "1GB/s"\n[[failure]]\nlink = "host0.nic0.out"\n'


def test_who_sends_what_to_whom_and_when(snapshot: SnapshotAssertion) -> None:
    """Concurrent sends of a rank are in several threads; a transfer that never happens has no slice."""
    schedule = build(Collective.REDUCE_SCATTER, "ring", 2)
    timeline = simulate(schedule, Network.uniform(1e-6, 1e9, 1e9, receive_overhead_s=5e-7), 3000)
    direct, network = build(Collective.ALL_GATHER, "direct", 3), read_network(FAILING, "test.toml")
    several, stalled = simulate(direct, Network.uniform(1e-6, 1e9), 3000), explain(direct, network, 3000)
    runs = {
        "one run": events_of([("simulated", timeline)]),
        "two runs": events_of([("one", timeline), ("other", timeline)]),
        "several threads": events_of([("run", several)]),
        "fails": events_of([("run", simulate(direct, network, 3000, runtime=IN_ORDER))]),
        # Each rank that hangs says in a thread what it does or waits for, to the end.
        "hangs": events_of([("fine", several), ("hangs", stalled.timeline)], [None, stalled.blocked]),
    }
    assert "\n\n".join(f"{name}\n{in_words(events)}" for name, events in runs.items()) == snapshot


def test_too_many_and_nowhere(tmp_path: Path) -> None:
    """One line, and no file is left behind."""
    path = tmp_path / "trace.json"
    many, one = (MagicMock(Timeline, __len__=Mock(return_value=count)) for count in (MAX_TRANSFERS, 1))
    with pytest.raises(ValueError, match="trace.json: a trace holds at most 500,000 transfers; these are 500,001"):
        write_trace(path, [("many", many), ("one more", one)])
    with pytest.raises(OSError, match="missing"):
        write_trace(tmp_path / "missing" / "trace.json", [])
    assert not list(tmp_path.iterdir())
    write_trace(path, [])
    assert json.loads(path.read_text()) == {"displayTimeUnit": "ns", "traceEvents": []}
