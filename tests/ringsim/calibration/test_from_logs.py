"""From logs to a network, and from the network's text alone to predictions of other logs."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ringsim.calibration.cases import TimedCase, cases_of_tables
from ringsim.calibration.comparison import compare_logs
from ringsim.calibration.from_logs import LogFit, calibrate_logs
from ringsim.calibration.log_parameters import assumptions, fit
from ringsim.calibration.protocol_time import Rates, predict, times_s
from ringsim.calibration.questions import Question, QuestionColumns
from ringsim.measurements.logs.reader import read_logs
from ringsim.network.file_reader import load_network, read_network
from ringsim.network.file_writer import network_text
from ringsim.network.spec import Nics
from tests.ringsim.calibration.test_nics import logs_of
from tests.ringsim.made_logs import LOGS, SIZES, TRUE, nccl_log

DGX = load_network("dgx-h100")  # with the protocols of NCCL's own model
SHAPES = (("all_reduce", 8, 1), ("all_gather", 8, 1), ("all_reduce", 16, 2), ("all_gather", 16, 2))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> LogFit:
    """The fit to one host and two."""
    return calibrate_logs(logs_of(tmp_path_factory.mktemp("logs"), TRUE, *SHAPES), "made")


def test_parameters_are_recovered_within_their_intervals(made: LogFit) -> None:
    """Bandwidths, and what small messages show."""
    found = {parameter.name: parameter for parameter in made.parameters}
    true = {
        "host.link.bandwidth": TRUE.link_bytes_per_s,
        "host.nic.bandwidth": TRUE.nic_bytes_per_s,
        "LL link_latency": TRUE.protocols[0].link_latency_s,
        "LL start": TRUE.protocols[0].start_s,
        "LL hop_latency": TRUE.protocols[0].hop_latency_s,
    }
    for name, value in true.items():
        # 95 % intervals of 5 parameters: one that just misses is no surprise, hence half as wide again.
        middle, low, high = (np.log(getattr(found[name], field)) for field in ("value", "low", "high"))
        assert 1.5 * (low - middle) <= np.log(value) - middle <= 1.5 * (high - middle), name
    for name in ("host.link.bandwidth", "host.nic.bandwidth"):
        assert found[name].value == pytest.approx(true[name], rel=0.05)


def test_the_text_of_the_file_predicts(made: LogFit, tmp_path: Path) -> None:
    """More hosts and another collective; it knows the cells of the calibration, and times grow with size."""
    network = read_network(network_text(made.cluster), "made.toml")
    held_out = logs_of(tmp_path, TRUE, ("reduce_scatter", 16, 2), ("all_reduce", 64, 8))
    compared = compare_logs(held_out, network)
    assert np.median([abs(each.error or 0.0) for each in compared.cases if each.case.size_bytes >= 2**20]) < 0.05
    assert not any(each.used_in_calibration for each in compared.cases)
    assert all(each.used_in_calibration for each in compare_logs(made.cases, network).cases)
    by_size = [time_s for time_s, _ in predict(network, [Question("all_gather", size, 16, 2) for size in SIZES])]
    assert by_size == sorted(by_size)


def test_a_log_of_another_day_is_held_out(tmp_path: Path) -> None:
    """By its times, under any name and beside any other; a file without digests cannot tell it from those used."""
    logs = [tmp_path / name for name in ("monday.log", "tuesday.log", "friday.log")]
    for seed, path in enumerate(logs):
        path.write_text(nccl_log("all_reduce", 8, 1, noise=0.02, seed=seed))
    text = network_text(calibrate_logs(cases_of_tables(read_logs(logs[:2])), "made").cluster)
    network = read_network(text, "made.toml")
    assert [len(cells.rows) for cells in network.calibration.cells] == [2 * len(SIZES)]
    moved, friday = logs[1].rename(tmp_path / "moved.log"), logs[2]
    for paths in ([logs[0]], [moved, friday], [friday]):
        compared = compare_logs(cases_of_tables(read_logs(paths)), network).cases
        assert {each.case.file: each.used_in_calibration for each in compared} == {
            str(path): path != friday for path in paths
        }
    old = read_network("\n".join(line for line in text.splitlines() if not line.startswith("rows = ")), "old.toml")
    assert all(each.used_in_calibration for each in compare_logs(cases_of_tables(read_logs([friday])), old).cases)


def test_given_nics_are_believed(tmp_path: Path) -> None:
    """Where one host was measured, they tell what several would have."""
    made = calibrate_logs(logs_of(tmp_path, TRUE, *SHAPES[:2]), "made", Nics(bandwidth_bytes_per_s=6e9, count=4))
    ((time_s, _),) = predict(read_network(network_text(made.cluster), "x.toml"), [Question("all_gather", 2**30, 16, 2)])
    assert time_s == pytest.approx(2**30 * 15 / 16 / 24e9, rel=0.02)


@pytest.mark.parametrize("given", [4e9, 24e9])
def test_given_nics_need_not_be_reached(tmp_path: Path, given: float) -> None:
    """One rank of a host uses one NIC of eight, as far as the times say; no latency makes up for the rest."""
    made = calibrate_logs(logs_of(tmp_path, TRUE, *SHAPES[:2], ("all_reduce", 2, 2)), "made", Nics(0.0, given, count=8))
    parameters = {parameter.name: parameter for parameter in made.parameters}
    assert parameters["host.nic.bandwidth"].value == pytest.approx(TRUE.nic_bytes_per_s, rel=0.05)
    assert all(parameters[f"{name} hop_latency"].value < 100e-6 for name in ("LL", "LL128", "Simple"))
    ((time_s, _),) = predict(made.cluster, [Question("all_gather", 2**30, 16, 2)])
    assert time_s == pytest.approx(2**30 * 15 / 16 / (8 * TRUE.nic_bytes_per_s), rel=0.05)


@pytest.mark.parametrize("shapes", [SHAPES[:2], SHAPES[2:], [("all_reduce", 2, 2)]])
def test_what_no_timing_determines_is_as_nccl_has_it(tmp_path: Path, shapes: Sequence[tuple[str, int, int]]) -> None:
    """To the digit: the table says that it is NCCL's own model. What lacks a bandwidth is not predicted."""
    nccl = {"tree_share": 0.92, "tree_latency": 1.0, "message_start": 1.0}
    nccl |= {"message_share": 0.93, "ring_fill": 0.2}  # as they are on other clusters
    for protocol in DGX.spec.protocols:
        nccl[f"{protocol.name} start"] = protocol.start_s
        nccl[f"{protocol.name} link_latency"] = protocol.link_latency_s
        nccl[f"{protocol.name} hop_latency"] = protocol.hop_latency_s
        nccl[f"{protocol.name} share"] = protocol.share
    fitted = calibrate_logs(logs_of(tmp_path, TRUE, *shapes), "made")
    untold = [parameter for parameter in fitted.parameters if not parameter.seen_in]
    assert untold
    for parameter in untold:
        assert parameter.value == pytest.approx(nccl[parameter.name], rel=1e-6), parameter.name
        assert parameter.low < nccl[parameter.name] < parameter.high
    hosts, missing = (2, "nic") if shapes == SHAPES[:2] else (1, "link")
    with pytest.raises(ValueError, match=rf"host\.{missing}\.bandwidth is missing, but all_reduce was measured on"):
        predict(fitted.cluster, [Question("all_reduce", 1024, 8 * hosts, hosts)])
    with pytest.raises(ValueError, match="alltoall: there is no formula for it"):
        predict(fitted.cluster, [Question("alltoall", 1024, 8, 1)])


