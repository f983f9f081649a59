"""`ringsim calibrate` and `ringsim compare`, as a user runs them, and recorded runs beside their predictions."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from ringsim import Collective, Network, ring_all_reduce
from ringsim.algorithms.rings import gloo_ring_all_reduce
from ringsim.calibration.comparison import SIZE_CLASSES, ComparedCase, Comparison, compare_measurements, compare_run
from ringsim.calibration.timings import Timing
from ringsim.libraries import GLOO, OURS, Call
from ringsim.measurements.measurements import CollectiveTimes, Measurements, Probe
from ringsim.network.spec import Failure, Host, Link, MemoryRate, SharedMemory, Spec
from ringsim.registry import build
from ringsim.report.plots import plot
from ringsim.simulation import predict_time
from tests.ringsim.commands import as_json, invoke, printed, refused, run, written
from tests.ringsim.made_logs import nccl_log
from tests.ringsim.made_probes import hosts, made_measurements, one_host
from tests.ringsim.made_run import NETWORK, made_run

pytestmark = pytest.mark.usefixtures("one_start")

HOST = one_host(2)
TORCH_CALL_S = 5e-3
FIELDS = {"collective", "algorithm", "size_bytes", "num_ranks", "predicted_s", "measured_s", "error", "spread"}


class Logs(NamedTuple):
    """Logs of a made cluster, the network calibrated from the first one, and what calibrating it printed."""

    two_hosts: Path
    four_hosts: Path
    network: Path
    told: str


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    """An all_gather on two hosts, and an all_reduce on four."""
    folder = tmp_path_factory.mktemp("logs")
    two_hosts = written(folder / "two_hosts.log", nccl_log("all_gather", 8, 2, noise=0.01))
    four_hosts = written(folder / "four_hosts.log", nccl_log("all_reduce", 16, 4, noise=0.01))
    network = folder / "net.toml"
    return Logs(two_hosts, four_hosts, network, printed("calibrate", two_hosts, "-o", network))


@pytest.fixture
def measurements(tmp_path: Path) -> Path:
    """Of a host that is known: probes, and the times of four competitors with 1 MiB."""
    made, path = made_measurements(4, 2), tmp_path / "measurements.json"
    ring = made.collectives[2]
    torch_s = predict_time(GLOO.schedule(Collective.ALL_REDUCE, 4, ring.size_bytes), HOST, ring.size_bytes)
    torch = replace(ring, algorithm="dist", times_s=(torch_s + TORCH_CALL_S,) * len(ring.times_s))
    times = (ring, torch, *(replace(ring, algorithm=name) for name in ("raw_sockets", "openmpi")))
    probes = (*made.probes, Probe("call/dist", 64, 1, (TORCH_CALL_S,)))
    replace(made, probes=probes, collectives=times).save(path)
    return path


def test_calibrate_then_compare_logs(logs: Logs, tmp_path: Path) -> None:
    """The network file is all that compare needs, and other commands read it too; a report holds what was printed."""
    assert "host.nic.bandwidth" in logs.told
    assert "fitted to 11 timings" in logs.told
    assert "all_gather n=8 h=2" not in logs.told
    assert "all_gather n=8 h=2" in printed("calibrate", logs.two_hosts, "--wide")
    compared = ("compare", logs.two_hosts, logs.four_hosts, "--network", logs.network)
    text = printed(*compared, "-o", tmp_path / "report")
    written = {path.name: path.read_bytes() for path in (tmp_path / "report").iterdir()}
    assert sorted(written) == ["compare.csv", "compare.json", "compare.txt", "errors.png", "times.png"]
    assert written["compare.txt"].decode() == text
    assert written["compare.csv"].count(b"\n") == 23
    data = json.loads(written["compare.json"])
    assert set(data["cells"][0]) >= FIELDS
    assert [case["used_in_calibration"] for case in data["cells"]] == [True] * 11 + [False] * 11
    ratios = [case["predicted_s"] / case["measured_s"] for case in data["cells"]]
    assert [case["error"] + 1 for case in data["cells"]] == pytest.approx(ratios)
    assert {row["sizes"] for row in data["summary"]} == {name for name, _, _ in SIZE_CLASSES}
    run(*compared, "--style", "dark", "-o", tmp_path / "dark")
    for name in ("errors.png", "times.png"):
        assert written[name].startswith(b"\x89PNG")
        assert (tmp_path / "dark" / name).read_bytes() != written[name]
    refused(*compared, "--style", "dark")
    run("simulate", "--network", logs.network, "--ranks", 16)
    run("networks", logs.network)
    for share, exit_code in (("0.01%", 1), ("400%", 0), ("4", 2)):  # without it any error is a result
        failing = invoke("compare", logs.four_hosts, "--network", logs.network, "--fail-above", share)
        assert failing.exit_code == exit_code


@pytest.mark.usefixtures("twenty_draws")
def test_calibrate_then_compare_measurements(measurements: Path, tmp_path: Path) -> None:
    """The collective of torch is predicted by the schedule that Gloo runs; bare sockets are named as not predicted.

    The intervals of the bootstrap are around what the probes were made of.
    """
    network = tmp_path / "host.toml"
    calibrated = as_json("calibrate", measurements, "-o", network)
    found = {each["name"]: each for each in calibrated["parameters"]}
    for name, true in (("rank.reduce_bandwidth", 10e9), ("rank.copy_bandwidth", 4e9)):
        assert found[name]["low"] <= true <= found[name]["high"]
    text = printed("compare", measurements, "--network", network, "-o", tmp_path / "report")
    data = json.loads((tmp_path / "report" / "compare.json").read_text())
    errors = {case["algorithm"]: case["error"] for case in data["cells"]}
    assert max(abs(errors["ring"]), abs(errors["dist"])) < 0.1
    assert errors["raw_sockets"] is None
    assert "not predicted: all_reduce raw_sockets, 1 cell: bare sockets have no schedule" in text
    assert "not predicted: all_reduce openmpi, 1 cell: Open MPI has no schedule" in text


def test_measurements_are_not_compared_by_protocols(logs: Logs, measurements: Path) -> None:
    """And that is said; logs are."""
    network = Path(__file__).parents[3] / "docs" / "networks" / "calibrated.toml"
    told = f"{network}: this prediction does not include NCCL's protocols and trees"
    assert run("compare", measurements, "--network", network).stderr.startswith(told)
    assert run("compare", logs.two_hosts, "--network", network).stderr == ""


def test_gloo_s_ring_is_predicted_as_it_is_executed() -> None:
    """In segments of at most 1 MiB, whether it is our own or torch's."""
    size = 16 * 2**20
    cases = [Timing(Call("all_reduce", size, 4, 1), algorithm, (1.0,)) for algorithm in ("gloo_ring", "dist")]
    times = [each.predicted_s for each in compare_measurements(cases, HOST).cases]
    assert times == [predict_time(gloo_ring_all_reduce(4, 4), HOST, size)] * 2
    assert times[0] != predict_time(build(Collective.ALL_REDUCE, "gloo_ring", 4), HOST, size)


