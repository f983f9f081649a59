"""Tests of `ringsim.calibration.compared_run`, of its trace and picture, and of `ringsim compare` with such runs."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringsim.algorithms.ring import ring_all_reduce
from ringsim.calibration.compared_run import ComparedRun, compare_run, picture_names
from ringsim.measurements.measurements import CollectiveTimes, Measurements
from ringsim.network.cluster import Cluster
from ringsim.network.shared_memory import SharedMemoryNetwork
from ringsim.network.spec import Host, Link, MemoryRate, SharedMemory, Spec
from ringsim.report.plots.plot import save_plot
from ringsim.report.plots.run_figure import MAX_LINES, draw_run
from ringsim.report.trace import write_run_trace
from ringsim.schedule.collective import Collective
from ringsim.simulation import IN_ORDER
from ringsim.simulation.simulate import predict_time
from tests.ringsim.commands import refused, run
from tests.ringsim.made_run import NETWORK, made_run

TIMES = CollectiveTimes(
    Collective.ALL_REDUCE,
    "ring",
    12000,
    "float32",
    "sum",
    3,
    True,
    0,
    1,
    (1e-3,) * 3,
    (0.0,) * 3,
    (0,) * 3,
    (1e-3,) * 3,
)


def compared(*arguments: Any, **rest: Any) -> ComparedRun:
    """A made run beside its prediction."""
    return compare_run(made_run(*arguments, **rest), NETWORK, "made")


@pytest.mark.parametrize(
    "algorithm", ["ring", "ring/4", "gloo_ring", "halving_doubling", "direct", "double_binary_tree"]
)
def test_a_run_on_the_network_itself_is_predicted(algorithm: str) -> None:
    """Every transfer of it, row by row, to the last bit."""
    both = compared(algorithm=algorithm, num_ranks=4)
    for name, column in both.predicted.columns().items():
        if name in ("step", "src", "dst", "chunk", "start_s", "applied_s"):
            assert column == getattr(both.measured, name).tolist(), name
    rows = zip(*(getattr(both.measured, name).tolist() for name in ("step", "src", "dst", "chunk")), strict=True)
    assert list(rows) == both.run.transfers
    assert both.error == 0
    assert compared(algorithm=algorithm, num_ranks=4, slower=2.0).error == -0.5


def test_a_run_is_simulated_over_its_own_transport() -> None:
    """Through the shared memory of the network file, or past it; without one that describes it, one line says so."""
    run = made_run(num_ranks=2)
    rates = (MemoryRate(2**20, 1e9, 2e9, 3e9, 1e9, 2e9, 3e9),)
    plain = Cluster("plain", Spec(host=Host(link=Link(latency_s=1e-6))))
    memory = SharedMemory(2**20, 2**20, latency_s=1e-3, rates=rates)
    sharing = Cluster("host", Spec(host=replace(plain.spec.host, shared_memory=memory)))
    over_shm = compare_run(replace(run, transport="shm"), sharing, "host").predicted.time_s
    through = SharedMemoryNetwork(sharing, touched_bytes=run.size_bytes)
    assert over_shm == predict_time(ring_all_reduce(2), through, run.size_bytes, element_bytes=4, runtime=IN_ORDER)
    over_gloo = compare_run(run, sharing, "host").predicted.time_s
    assert over_gloo == compare_run(run, plain, "plain").predicted.time_s != over_shm
    with pytest.raises(ValueError, match="over shm: it used shared memory, which the network file does not"):
        compare_run(replace(run, transport="shm"), plain, "plain")


def test_a_transfer_is_issued_when_its_chunk_is_there() -> None:
    """Not when the link is free: all segments of the first step at once, and never after they begin to be sent."""
    both = compared(algorithm="ring/4")
    first = both.predicted.step < 4
    assert not both.predicted.start_s[first].any()
    assert (both.predicted.start_s <= both.predicted.sent_s).all()
    assert (both.predicted.start_s < both.predicted.applied_s).all()


def test_other_transfers_are_refused() -> None:
    """An algorithm that has changed since, one that is not there, and one that never ends."""
    run = made_run()
    with pytest.raises(ValueError, match="on 3 ranks over gloo: the recorded transfers differ .* record it again"):
        compare_run(replace(run, chunk=(*run.chunk[:-1], 7)), NETWORK, "made")
    with pytest.raises(ValueError, match="all_reduce spiral of 12000 bytes on 3 ranks over gloo: .*spiral"):
        compare_run(replace(run, algorithm="spiral"), NETWORK, "made")


def events(path: Path, *runs: ComparedRun) -> dict[str, list[dict[str, Any]]]:
    """Return the written events by phase."""
    write_run_trace(path, runs)
    found = defaultdict(list)
    for event in json.loads(path.read_text(), parse_constant=pytest.fail)["traceEvents"]:
        found[event["ph"]].append(event)
    return found


@pytest.mark.parametrize("algorithm", ["ring", "ring/4", "direct"])
def test_both_sides_are_in_the_trace(algorithm: str, tmp_path: Path) -> None:
    """A process each, with a slice for each transfer that has the same name on both sides; times in microseconds."""
    both = compared(algorithm=algorithm, slower=1.5)
    found = events(tmp_path / "runs.json", both)
    names = {e["pid"]: e["args"]["name"] for e in found["M"] if e["name"] == "process_name"}
    assert names == {1: f"all_reduce {algorithm} predicted over gloo", 2: f"all_reduce {algorithm} measured over gloo"}
    predicted, measured = ({e["name"]: e for e in found["X"] if e["pid"] == pid} for pid in names)
    assert predicted.keys() == measured.keys()
    assert len(found["X"]) == 2 * len(predicted) == 2 * len(both.run)
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in found["M"] if e["name"] == "thread_name"}
    assert threads.keys() == {(e["pid"], e["tid"]) for e in found["X"]}
    assert ("rank 0, 2" in threads.values()) == (algorithm != "ring")  # several under way at once
    begin = min(both.run.begin_s)
    for row, name in enumerate(both.run.transfers):
        (slice_,) = [
            e for e in measured.values() if tuple(e["args"][key] for key in ("step", "src", "dst", "chunk")) == name
        ]
        assert slice_["ts"] == pytest.approx((both.run.issued_s[row] - begin) * 1e6, abs=2e-3)
        assert slice_["ts"] + slice_["dur"] == pytest.approx((both.run.applied_s[row] - begin) * 1e6, abs=2e-3)


def lines(both: ComparedRun) -> list[int]:
    """How many lines are in each collection of the picture's lanes, grey ones first."""
    figure = draw_run(both)
    figure.canvas.draw()
    return [len(each.get_segments()) for each in figure.axes[0].collections]