def test_a_parameter_is_seen_wherever_nccl_s_value_would_change_a_time(tmp_path: Path) -> None:
    """Also where small changes of it change little, as those of a latency do in a long time."""
    slow = tuple(replace(protocol, hop_latency_s=30 * protocol.hop_latency_s) for protocol in TRUE.protocols)
    path = tmp_path / "slow.log"
    path.write_text(nccl_log("all_gather", 16, 2, rates=replace(TRUE, protocols=slow), noise=0.02))
    made = calibrate_logs(cases_of_tables(read_logs([path])), "made")
    questions = [case.question for case in made.cases]
    hops = {parameter.name: parameter for parameter in made.parameters}
    for own in DGX.spec.protocols:
        hop, nccl_s = hops[f"{own.name} hop_latency"], own.hop_latency_s
        assert hop.value > 2 * nccl_s
        protocols = made.cluster.spec.protocols
        changed = tuple(replace(p, hop_latency_s=nccl_s) if p.name == own.name else p for p in protocols)
        elsewhere = made.cluster.with_spec(protocols=changed)
        pairs = zip(made.cases, predict(made.cluster, questions), predict(elsewhere, questions), strict=True)
        seen = [case for case, (here_s, _), (there_s, _) in pairs if abs(np.log(there_s / here_s)) > 0.01]
        assert {case.size_bytes for case in seen} <= {case.size_bytes for case in hop.seen_in}


