"""From probes to a network, and their file."""

import json
import math
from pathlib import Path

import pytest

from ringsim import Network
from ringsim.calibrate import calibrate
from ringsim.measurements import Measurements, Probe
from ringsim.spread import tenths

TRUE = Network(latency_s=30e-6, bandwidth_bytes_per_s=2e9, reduce_bytes_per_s=8e9, send_overhead_s=12e-6)


def probes_of(network: Network, noise: tuple[float, ...] = (1.0,)) -> list[Probe]:
    """What probes would measure on `network`, each several times with the factors of `noise`."""
    alpha = network.latency_s + network.send_overhead_s
    times = [("shift", size, 1, alpha + size / network.bandwidth_bytes_per_s) for size in (64, 4096, 2**17, 2**20)]
    times += [("shift", 64, 4, alpha + 64 / network.bandwidth_bytes_per_s + 3 * network.send_overhead_s)]
    times += [("reduce", size, 1, size / network.reduce_bytes_per_s) for size in (4096, 2**20)]
    return [Probe(kind, size, k, tuple(time * factor for factor in noise)) for kind, size, k, time in times]


def measured(probes: list[Probe], num_ranks: int = 4) -> Measurements:
    """The measurements that hold `probes`."""
    return Measurements(num_ranks, {"machine": "made up"}, tuple(probes))


@pytest.mark.parametrize("noise", [(1.0,), (0.9, 1.0, 1.1, 1.0, 30.0)], ids=["exact", "with outliers"])
def test_calibration_finds_the_network(noise: tuple[float, ...]) -> None:
    """All four parameters come back, also when one time in five is far off."""
    network = calibrate(measured(probes_of(TRUE, noise)))
    assert network.latency_s == pytest.approx(TRUE.latency_s, rel=1e-3)
    assert network.send_overhead_s == pytest.approx(TRUE.send_overhead_s, rel=1e-3)
    assert network.bandwidth_bytes_per_s == pytest.approx(TRUE.bandwidth_bytes_per_s, rel=1e-3)
    assert network.reduce_bytes_per_s == pytest.approx(TRUE.reduce_bytes_per_s, rel=1e-3)


def test_times_that_do_not_grow_give_no_bandwidth() -> None:
    """Where noise hides the size, the bandwidth is infinite and the latency the median; never a negative rate."""
    flat = [Probe("shift", size, 1, (time,)) for size, time in ((64, 3e-3), (4096, 2e-3), (2**20, 1e-3))]
    burst = [Probe("shift", 64, 4, (1e-3,)), Probe("reduce", 64, 1, (1e-6,)), Probe("reduce", 4096, 1, (2e-6,))]
    network = calibrate(measured(flat + burst))
    assert (network.bandwidth_bytes_per_s, network.latency_s, network.send_overhead_s) == (math.inf, 2e-3, 0.0)


def test_a_single_rank_has_a_free_network() -> None:
    """It sends nothing."""
    assert calibrate(measured([], num_ranks=1)).bandwidth_bytes_per_s == math.inf


@pytest.mark.parametrize("kind", ["shift", "reduce"])
def test_missing_probes_are_named(kind: str) -> None:
    """The message says which, how many are needed, and what to do."""
    probes = [probe for probe in probes_of(TRUE) if probe.kind != kind]
    with pytest.raises(ValueError, match=f"too few {kind} probes.* sizes are needed; run the probe again"):
        calibrate(measured(probes))


def test_measurements_survive_their_file(tmp_path: Path) -> None:
    """Written and read again they are equal."""
    path = tmp_path / "measurements.json"
    measurements = measured(probes_of(TRUE))
    measurements.save(path)
    assert Measurements.load(path) == measurements


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "not a ringsim-measurements file"),
        (
            '{"format": "ringsim-measurements", "version": 9}',
            "version 9 of ringsim-measurements: .* reads versions up to 3",
        ),
        ('{"format": "ringsim-measurements", "version": 2}', "a field is missing or unknown: 'probes'"),
        ('{"format": ', "Expecting value"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """The message names the file and what is wrong with it."""
    path = tmp_path / "measurements.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"measurements\.json: {message}"):
        Measurements.load(path)


def test_a_failing_write_leaves_the_old_file(tmp_path: Path) -> None:
    """JSON has no NaN: nothing is written, nothing is left over."""
    path = tmp_path / "measurements.json"
    measured(probes_of(TRUE)).save(path)
    before = path.read_text()
    with pytest.raises(ValueError, match="JSON compliant"):
        measured([Probe("shift", 64, 1, (math.nan,))]).save(path)
    assert path.read_text() == before
    assert json.loads(before)["num_ranks"] == 4
    assert list(tmp_path.iterdir()) == [path]


def test_tenths() -> None:
    """Of 0..10 a tenth lies up to 1 and a tenth from 9; a single time is both."""
    assert tenths([float(value) for value in range(11)]) == (1.0, 9.0)
    assert tenths([5.0]) == (5.0, 5.0)
    with pytest.raises(ValueError, match="at least one"):
        tenths([])
