"""Between which times a prediction from logs may lie; test_probe_intervals.py is about those from probes."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from ringsim.calibration import calibrate_logs, compare_logs, nic_warning
from ringsim.estimates import Estimate
from ringsim.libraries import Call, CallColumns, intervals, noises, times_s
from ringsim.network import Network, Nics, network_text
from ringsim.report import format_comparison, format_fit
from tests.ringsim.commands import as_json, printed, refused, written
from tests.ringsim.made_logs import TRUE, fitted, logs_of, nccl_log

pytestmark = pytest.mark.usefixtures("one_start")

LARGE = 2**28
HERE = ("all_gather", LARGE, 16, 2)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """Of two hosts, as it is read from the file."""
    return fitted(logs_of(tmp_path_factory.mktemp("logs"), TRUE, ("all_gather", 16, 2), ("all_reduce", 16, 2)))


def ends(network: Network, *call: object) -> Estimate:
    """The interval of one collective."""
    return intervals(network, [Call(*call)])[0]  # type: ignore[arg-type]


def width(network: Network, *call: object) -> float:
    """The logarithm of the end of an interval over its prediction, which lies in the middle."""
    interval = ends(network, *call)
    half: float = np.log(interval.high / interval.value)
    assert half == pytest.approx(np.log(interval.value / interval.low))
    return half


def with_calibration(network: Network, **changes: object) -> Network:
    """Return the network with another calibration; ratio: of all parameters in all draws."""
    if "ratio" in changes:
        changes["draws"] = tuple(tuple(changes["ratio"] for _ in draw) for draw in network.calibration.draws)
        del changes["ratio"]
    return replace(network, calibration=structs.replace(network.calibration, **changes))  # type: ignore[arg-type]


def test_what_was_calibrated_is_known_best(network: Network) -> None:
    """Then other hosts and collectives, of these large sizes better than small ones.

    Noise of the logs and uncertain parameters widen intervals; draws that are all alike leave the noise alone.
    """
    here = width(network, *HERE)
    assert 0.05 < here < width(network, "all_gather", LARGE, 64, 8) < width(network, "all_gather", 2**12, 64, 8)
    assert width(network, "reduce_scatter", LARGE, 16, 2) > here
    sure = width(with_calibration(network, ratio=1.0), *HERE)
    assert sure == pytest.approx(1.2816 * network.calibration.noise)
    assert sure < here < width(with_calibration(network, noise=0.3), *HERE)
    assert intervals(replace(network, calibration=None), [Call(*HERE)]) == []


def test_four_of_five_held_out_times_lie_within(tmp_path: Path, network: Network) -> None:
    """Of the same cluster with the noise that is believed, more; twice as long ones do not.

    An interval of a factor of three is shown with both of its ends; a small one is about the same in both directions.
    """
    cases = logs_of(tmp_path, TRUE, ("reduce_scatter", 16, 2), ("all_gather", 64, 8))
    comparison = compare_logs(cases, network)
    assert all(row["inside"] > 0.7 for row in comparison.summary())
    slow = [replace(case, times_s=tuple(2 * time_s for time_s in case.times_s)) for case in cases]
    assert {row["inside"] for row in compare_logs(slow, network).summary() if row["sizes"] == ">= 1 MiB"} == {0.0}
    for factor, shown in ((1.1, " ±10% "), (3.0, " -67% +200% ")):
        off_by = Estimate(1.0, 1 / factor, factor)
        wide = [replace(case, interval=off_by.map(case.predicted_s.__mul__)) for case in comparison.cases]
        assert format_comparison(replace(comparison, cases=tuple(wide))).count(shown) == len(wide) > 0


def test_the_commands_show_them(tmp_path: Path) -> None:
    """In the table, its summary, as JSON; with what is extrapolated, and which log would tell more.

    A lopsided one is shown with both of its ends.
    """
    known = written(tmp_path / "known.log", nccl_log("all_gather", 2, 2, noise=0.01))
    asked, net = written(tmp_path / "asked.log", nccl_log("all_gather", 16, 8, noise=0.01)), tmp_path / "net.toml"
    told = as_json("calibrate", known, "-o", net)
    assert "a log of all_reduce from 8 bytes on" in told["undecided"] or "would determine more" in told["undecided"]
    text, last = printed("compare", asked, "--network", net), as_json("compare", asked, "--network", net)["cells"][-1]
    assert last["predicted_low_s"] < last["predicted_s"] < last["predicted_high_s"]
    shorter, longer = (last[f"predicted_{end}_s"] / last["predicted_s"] - 1 for end in ("low", "high"))
    assert longer > 2 * -shorter > 0
    for shown in (" 80 %  ", " in their 80 %", "extrapolated: calibrated on 2 hosts, predicted for 8",
                  f" {shorter:+.0%} {longer:+.0%} "):  # fmt: skip
        assert shown in text
    assert "extrapolated" not in printed("compare", known, "--network", net)
    forced = ("compare", known, "--network", net, "--nccl-proto", "Simple", "--nccl-algo")
    assert {cell["predicted_by"] for cell in as_json(*forced, "ring")["cells"]} == {"ring Simple"}
    assert "'rng': 'rng' must be one of ring, tree, " in refused(*forced, "rng")


def test_a_guess_of_nics_is_in_the_interval(tmp_path: Path) -> None:
    """From one rank of a host or from four to two: whether each has a NIC, or all share those that were seen."""
    for known, num_nics in ((1, 1), (1, 2), (4, 1), (4, 4)):
        # So that the logs, which are the same but for the NICs, always see a host with 4 GB/s.
        true = replace(TRUE, num_nics=num_nics, nic_bytes_per_s=4e9 / min(known, num_nics))
        low, high = ends(fitted(logs_of(tmp_path, true, ("all_gather", 4 * known, 4))), "all_gather", LARGE, 8, 4).ends
        [true_s] = times_s(true, CallColumns.from_calls([Call("all_gather", LARGE, 8, 4)]))
        assert low < true_s < high, (known, num_nics)
        assert high / low > 2


def test_nics_that_are_known_are_not_in_the_interval(tmp_path: Path) -> None:
    """By as many senders, by logs of several numbers of them, or by --nic: it then lies around the prediction."""
    one, call = logs_of(tmp_path, TRUE, ("all_gather", 4, 4)), ("all_gather", LARGE, 8, 4)
    by_one, by_both = fitted(one), fitted([*one, *logs_of(tmp_path, TRUE, ("all_gather", 12, 4))])
    given = calibrate_logs(one, "mine", Nics(0.0, TRUE.nic_bytes_per_s, count=3)).cluster
    assert max(width(by_both, *call), width(given, *call), width(by_one, "all_gather", LARGE, 8, 8)) < 0.2
    assert nic_warning(by_both, 2) == nic_warning(given, 2) == ""
    for network, known, senders in ((by_one, "1 rank", 2), (by_both, "3 ranks", 8)):
        told = f"send from {known} of a host at a time; how fast {senders} ranks of a host can send is not known"
        assert told in nic_warning(network, senders)
    of_one, of_three = by_both.calibration.cells
    cells = structs.replace(of_one, collective="broadcast"), of_three  # of which one does not tell how many NICs it has
    assert nic_warning(with_calibration(by_both, cells=cells), 1) == ""


def test_noise_holds_four_of_five_residuals_whatever_their_shape() -> None:
    """A half that is far off counts, and a tenth does not; where bytes take the time it is apart from latencies."""
    bytes_take_it = np.repeat([1.0, 0.0], 20)
    half_off = np.concatenate([np.tile([0.01, -1.4], 10), np.tile([0.1, -0.1], 10)])
    noise, latency_noise = noises(half_off, bytes_take_it)
    assert (1.2816 * noise, 1.2816 * latency_noise) == (pytest.approx(1.4, rel=1e-3), pytest.approx(0.1, rel=1e-3))
    tenth_off = np.concatenate([[3.0, 3.0], np.full(18, 0.1), np.full(20, 0.1)])
    assert noises(tenth_off, bytes_take_it)[0] == pytest.approx(0.1 / 1.2816, rel=1e-3)
    assert noises(half_off[:20], np.ones(20), least=0.05)[1] == noise  # nothing tells it apart
    assert noises(np.zeros(9), np.ones(9), least=0.05) == (0.05, 0.05)


def test_logs_that_contradict_each_other_in_bytes_widen_what_bytes_take(tmp_path: Path) -> None:
    """Also if they are of different hosts, so that no timing is there twice: by most of the factor between them."""
    slow = replace(TRUE, nic_bytes_per_s=TRUE.nic_bytes_per_s / 4)
    fast_two, fast_eight = (logs_of(tmp_path, TRUE, ("all_gather", *shape)) for shape in ((16, 2), (64, 8)))
    network = fitted([*fast_two, *logs_of(tmp_path, slow, ("all_gather", 64, 8))])
    assert width(network, *HERE) > 0.85 * np.log(4)
    assert width(fitted([*fast_two, *fast_eight]), *HERE) < 0.1
    assert network.calibration.latency_noise < network.calibration.noise / 2


OTHER_PARAMETERS = [
    ('["host.link.bandwidth", ', "[", "draws[0]: 19 numbers for 18 parameters: give one each"),
    ('"host.nic.bandwidth"', '"host.nic.bandwith"', '[1] = "host.nic.bandwith": did you mean host.nic.bandwidth? '
     "this network has no such parameter: correct it, or remove parameters and draws"),
    ('"host.nic.bandwidth"', '"x"', 'calibration.parameters[1] = "x": this network has no such parameter'),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), OTHER_PARAMETERS)
def test_draws_of_other_parameters(tmp_path: Path, network: Network, old: str, new: str, message: str) -> None:
    """With the place and the name, as they would change nothing; each parameter has a number in each draw."""
    path = written(tmp_path / "net.toml", network_text(network).replace(old, new))
    assert message in refused("simulate", "--network", path)


def test_a_simulated_choice_of_nccl_has_one_too(tmp_path: Path, network: Network) -> None:
    """The interval is as wide as the formula's; without a calibration, or in a run that never ends, there is none."""
    path = written(tmp_path / "net.toml", network_text(network))
    options = ("simulate", "--ranks", 64, "--size", "256MiB", "--network")
    found = as_json(*options, path)
    half = np.log(found["predicted_high_s"] / found["time_s"])
    assert half == pytest.approx(width(network, "all_reduce", LARGE, 64, 8), rel=1e-3)
    assert half == pytest.approx(np.log(found["time_s"] / found["predicted_low_s"]))
    assert "expected to 80%" in printed(*options, path)
    assert as_json(*options, "dgx-h100-cluster")["predicted_low_s"] is None
    path.write_text(f'{path.read_text()}\n[[failure]]\nlink = "host0.nic0.out"\n')
    never = as_json(*options, path)
    assert (never["time_s"], never["predicted_low_s"], never["predicted_high_s"]) == (None, None, None)


def test_what_the_logs_do_not_bound_is_said_in_words(tmp_path: Path, network: Network) -> None:
    """A share of 10**11 % tells nobody anything; parameters that are not known at all are drawn from a factor of 20."""
    path = written(tmp_path / "net.toml", network_text(with_calibration(network, ratio=1e9)))
    log = written(tmp_path / "a.log", nccl_log("all_reduce", 16, 2))
    for command in (("compare", log), ("simulate", "--ranks", 64, "--size", "256MiB")):
        text = printed(*command, "--network", path)
        assert "not bounded" in text
        assert not re.search(r"±\d{4,}%", text)
    path.write_text(network_text(network))
    assert "not bounded" not in printed("compare", log, "--network", path)
    fit = calibrate_logs(logs_of(tmp_path, TRUE, ("all_reduce", 16, 2)), "mine")
    bounded, *others = fit.parameters
    wide = replace(fit, parameters=(replace(bounded, low=bounded.value / 1e9, high=bounded.value * 1e9), *others))
    lines = format_fit(wide).splitlines()
    assert [line.split()[0] for line in lines if "not bounded" in line] == [bounded.name]
