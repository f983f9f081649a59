"""When probes lie too far apart for a prediction, and what is said then."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from ringsim.calibration.from_probes import TOO_WIDE, busy_line, calibrate, probe_noise
from ringsim.measurements.measurements import Measurements, Probe
from tests.ringsim.commands import printed, run
from tests.ringsim.made_probes import made_measurements

pytestmark = pytest.mark.usefixtures("twenty_draws")

QUIET = (0.95, 1.0, 1.05, 0.97, 1.03, 1.0, 0.98, 1.02)
BUSY = (0.4, 1.6, 0.5, 1.5, 0.4, 1.7, 0.6, 1.4)


def measured(short: tuple[float, ...], long: tuple[float, ...] = QUIET) -> Measurements:
    """Probes of a host, whose shortest and longest messages take these multiples of their time."""
    made = made_measurements(num_ranks=2, num_cores=2)
    sizes = [probe.size_bytes for probe in made.probes_of("shift", in_flight=1)]
    factors = {min(sizes): short, max(sizes): long}

    def noisy(probe: Probe) -> Probe:
        times = factors.get(probe.size_bytes, QUIET) if probe.kind == "shift" else QUIET
        return replace(probe, times_s=tuple(probe.median_s * factor for factor in times))

    return replace(made, probes=tuple(map(noisy, made.probes)))


def test_a_quiet_machine_is_not_complained_of() -> None:
    """Blocks a few per cent apart move no prediction by as much as the model's own error may be."""
    measurements = measured(QUIET)
    fit = calibrate(measurements)
    noise = probe_noise(measurements, fit)
    assert noise is not None
    assert noise.predicted.largest_error < TOO_WIDE
    assert busy_line(measurements, fit) == ""


@pytest.mark.parametrize(("short", "long", "size"), [(BUSY, QUIET, "64 B"), (QUIET, BUSY, "8 MiB")])
def test_a_busy_machine_is_said(short: tuple[float, ...], long: tuple[float, ...], size: str) -> None:
    """With the message that varied most, how far, and what that does to predictions."""
    measurements = measured(short, long)
    line = busy_line(measurements, calibrate(measurements))
    assert line.startswith(f"this machine was busy: a message of {size} took ")
    assert "; measure again; from the noise of the probes alone predictions may be off by -" in line
    assert "\n" not in line


def test_one_rank_alone_sends_nothing() -> None:
    """So there is nothing that could vary."""
    measurements = Measurements(1, {"cores": 2})
    assert busy_line(measurements, calibrate(measurements)) == ""


def test_calibrate_and_measure_say_it_last(tmp_path: Path) -> None:
    """In text as the last line, beside JSON on stderr; and of a quiet machine nothing."""
    file = tmp_path / "busy.json"
    measured(BUSY).save(file)
    line = printed("calibrate", file).splitlines()[-1]
    assert line.startswith("this machine was busy: ")
    result = run("calibrate", file, "--json")
    assert json.loads(result.stdout)["busy"] == result.stderr.strip() == line
    measured(QUIET).save(tmp_path / "quiet.json")
    assert "busy" not in run("calibrate", tmp_path / "quiet.json").output
    with patch("ringsim.cli.commands.measure.run_local_ranks"):
        assert printed("measure", "-o", file) == f"{line}\n"