def test_times_in_place_count_where_they_spare_a_copy() -> None:
    """In-place times count for all_gather and reduce_scatter, which spare a copy; tables show the median of all."""
    for collective, calibrated_s in (("all_gather", 1.0), ("reduce_scatter", 1.0), ("all_reduce", 2.0)):
        case = TimedCase(collective, "nccl", 8, 2, 1, (3.0, 1.0), (1.0,))
        assert (case.calibrated_s, case.measured_s) == (calibrated_s, 2.0)


def test_too_few_timings_are_refused(tmp_path: Path) -> None:
    """Three sizes are the least."""
    with pytest.raises(ValueError, match="2 timings of .*: too few to fit; give logs with at least 3 sizes"):
        calibrate_logs(logs_of(tmp_path, TRUE, SHAPES[0])[:2], "made")


def test_hosts_of_many_ranks_have_not_many_nics_to_try(tmp_path: Path) -> None:
    """Each number is a fit of its own, and logs of CPUs may have hundreds of ranks on a host."""
    many = logs_of(tmp_path, TRUE, ("all_reduce", 2, 2), ("all_reduce", 128, 2))
    assert {assumption.num_nics for assumption in assumptions(many, None)} == set(range(17))


def test_a_message_uses_one_nic_and_a_collective_one_for_each_rank() -> None:
    """As many as there are, and no collective is faster than the links within the hosts."""
    rates = Rates(100e9, 20e9, 6, TRUE.protocols, TRUE.library)
    large = 2**36
    asked = [("sendrecv", 16), ("all_gather", 2), ("all_gather", 6), ("all_gather", 8), ("all_gather", 16)]
    questions = [Question(test, large, num_ranks, 2) for test, num_ranks in asked]
    message_s, *gathers_s = times_s(rates, QuestionColumns.from_questions(questions))
    assert message_s == pytest.approx(large / 20e9, rel=1e-3)
    shares = [large * (question.num_ranks - 1) / question.num_ranks for question in questions[1:]]
    bandwidths = [share / time_s for share, time_s in zip(shares, gathers_s, strict=True)]
    assert bandwidths == pytest.approx([20e9, 60e9, 80e9, 100e9], rel=1e-3)


def test_the_fit_of_a_line_is_the_known_one() -> None:
    """With vague beliefs, the posterior of a constant in n log times is their mean, with deviation noise / sqrt(n)."""
    times = np.log([1.0, 1.1, 0.9, 1.0])
    found = fit(
        lambda at: np.repeat(at[0], 4),
        times,
        np.array([1.0]),
        np.array([100.0]),
        1.0,
        np.array([False]),
        np.array([1.0]),
    )
    assert found.mode[0] == pytest.approx(times.mean(), abs=1e-3)
    assert found.deviation[0] == pytest.approx(0.5, rel=0.01)


@pytest.mark.slow
def test_public_clusters() -> None:
    """The claim of docs/accuracy.md for every third of its pairs: so many of them are within their targets."""
    if not LOGS.is_dir():
        pytest.skip("the public logs are not beside the repository, in ../shared/nccl-logs")
    sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
    import cluster_fidelity

    results = [cluster_fidelity.measure(pair, LOGS) for pair in [*cluster_fidelity._pairs()][::3]]
    met = sum(result.median <= result.target for result in results)
    assert met / len(results) >= 0.7
    assert np.median([result.median for result in results]) < 0.10
