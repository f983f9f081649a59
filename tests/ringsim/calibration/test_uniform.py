"""From probes to a network, and their file."""

import math

import pytest

from ringsim import Network
from ringsim.calibration.hosts import calibrate_uniform
from ringsim.measurements.measurements import Measurements, Probe

TRUE = Network(latency_s=30e-6, bandwidth_bytes_per_s=2e9, reduce_bytes_per_s=8e9, gap_s=12e-6)


def probes_of(network: Network, noise: tuple[float, ...] = (1.0,)) -> list[Probe]:
    """Return the probes of `network`, each measured several times with the factors of `noise`."""
    alpha = network.latency_s + network.gap_s
    times = [("shift", size, 1, alpha + size / network.bandwidth_bytes_per_s) for size in (64, 4096, 2**17, 2**20)]
    times += [("shift", 64, 4, alpha + 64 / network.bandwidth_bytes_per_s + 3 * network.gap_s)]
    times += [("reduce", size, 1, size / network.reduce_bytes_per_s) for size in (4096, 2**20)]
    return [Probe(kind, size, k, tuple(time * factor for factor in noise)) for kind, size, k, time in times]


def measured(probes: list[Probe], num_ranks: int = 4) -> Measurements:
    """The measurements that hold `probes`."""
    return Measurements(num_ranks, {"machine": "made up"}, tuple(probes))


@pytest.mark.parametrize("noise", [(1.0,), (0.9, 1.0, 1.1, 1.0, 30.0)], ids=["exact", "with outliers"])
def test_calibration_finds_the_network(noise: tuple[float, ...]) -> None:
    """All four parameters come back, also when one time in five is far off."""
    network = calibrate_uniform(measured(probes_of(TRUE, noise)))
    assert network.latency_s == pytest.approx(TRUE.latency_s, rel=1e-3)
    assert network.gap_s == pytest.approx(TRUE.gap_s, rel=1e-3)
    assert network.bandwidth_bytes_per_s == pytest.approx(TRUE.bandwidth_bytes_per_s, rel=1e-3)
    assert network.reduce_bytes_per_s == pytest.approx(TRUE.reduce_bytes_per_s, rel=1e-3)


def test_times_that_do_not_grow_give_no_bandwidth() -> None:
    """Where noise hides the size, the bandwidth is infinite and the latency the median; never a negative rate."""
    flat = [Probe("shift", size, 1, (time,)) for size, time in ((64, 3e-3), (4096, 2e-3), (2**20, 1e-3))]
    burst = [Probe("shift", 64, 4, (1e-3,)), Probe("reduce", 64, 1, (1e-6,)), Probe("reduce", 4096, 1, (2e-6,))]
    network = calibrate_uniform(measured(flat + burst))
    assert (network.bandwidth_bytes_per_s, network.latency_s, network.gap_s) == (math.inf, 2e-3, 0.0)


def test_a_single_rank_has_a_free_network() -> None:
    """It sends nothing."""
    assert calibrate_uniform(measured([], num_ranks=1)).bandwidth_bytes_per_s == math.inf


@pytest.mark.parametrize("kind", ["shift", "reduce"])
def test_missing_probes_are_named(kind: str) -> None:
    """The message says which, how many are needed, and what to do."""
    probes = [probe for probe in probes_of(TRUE) if probe.kind != kind]
    with pytest.raises(ValueError, match=f"too few {kind} probes.* sizes are needed; run the probe again"):
        calibrate_uniform(measured(probes))