def test_each_transfer_is_drawn_twice() -> None:
    """Predicted and measured, those that add apart from those that overwrite, on lanes for all ranks."""
    assert lines(compared()) == [3, 6, 6, 6, 6]
    assert lines(compared(Collective.ALL_GATHER, slower=2.0)) == [3, 6, 6]


def test_of_many_steps_only_some_are_drawn() -> None:
    """And the picture says so."""
    both = compared(algorithm="ring/16", num_ranks=8)
    assert len(both.run) > 4 * MAX_LINES
    assert 0 < sum(lines(both)[1::2]) <= MAX_LINES
    assert "of every 5 steps only the first is drawn" in draw_run(both).axes[0].get_title(loc="left")


def test_the_picture_is_written(tmp_path: Path) -> None:
    """With both times above it."""
    both = compared(slower=2.0)
    save_plot(both, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert draw_run(both).get_suptitle() == (
        "all_reduce ring, 11.72 KiB on 3 ranks over gloo: predicted 70 us, measured 140 us (error -50.0%)"
    )


def test_names_of_pictures() -> None:
    """No two alike, and no folders."""
    runs = [made_run(), made_run(algorithm="ring/4"), made_run(slower=2.0)]
    assert picture_names(runs) == ["run-all_reduce-ring.png", "run-all_reduce-ring-4.png", "run-all_reduce-ring-2.png"]


def test_compare_writes_recorded_runs(tmp_path: Path) -> None:
    """One trace for all and a picture each; what cannot be predicted is named, and no reason to fail."""
    runs = made_run(slower=2.0), made_run(algorithm="ring/4"), replace(made_run(), algorithm="spiral")
    Measurements(3, {}, (), (TIMES,), runs).save(tmp_path / "m.json")
    result = run("compare", tmp_path / "m.json", "--network", "loopback", "-o", tmp_path / "report", "--json")
    assert "no picture of a run: all_reduce spiral of 12000 bytes on 3 ranks" in result.stderr
    json.loads(result.stdout)
    written = {path.name for path in (tmp_path / "report").iterdir()}
    said = result.stderr.splitlines()[1:]
    assert sorted(said) == sorted(f"wrote {path}" for path in (tmp_path / "report").iterdir())
    assert written >= {"runs.json", "run-all_reduce-ring.png", "run-all_reduce-ring-4.png"}
    assert not any("spiral" in name for name in written)
    trace = json.loads((tmp_path / "report" / "runs.json").read_text())
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 2 * (12 + 48)


def test_compare_refuses_a_bad_record(tmp_path: Path) -> None:
    """In one line, with exit code 2."""
    data = Measurements(3, {}, (), (TIMES,), (made_run(),)).as_dict()
    data["runs"][0]["src"] = [9] * 12
    (tmp_path / "m.json").write_text(json.dumps(data))
    told = refused("compare", tmp_path / "m.json", "--network", "loopback")
    assert "m.json: runs[0]: src[0] 9: there are only 3 ranks" in told
