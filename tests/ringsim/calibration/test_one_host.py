"""From CPU times and elapsed times to a host whose ranks share its cores."""

import pytest

from ringsim.calibration.hosts import calibrate_host
from ringsim.calibration.probe_times import shift_s
from ringsim.measurements.measurements import Measurements, Probe
from ringsim.network.cluster import Cluster
from ringsim.network.spec import Host, Link, Processor, Spec
from ringsim.simulation import GLOO, OURS

TRUE = Processor(send_overhead_s=50e-6, receive_overhead_s=50e-6, reduce_bytes_per_s=10e9, copy_bytes_per_s=4e9)
SIZES = (64, 4096, 2**17, 2**21)


def measured_on(cluster: Cluster, num_ranks: int, sizes: tuple[int, ...] = SIZES) -> Measurements:
    """What probes would measure on `cluster`."""
    processor = cluster.spec.processor
    overheads = processor.send_overhead_s + processor.receive_overhead_s
    probes = [Probe("shift", size, 1, (shift_s(cluster, num_ranks, size),)) for size in sizes]
    probes += [Probe("shift_cpu", size, 1, (overheads + 2 * size / processor.copy_bytes_per_s,)) for size in sizes]
    probes += [Probe("reduce_cpu", size, 1, (size / processor.reduce_bytes_per_s,)) for size in sizes]
    return Measurements(num_ranks, {}, tuple(probes))


@pytest.mark.parametrize("num_ranks", [2, 4, 7])
@pytest.mark.parametrize("memory", [float("inf"), 3e9])
def test_calibration_finds_the_host(num_ranks: int, memory: float) -> None:
    """Overheads, copying, adding, latency, and the memory's bandwidth where that is what limits."""
    host = Host(cores=2, memory_bytes_per_s=memory, link=Link(latency_s=200e-6))
    found = calibrate_host(measured_on(Cluster("true", Spec(host=host, processor=TRUE)), num_ranks), 2).spec
    for field in ("send_overhead_s", "receive_overhead_s", "reduce_bytes_per_s", "copy_bytes_per_s"):
        assert getattr(found.processor, field) == pytest.approx(getattr(TRUE, field), rel=1e-6)
    assert found.host.link.latency_s == pytest.approx(200e-6, rel=1e-2)
    assert found.host.memory_bytes_per_s == pytest.approx(memory, rel=0.05)


def test_what_a_call_takes_beside_its_message() -> None:
    """Of ours what is more than the message's own; of torch's all, since nothing is sent; without probes nothing."""
    measurements = measured_on(Cluster("true", Spec(host=Host(cores=2), processor=TRUE)), 4)
    message_s = measurements.probes_of("shift")[0].median_s
    calls = Probe("call", 64, 1, (message_s + 3e-4,)), Probe("call/dist", 64, 1, (2e-4,))
    found = calibrate_host(Measurements(4, {}, measurements.probes + calls), 2)
    own_s, native_s = (runtime.call_s(found) for runtime in (OURS, GLOO))
    assert (own_s, native_s) == pytest.approx((3e-4, 2e-4))
    quick = Probe("call", 64, 1, (message_s / 2,))
    quicker = calibrate_host(Measurements(4, {}, (*measurements.probes, quick)), 2)
    assert OURS.call_s(quicker) == 0.0
    assert GLOO.call_s(calibrate_host(measurements, 2)) == 0.0


def test_what_a_call_takes_longer_after_a_computation() -> None:
    """Of ours and of torch's: what it takes after a walk through memory less what it takes without one."""
    measurements = measured_on(Cluster("true", Spec(host=Host(cores=2), processor=TRUE)), 4)
    times = {"call/warm": 2e-4, "call/cold": 5e-4, "call/dist/warm": 1e-4, "call/dist/cold": 3e-4}
    probes = tuple(Probe(kind, 64, 1, (time_s,)) for kind, time_s in times.items())
    found = calibrate_host(Measurements(4, {}, measurements.probes + probes), 2)
    cold = [runtime.call_s(found, cold=True) for runtime in (OURS, GLOO)]
    assert cold == pytest.approx([3e-4, 2e-4])
    assert GLOO.call_s(found) == 0.0


def test_the_elapsed_times_come_out() -> None:
    """Those of the smallest and the largest message, which is what latency and memory are there for."""
    host = Host(cores=2, memory_bytes_per_s=2e9, link=Link(latency_s=1e-3))
    measurements = measured_on(Cluster("true", Spec(host=host, processor=TRUE)), 4)
    found = calibrate_host(measurements, 2)
    elapsed = measurements.probes_of("shift")
    for probe in (elapsed[0], elapsed[-1]):
        assert shift_s(found, 4, probe.size_bytes) == pytest.approx(probe.median_s, rel=0.05)


def test_missing_probes_are_named() -> None:
    """Those of elapsed times too; a rank alone needs none."""
    all_probes = measured_on(Cluster("true", Spec(host=Host(cores=2), processor=TRUE)), 2).probes
    for missing in ("shift", "shift_cpu", "reduce_cpu"):
        probes = tuple(probe for probe in all_probes if probe.kind != missing)
        with pytest.raises(ValueError, match="^the measurements have too few shift, shift_cpu and reduce_cpu probes"):
            calibrate_host(Measurements(2, {}, probes), 2)
    assert calibrate_host(Measurements(1, {}, ()), 2).spec.host.cores == 2
