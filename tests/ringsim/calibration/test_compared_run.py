"""Tests of `ringsim.calibration.comparison`, of its trace and picture, and of `ringsim compare` with such runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ringsim.algorithms.ring import ring_all_reduce
from ringsim.calibration.comparison import compare_run
from ringsim.measurements.measurements import CollectiveTimes, Measurements
from ringsim.network.cluster import Cluster
from ringsim.network.shared_memory import SharedMemoryNetwork
from ringsim.network.spec import Host, Link, MemoryRate, SharedMemory, Spec
from ringsim.report.plots.plot import plot
from ringsim.schedule.collective import Collective
from ringsim.simulation import IN_ORDER
from ringsim.simulation.simulate import predict_time
from tests.ringsim.commands import run
from tests.ringsim.made_run import NETWORK, made_run

TIMES = CollectiveTimes(Collective.ALL_REDUCE, "ring", 12000, "float32", "sum", 3, True, 0, 1,
                        (1e-3,) * 3, (0.0,) * 3, (0,) * 3, (1e-3,) * 3)  # fmt: skip


@pytest.mark.parametrize("algorithm", ["ring/4", "gloo_ring", "halving_doubling", "double_binary_tree"])
def test_a_run_on_the_network_itself_is_predicted(algorithm: str) -> None:
    """Every transfer of it, row by row, to the last bit."""
    both = compare_run(made_run(algorithm=algorithm, num_ranks=4), NETWORK)
    predicted, measured = (view.timeline for view in both.views)
    for name in ("step", "src", "dst", "chunk", "reduce", "start_s", "applied_s"):
        assert getattr(predicted, name).tolist() == getattr(measured, name).tolist(), name
    assert (measured.src.tolist(), measured.chunk.tolist()) == ([*both.run.src], [*both.run.chunk])
    assert both.error == 0
    assert compare_run(made_run(algorithm=algorithm, num_ranks=4, slower=2.0), NETWORK).error == -0.5


def test_a_run_is_simulated_over_its_own_transport() -> None:
    """Through the shared memory of the network file, or past it; without one that describes it, one line says so."""
    run = made_run(num_ranks=2)
    rates = (MemoryRate(2**20, 1e9, 2e9, 3e9, 1e9, 2e9, 3e9),)
    plain = Cluster("plain", Spec(host=Host(link=Link(latency_s=1e-6))))
    memory = SharedMemory(2**20, 2**20, latency_s=1e-3, rates=rates)
    sharing = Cluster("host", Spec(host=replace(plain.spec.host, shared_memory=memory)))
    over_shm = compare_run(replace(run, transport="shm"), sharing).predicted.timeline.time_s
    through = SharedMemoryNetwork(sharing, touched_bytes=run.size_bytes)
    assert over_shm == predict_time(ring_all_reduce(2), through, run.size_bytes, element_bytes=4, runtime=IN_ORDER)
    over_gloo = compare_run(run, sharing).predicted.timeline.time_s
    assert over_gloo == compare_run(run, plain).predicted.timeline.time_s != over_shm
    with pytest.raises(ValueError, match="over shm: it used shared memory, which the network file does not"):
        compare_run(replace(run, transport="shm"), plain)


def test_a_transfer_is_issued_when_its_chunk_is_there() -> None:
    """Not when the link is free: all segments of the first step at once, and never after they begin to be sent."""
    predicted = compare_run(made_run(algorithm="ring/4"), NETWORK).predicted.timeline
    assert not predicted.start_s[predicted.step < 4].any()
    assert (predicted.start_s <= predicted.sent_s).all()
    assert (predicted.start_s < predicted.applied_s).all()
    tree = compare_run(made_run(algorithm="double_binary_tree/4", num_ranks=8), NETWORK).predicted.timeline
    for pair in {*zip(tree.src.tolist(), tree.dst.tolist(), strict=True)}:  # in order
        starts = tree.start_s[(tree.src == pair[0]) & (tree.dst == pair[1])]
        assert (starts[1:] >= starts[:-1]).all()


def test_other_transfers_are_refused() -> None:
    """An algorithm that has changed since, one that is not there, and one that never ends."""
    run = made_run()
    with pytest.raises(ValueError, match="on 3 ranks over gloo: the recorded transfers differ .* record it again"):
        compare_run(replace(run, chunk=(*run.chunk[:-1], 7)), NETWORK)
    with pytest.raises(ValueError, match="all_reduce spiral of 12000 bytes on 3 ranks over gloo: .*spiral"):
        compare_run(replace(run, algorithm="spiral"), NETWORK)


def test_the_picture_has_lanes_of_both_sides() -> None:
    """Predicted above measured, on one axis of time; ranks that began early have sent before 0."""
    slow = made_run(slower=2.0)
    figure = plot(compare_run(replace(slow, issued_s=(-1e-5, *slow.issued_s[1:])), NETWORK))
    above, below = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["predicted 70 us", "measured 140 us"]
    assert above.get_xlim() == below.get_xlim()
    assert below.get_xlim()[0] == pytest.approx(-10)
    title = "all_reduce ring, 11.72 KiB on 3 ranks over gloo: predicted 70 us, measured 140 us (error -50.0%)"
    assert title in {text.get_text() for part in figure.subfigs for text in part.texts}


def test_compare_writes_recorded_runs(tmp_path: Path) -> None:
    """One trace for all and a picture each; what cannot be predicted is named, and no reason to fail."""
    early = replace(made_run(), issued_s=(-1e-5, *made_run().issued_s[1:]))
    runs = early, made_run(algorithm="ring/4"), made_run(slower=2.0), replace(made_run(), algorithm="spiral")
    measured, report = Measurements(3, {}, (), (TIMES,), runs), tmp_path / "report"
    measured.save(tmp_path / "m.json")
    result = run("compare", tmp_path / "m.json", "--network", "loopback", "-o", report, "--json")
    assert "no picture of a run: all_reduce spiral of 12000 bytes on 3 ranks" in result.stderr
    json.loads(result.stdout)
    assert sorted(result.stderr.splitlines()[1:]) == sorted(f"wrote {path}" for path in report.iterdir())
    assert {path.name for path in report.iterdir() if path.name.startswith("run")} == {
        "runs.json", "run-all_reduce-ring.png", "run-all_reduce-ring-2.png", "run-all_reduce-ring-4.png",
    }  # fmt: skip
    trace = json.loads((report / "runs.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in trace) == 2 * 2 * (12 + 48 + 12)
    assert min(event["ts"] for event in trace if event["ph"] == "X") == 0.0
    names = [event["args"]["name"] for event in trace if event["name"] == "process_name"]
    assert names[2:4] == ["all_reduce ring, predicted over gloo rank 2", "all_reduce ring, measured over gloo rank 0"]