def test_a_collective_that_never_ends_has_no_prediction() -> None:
    """On a network with a failure; its errors are not infinite."""
    network = hosts().with_spec(failures=(Failure("host0.nic0.out"),))
    (compared,) = compare_measurements([Timing(Call("all_reduce", 2**20, 4, 4), "ring", (1.0,))], network).cases
    assert (compared.predicted_s, compared.error) == (None, None)


def test_what_cannot_be_used_is_refused(logs: Logs, measurements: Path, tmp_path: Path) -> None:
    """Each in one line that says what to do; times of wrong results say nothing."""
    whole, changed = json.loads(measurements.read_text()), tmp_path / "changed.json"
    small = written(tmp_path / "small.toml", '[host]\nranks = 1\ncount = 2\nnic.bandwidth = "1GB/s"\n')
    one_size = written(tmp_path / "one.log", nccl_log("all_reduce", 4, sizes=(2**24,)))
    wrong = [whole["collectives"][0], whole["collectives"][1] | {"wrong": 5}]
    for changes, command, message in (
        ({"version": 99}, "calibrate", "version 99 of ringsim-measurements: this ringsim reads versions up to 3"),
        ({"probes": []}, "calibrate", "too few shift, shift_cpu and reduce_cpu probes: measure again"),
        ({"collectives": []}, "compare", "there are no collectives"),
        ({"collectives": wrong}, "compare", f"{changed}: collectives[1]: wrong is 5: its results were wrong, so the t"),
    ):
        changed.write_text(json.dumps(whole | changes))
        assert message in refused(command, changed, *(("--network", "loopback") if command == "compare" else ()))
    for arguments, message in (
        (("compare", logs.four_hosts, "--network", small), "its hosts have 2 ranks, but 16 were measured"),
        (("compare", measurements, "--network", small), "its hosts have 2 ranks: 4 were asked for"),
        (("calibrate", logs.two_hosts, measurements), "give either measurements or logs"),
        (("calibrate", Path(__file__)), "no table of nccl-tests"),
        (("calibrate", tmp_path / "absent.log"), "No such file"),
        (("calibrate", logs.two_hosts, "-o", tmp_path / "net.json"), "must end in .toml"),
        (("calibrate", logs.two_hosts, "--nic", "four"), "for several NICs as 4x200Gbit/s"),
        (("calibrate", logs.two_hosts, "--nodes", 2, "--ranks-per-node", 8), "leave out --nodes"),
        (("calibrate", one_size), "1 timing of all_reduce, all_gather, "),
    ):
        assert message in refused(*arguments)


def test_the_summary_has_the_median_and_the_95th_percentile_of_the_errors() -> None:
    """Predictions that are 0 % to 20 % too long."""
    case = Timing(Call("all_reduce", 2**20, 4, 1), "ring", (1.0,))
    compared = [ComparedCase(case, 1 + 0.01 * percent, "", used_in_calibration=False) for percent in range(21)]
    (summary,) = Comparison("network", tuple(compared)).summary()
    assert summary == {"sizes": ">= 1 MiB", "used_in_calibration": False, "num_cells": 21,
                       "median": pytest.approx(0.1), "p95": pytest.approx(0.19), "inside": None}  # fmt: skip


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
    plain = Network("plain", Spec(host=Host(link=Link(latency_s=1e-6))))
    memory = SharedMemory(2**20, 2**20, latency_s=1e-3, rates=rates)
    sharing = Network("host", Spec(host=replace(plain.spec.host, shared_memory=memory)))
    over_shm = compare_run(replace(run, transport="shm"), sharing).predicted.timeline.time_s
    runtime = OURS.over("shm", touched_bytes=run.size_bytes).runtime
    assert over_shm == predict_time(ring_all_reduce(2), sharing, run.size_bytes, element_bytes=4, runtime=runtime)
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
    """An algorithm that has changed since; one that is not there is named by the command, see below."""
    run = made_run()
    with pytest.raises(ValueError, match="on 3 ranks over gloo: the recorded transfers differ .* record it again"):
        compare_run(replace(run, chunk=(*run.chunk[:-1], 7)), NETWORK)


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
    assert (
        "no picture of a run: all_reduce spiral of 12000 bytes on 3 ranks over gloo: algorithm 'spiral'"
        in result.stderr
    )
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
