"""Between which times a prediction from logs may lie."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ringsim.calibration import calibrate_logs, compare_logs
from ringsim.calibration.intervals import intervals
from ringsim.calibration.protocol_time import predict
from ringsim.calibration.questions import Question
from ringsim.network import Cluster, network_text, read_network
from ringsim.report import format_fit
from tests.ringsim.calibration.test_nics import logs_of
from tests.ringsim.commands import as_json, printed, refused, run
from tests.ringsim.made_logs import TRUE, nccl_log

LARGE = 2**28
HERE = ("all_gather", LARGE, 16, 2)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Of two hosts, as it is read from the file."""
    cases = logs_of(tmp_path_factory.mktemp("logs"), TRUE, ("all_gather", 16, 2), ("all_reduce", 16, 2))
    return read_network(network_text(calibrate_logs(cases, "mine").cluster), "mine.toml")


def width(network: Cluster, *question: object) -> float:
    """The logarithm of the end of an interval over its prediction, which lies in the middle."""
    asked = Question(*question)  # type: ignore[arg-type]
    [interval], [(time_s, _)] = intervals(network, [asked]), predict(network, [asked])
    half: float = np.log(interval.high_s / time_s)
    assert half == pytest.approx(np.log(time_s / interval.low_s))
    return half


def test_what_was_calibrated_is_known_best(network: Cluster) -> None:
    """Then other hosts and collectives, of these large sizes better than small ones."""
    here, elsewhere, small = (
        width(network, *question)
        for question in (HERE, ("all_gather", LARGE, 64, 8), ("all_gather", 2**12, 64, 8))
    )  # fmt: skip
    assert 0.05 < here < elsewhere < small
    assert width(network, "reduce_scatter", LARGE, 16, 2) > here


def test_noise_of_the_logs_and_uncertain_parameters_widen_them(network: Cluster) -> None:
    """Draws that are all alike leave the noise alone."""
    calibration = network.calibration
    assert calibration is not None
    certain = tuple(tuple(1.0 for _ in draw) for draw in calibration.draws)
    sure = replace(network, calibration=replace(calibration, draws=certain))
    noisy = replace(network, calibration=replace(calibration, noise=0.3))
    assert width(sure, *HERE) == pytest.approx(1.2816 * calibration.noise)
    assert width(sure, *HERE) < width(network, *HERE) < width(noisy, *HERE)
    assert intervals(replace(network, calibration=None), [Question(*HERE)]) == []


def test_four_of_five_held_out_times_lie_within(tmp_path: Path, network: Cluster) -> None:
    """Of the same cluster with the noise that is believed, more; twice as long ones do not."""
    cases = logs_of(tmp_path, TRUE, ("reduce_scatter", 16, 2), ("all_gather", 64, 8))
    compared = compare_logs(cases, network)
    assert all(row["inside"] > 0.7 for row in compared.summary())
    slow = [replace(case, times_s=tuple(2 * time_s for time_s in case.times_s)) for case in cases]
    assert {row["inside"] for row in compare_logs(slow, network).summary() if row["sizes"] == ">= 1 MiB"} == {0.0}


def test_the_commands_show_them(tmp_path: Path) -> None:
    """In the table, its summary, as JSON; with what is extrapolated, and which log would tell more."""
    known, asked, net = tmp_path / "known.log", tmp_path / "asked.log", tmp_path / "net.toml"
    known.write_text(nccl_log("all_reduce", 16, 2, noise=0.01))
    asked.write_text(nccl_log("all_reduce", 64, 8, noise=0.01))
    assert "undecided: the logs do not tell " in printed("calibrate", known, "-o", net)
    assert "a log of all_reduce on one host, with 8 ranks, would tell more" in as_json("calibrate", known)["undecided"]
    text = printed("compare", asked, "--network", net)
    assert " 80 %  " in text
    assert " in their 80 %" in text
    assert "extrapolated: calibrated on 2 hosts, predicted for 8" in text
    cells = as_json("compare", asked, "--network", net)["cells"]
    assert all(cell["predicted_low_s"] < cell["predicted_s"] < cell["predicted_high_s"] for cell in cells)
    assert "extrapolated" not in printed("compare", known, "--network", net)


