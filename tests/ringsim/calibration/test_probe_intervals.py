"""Between which times a prediction from probes may lie, by the network file alone, and when they lie too far apart."""

import json
import re
from pathlib import Path
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from ringsim.calibration import busy_warning, calibrate, compare
from ringsim.calibration.probe_times import shift_s
from ringsim.libraries import Call, SimulatedDraws, intervals
from ringsim.measurements.measurements import Measurements, Probe
from ringsim.network import Network, network_text, read_network
from tests.ringsim.commands import as_json, printed, refused, run
from tests.ringsim.made_probes import made_measurements

pytestmark = pytest.mark.usefixtures("twenty_draws")

LONG, SHORT = 2**23, 64
QUIET = (0.95, 1.0, 1.05, 0.97, 1.03, 1.0, 0.98, 1.02)
BUSY = (0.4, 1.6, 0.5, 1.5, 0.4, 1.7, 0.6, 1.4)


def probed(short: tuple[float, ...], long: tuple[float, ...] = QUIET) -> Measurements:
    """Probes of a host, whose shortest and longest messages take these multiples of their time."""
    made = made_measurements(num_ranks=2, num_cores=2)
    sizes = [probe.size_bytes for probe in made.probes_of("shift", in_flight=1)]
    factors = {min(sizes): short, max(sizes): long}

    def noisy(probe: Probe) -> Probe:
        times = factors.get(probe.size_bytes, QUIET) if probe.kind == "shift" else QUIET
        return replace(probe, times_s=tuple(probe.median_s * factor for factor in times))

    return replace(made, probes=tuple(map(noisy, made.probes)))


def network_of(measurements: Measurements) -> Network:
    """Return the network as it is read from its file."""
    return read_network(network_text(calibrate(measurements, "made").cluster), "made.toml")


def width(network: Network, size_bytes: int) -> float:
    """Return the end of the interval of a shift over its beginning."""
    draws, time_s = SimulatedDraws.from_network(network), shift_s(network, 2, size_bytes)
    interval = draws.interval(time_s, lambda some: shift_s(some, 2, size_bytes))
    assert interval.low < time_s < interval.high
    return interval.high / interval.low


def test_scatter_of_probes_widens_what_depends_on_them() -> None:
    """Long messages that vary make long ones uncertain, and short ones that vary short ones."""
    quiet, short, long = (network_of(probed(*blocks)) for blocks in ((QUIET, QUIET), (BUSY, QUIET), (QUIET, BUSY)))
    assert width(quiet, LONG) < 1.3 < width(long, LONG)
    assert width(short, LONG) < 1.3
    assert width(short, SHORT) > 1.3 * width(quiet, SHORT)
    by_formula = []
    for network in (quiet, short):  # formulas take the same parameters of the network as a simulation does
        host = replace(network.spec.host, link=replace(network.spec.host.link, bandwidth_bytes_per_s=1e9))
        [expected] = intervals(network.with_spec(host=host), [Call("all_reduce", SHORT, 2, 1)])
        by_formula.append(expected.high / expected.low)
    assert 1.0 < by_formula[0] < by_formula[1]


def test_probes_that_a_model_does_not_fit_widen_what_they_are_about() -> None:
    """Messages of a size to which nothing was fitted, which take half as long again as in the simulation."""
    made = probed(QUIET)
    between = {probe.size_bytes for probe in made.probes_of("shift", in_flight=1)} - {SHORT, LONG}
    unlike = list(made.probes)
    for number, probe in enumerate(made.probes):
        if probe.kind == "shift" and probe.size_bytes in between:
            unlike[number] = replace(probe, times_s=tuple(1.5 * time_s for time_s in probe.times_s))
    assert width(network_of(replace(made, probes=tuple(unlike))), LONG) > 1.2 * width(network_of(made), LONG)


def collectives(measurements: Measurements, time_s: float) -> Measurements:
    """Return them with a ring of 8 MiB that took so long."""
    ring = replace(measurements.collectives[0], size_bytes=LONG, times_s=(time_s,) * 5, rank_medians_s=(time_s,) * 2)
    return replace(measurements, collectives=(ring,))


def test_collectives_have_no_part_in_them() -> None:
    """The file is the same whatever these took; and it has sixteen draws, of nothing but what varies."""
    made = probed(BUSY)
    texts = [network_text(calibrate(some).cluster) for some in (made, collectives(made, 1.0))]
    assert texts[0] == texts[1]
    calibration = read_network(texts[0], "made.toml").calibration
    assert (len(calibration.draws), "host.link.latency" in calibration.parameters) == (16, True)
    assert all(len(set(of_parameter)) > 1 for of_parameter in zip(*calibration.draws, strict=True))


def test_the_command_shows_them(tmp_path: Path) -> None:
    """In the table and its summary, and as JSON; not of a file that has no draws.

    A time that is the predicted one lies within; one that is three times as long does not.
    """
    path, net = tmp_path / "measured.json", tmp_path / "net.toml"
    collectives(probed(QUIET), 0.01).save(path)
    run("calibrate", path, "-o", net)
    text = printed("compare", path, "--network", net)
    assert all(words in text for words in (" 80 %  ", " in their 80 %"))
    [cell] = as_json("compare", path, "--network", net)["cells"]
    assert cell["predicted_low_s"] < cell["predicted_s"] < cell["predicted_high_s"]
    known = read_network(net.read_text(), "net.toml")
    for times, inside in ((1, 1.0), (3, 0.0)):
        [row] = compare(collectives(probed(QUIET), times * cell["predicted_s"]), known).summary()
        assert row["inside"] == inside
    text = net.read_text()
    for name in ("host.nonsense", "host.shared_memory.latency"):
        net.write_text(text.replace('"host.link.latency"', f'"{name}"'))
        told = f'= "{name}": .*this network has no such parameter'
        assert re.search(told, refused("compare", path, "--network", net))
    net.write_text(text.partition("[calibration]")[0])
    assert " 80 %" not in printed("compare", path, "--network", net)


@pytest.mark.parametrize(("short", "long", "size"), [(BUSY, QUIET, "64 B"), (QUIET, BUSY, "8 MiB")])
def test_a_busy_machine_is_said(short: tuple[float, ...], long: tuple[float, ...], size: str) -> None:
    """With the message that varied most, how far, and what that does to predictions."""
    measurements = probed(short, long)
    told = "; measure again; from the noise of the probes alone predictions may be off by -.*"
    line = busy_warning(measurements, calibrate(measurements))
    assert re.fullmatch(f"this machine was busy: a message of {size} took .*{told}", line)


def test_calibrate_and_measure_say_it_last(tmp_path: Path) -> None:
    """In text as the last line, beside JSON on stderr; and of a quiet machine, or one rank alone, nothing."""
    file = tmp_path / "busy.json"
    probed(BUSY).save(file)
    line = printed("calibrate", file).splitlines()[-1]
    assert line.startswith("this machine was busy: ")
    result = run("calibrate", file, "--json")
    assert json.loads(result.stdout)["busy"] == result.stderr.strip() == line
    with patch("ringsim.console.run_local_ranks"):
        assert printed("measure", "-o", file) == f"{line}\n"
    for quiet in (probed(QUIET), Measurements(1, {"cores": 2})):
        quiet.save(tmp_path / "quiet.json")
        assert "busy" not in run("calibrate", tmp_path / "quiet.json").output
