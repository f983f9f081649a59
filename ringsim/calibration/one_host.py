"""`calibrate_host`: from probes to a `Cluster` of one host, whose ranks share its cores and its memory."""

import math
from dataclasses import replace

from ringsim.calibration.probe_times import cold_call_s, shift_s
from ringsim.calibration.shared_memory import shared_memory_of
from ringsim.calibration.uniform import fit_line, rate
from ringsim.measurements import Measurements, Probe
from ringsim.network import Cluster, Host, Link, Processor, Spec

EXPLAINED = 0.98  # of a time; what is missing of it is noise


def calibrate_host(measurements: Measurements, num_cores: int) -> Cluster:
    """Returns the host on which the probes would take the times, elapsed and of cores, that they took.

    A message takes cores `a + b m` at its two ends together: half at each, a as overheads, b as copying. An addition
    takes m/R. These three are fitted to the CPU times, which hardly depend on what else is going on. What is then
    missing from the elapsed time of the smallest message is latency; from that of the largest, the memory's doing. What
    a message takes longer by a call of its own is the call's. What goes through shared memory is `shared_memory_of`'s.

    Raises ValueError when probes are missing.
    """
    if measurements.num_ranks == 1:
        return _cluster(Host(cores=num_cores), Processor())
    cluster = _cluster(Host(cores=num_cores), processor_of(measurements))
    cluster = _with_waiting(cluster, measurements.num_ranks, measurements.probes_of("shift", in_flight=1))
    host = replace(cluster.spec.host, shared_memory=shared_memory_of(measurements, cluster))
    return _cluster(host, cluster.spec.processor)


def processor_of(measurements: Measurements) -> Processor:
    """Returns the seconds of cores that a message takes at its ends, and an addition, as overheads and rates.

    Raises ValueError if probes are missing.
    """
    messages, elapsed = (measurements.probes_of(kind, in_flight=1) for kind in ("shift_cpu", "shift"))
    additions = measurements.probes_of("reduce_cpu")
    if len(messages) < 2 or not additions or not elapsed:
        raise ValueError(
            "the measurements have too few shift, shift_cpu and reduce_cpu probes: measure again with the benchmark's "
            "--probes, as ringsim measure does"
        )
    per_message_s, per_byte_s = fit_line(messages)
    _, reduce_s_per_byte = fit_line(additions)
    fresh = measurements.probes_of("fresh_cpu")
    calls, torch_calls = measurements.probes_of("call"), measurements.probes_of("call/dist")
    return Processor(
        send_overhead_s=per_message_s / 2,
        receive_overhead_s=per_message_s / 2,
        reduce_bytes_per_s=rate(reduce_s_per_byte),
        copy_bytes_per_s=rate(per_byte_s / 2),
        first_touch_bytes_per_s=fresh[-1].size_bytes / fresh[-1].median_s if fresh else math.inf,
        call_s=max(calls[0].median_s - elapsed[0].median_s, 0.0) if calls else 0.0,
        torch_call_s=torch_calls[0].median_s if torch_calls else 0.0,
        cold_call_s=cold_call_s(measurements, "call"),
        cold_torch_call_s=cold_call_s(measurements, "call/dist"),
    )


def _with_waiting(cluster: Cluster, num_ranks: int, elapsed: list[Probe]) -> Cluster:
    """Return `cluster` with the latency and the memory bandwidth that make the elapsed times come out."""
    smallest, largest = elapsed[0], elapsed[-1]
    missing_s = smallest.median_s - shift_s(cluster, num_ranks, smallest.size_bytes)
    host = replace(cluster.spec.host, link=Link(latency_s=max(missing_s, 0.0)))
    cluster = _cluster(host, cluster.spec.processor)
    if shift_s(cluster, num_ranks, largest.size_bytes) >= EXPLAINED * largest.median_s:
        return cluster
    moved = host.copies * num_ranks * (largest.size_bytes - smallest.size_bytes)
    memory = moved / (largest.median_s - smallest.median_s)
    return _cluster(replace(host, memory_bytes_per_s=memory), cluster.spec.processor)


def _cluster(host: Host, processor: Processor) -> Cluster:
    return Cluster("host", Spec(host=host, processor=processor), "one host, calibrated", "measured")