def test_settings_of_nccl_may_be_given(tmp_path: Path) -> None:
    """For logs that do not tell; a name that NCCL does not have, or a file of ours, is refused."""
    log, net = tmp_path / "one.log", tmp_path / "net.toml"
    log.write_text(nccl_log("all_reduce", 16, 2, noise=0.01))
    run("calibrate", log, "-o", net)
    cells = as_json("compare", log, "--network", net, "--nccl-algo", "ring", "--nccl-proto", "Simple")["cells"]
    assert {cell["predicted_by"] for cell in cells} == {"ring Simple"}
    told = "'rng': 'rng' is none of ring, tree, "
    assert told in refused("compare", log, "--network", net, "--nccl-algo", "rng")


def test_draws_of_other_parameters_are_refused(tmp_path: Path, network: Cluster) -> None:
    """Each has a number for each parameter."""
    path = tmp_path / "net.toml"
    text = network_text(network)
    path.write_text(text.replace('parameters = ["host.link.bandwidth", ', "parameters = ["))
    assert "draws[0]: 19 numbers for 18 parameters: give one each" in refused("simulate", "--network", path)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("host.nic.bandwith", "did you mean host.nic.bandwidth? "),
        ("LL256 start", "did you mean LL start? "),
        ("x", ""),
    ],
)
def test_draws_of_unknown_parameters_are_refused(tmp_path: Path, network: Cluster, name: str, hint: str) -> None:
    """With the place and the name, as they would change nothing."""
    path = tmp_path / "net.toml"
    path.write_text(network_text(network).replace('"host.nic.bandwidth"', f'"{name}"'))
    assert refused("simulate", "--network", path) == (
        f'ringsim: {path}: calibration.parameters[1] = "{name}": {hint}this network has no such parameter: correct it, '
        "or remove parameters and draws\n"
    )


def test_a_simulated_choice_of_nccl_has_one_too(tmp_path: Path, network: Cluster) -> None:
    """The interval is as wide as that of the formula; without a calibration there is none."""
    path = tmp_path / "net.toml"
    path.write_text(network_text(network))
    options = ("simulate", "--ranks", 64, "--size", "256MiB", "--network")
    found = as_json(*options, path)
    half = np.log(found["predicted_high_s"] / found["time_s"])
    assert half == pytest.approx(width(network, "all_reduce", LARGE, 64, 8), rel=1e-3)
    assert half == pytest.approx(np.log(found["time_s"] / found["predicted_low_s"]))
    assert "expected to 80%" in printed(*options, path)
    assert as_json(*options, "dgx-h100-cluster")["predicted_low_s"] is None


def test_what_the_logs_do_not_bound_is_said_in_words(tmp_path: Path, network: Cluster) -> None:
    """A share of 10**11 % tells nobody anything; parameters that are not known at all are drawn from a factor of 20."""
    calibration = network.calibration
    assert calibration is not None
    path, log = tmp_path / "net.toml", tmp_path / "a.log"
    wild = tuple(tuple(1e9 for _ in draw) for draw in calibration.draws)
    path.write_text(network_text(replace(network, calibration=replace(calibration, draws=wild))))
    log.write_text(nccl_log("all_reduce", 16, 2))
    text = printed("compare", log, "--network", path)
    assert "not bounded" in text
    assert not re.search(r"±\d{4,}%", text)
    assert "expected to 80%" in (text := printed("simulate", "--ranks", 64, "--size", "256MiB", "--network", path))
    assert "not bounded" in text
    path.write_text(network_text(network))
    assert "not bounded" not in printed("compare", log, "--network", path)


def test_a_parameter_that_the_logs_do_not_bound(tmp_path: Path) -> None:
    """Its interval is said in words, too; the others' have their ends."""
    fit = calibrate_logs(logs_of(tmp_path, TRUE, ("all_reduce", 16, 2)), "mine")
    bounded, *others = fit.parameters
    wide = replace(fit, parameters=(replace(bounded, low=bounded.value / 1e9, high=bounded.value * 1e9), *others))
    lines = format_fit(wide).splitlines()
    assert [line.split()[0] for line in lines if "not bounded" in line] == [bounded.name]
