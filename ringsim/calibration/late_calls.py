"""`with_late_calls`: the share of the calls in which a thread waits for a core, and for how long.

Most calls take about their median. Where threads share cores, some wait for one, mostly until the kernel's next tick,
and take several times as long. A median leaves them out; a step of many calls has some of them.
"""

import math
import statistics
from dataclasses import replace

from ringsim.calibration.probe_times import shift_s
from ringsim.measurements import Measurements
from ringsim.native import native_schedule
from ringsim.network import AnyNetwork, Cluster, without_shared_memory
from ringsim.schedule import Collective
from ringsim.simulation import GLOO, OURS, Runtime, predict_time

LATE = 2.0  # times the median


def with_late_calls(cluster: Cluster, measurements: Measurements) -> Cluster:
    """Return `cluster` with the late calls that the probes of calls after a computation have."""
    over_gloo = without_shared_memory(cluster)
    late_share, late_s = _late(measurements, "call/cold", over_gloo, OURS)
    torch_late_share, torch_late_s = _late(measurements, "call/dist/cold", over_gloo, GLOO)
    async_late_share, async_late_s = (
        _late(measurements, "shm/call/async", cluster, OURS, is_async=True)
        if measurements.probes_of("shm/call/async")
        else _late(measurements, "call/async", over_gloo, OURS, is_async=True)
    )
    processor = replace(
        cluster.spec.processor,
        late_share=late_share,
        late_s=late_s,
        torch_late_share=torch_late_share,
        torch_late_s=torch_late_s,
        async_late_share=async_late_share,
        async_late_s=async_late_s,
    )
    host = cluster.spec.host
    if host.shared_memory is not None:
        late_share, late_s = _late(measurements, "shm/call/cold", cluster, OURS)
        host = replace(host, shared_memory=replace(host.shared_memory, late_share=late_share, late_s=late_s))
    return cluster.with_spec(host=host, processor=processor)


def _late(
    measurements: Measurements, kind: str, network: AnyNetwork, runtime: Runtime, *, is_async: bool = False
) -> tuple[float, float]:
    """Return the share of the probed calls that took more than twice their median, and how much longer they take.

    That is what they took longer than the median on average. It is less if simulated calls would then take longer than
    the probed ones on average: where ranks are more than cores, the probes of messages have waits of their own.
    """
    probe = next(iter(measurements.probes_of(kind)), None)
    late = [time_s for time_s in probe.times_s if time_s > LATE * probe.median_s] if probe else []
    if probe is None or not late:
        return 0.0, 0.0
    share = len(late) / len(probe.times_s)
    simulated_s = runtime.call_s(network, computed_s=math.inf, is_async=is_async)
    num_ranks, size_bytes = measurements.num_ranks, probe.size_bytes
    if runtime.is_torch:
        ring = native_schedule(Collective.ALL_REDUCE, num_ranks, size_bytes)
        simulated_s += predict_time(ring, network, size_bytes, runtime=runtime)
    else:
        simulated_s += shift_s(runtime.network(network), num_ranks, size_bytes)
    lacking_s = statistics.fmean(probe.times_s) - simulated_s
    late_s = min(statistics.fmean(late) - probe.median_s, lacking_s / share)
    return (share, late_s) if late_s > 0 else (0.0, 0.0)
