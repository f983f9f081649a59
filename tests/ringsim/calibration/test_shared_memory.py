"""From probes to a host whose ranks share memory, and predictions on it beside what was measured."""

import re

import numpy as np
import pytest
from msgspec.structs import replace

from ringsim import Collective, Network, calibrate, compare
from ringsim.calibration import ProbeModel, calibrate_host
from ringsim.calibration.probe_times import shift_s
from ringsim.libraries import GLOO, OURS
from ringsim.measurements.measurements import ROUNDS_PER_RUN, CollectiveTimes, Measurements, Probe
from ringsim.network import MemoryRate, SharedMemory, network_text, read_network
from ringsim.network.cluster_topology import rate_at
from ringsim.registry import build
from ringsim.report.calibration_table import format_probe_fit
from ringsim.simulation import predict_time
from tests.ringsim.made_probes import BLOCKS, made_measurements, one_host

SLOT, TOUCHED = 2**22, 2**26
SIZES = (64, 2**15, 2**19)
RATES = (MemoryRate(2**18, 12e9, 10e9, 8e9, 20e9, 16e9, 15e9), MemoryRate(SLOT, 6e9, 5e9, 4e9, 9e9, 8e9, 7e9))
TRUE = SharedMemory(SLOT, TOUCHED, 4e-6, 4e-6, 15e-6, 10e-6, 2e-4, 0.25, 4e-3, RATES)


def true_cluster(num_cores: int) -> Network:
    """The host that the probes are to find."""
    cluster = one_host(num_cores)
    return cluster.with_spec(host=replace(cluster.spec.host, shared_memory=TRUE))


def measured(num_ranks: int, num_cores: int = 2, transport: str = "shm") -> Measurements:
    """Probes on it, and all_reduces that took what it says."""
    waiting = max(1.0, num_ranks / num_cores)
    message_s = shift_s(true_cluster(num_cores), num_ranks, 64, OURS.runtime)
    call_s = message_s + TRUE.call_s
    cold_s = call_s + TRUE.cold_call_s
    times = [("shm/call", 64, call_s), ("shm/call/warm", 64, call_s)]
    for size in SIZES:
        for suffix, touched in (("", TOUCHED), ("/cached", 1)):
            rate = rate_at(TRUE, ROUNDS_PER_RUN * size, touched)
            copy_s, add_s = size / rate.copy_bytes_per_s, size / rate.reduce_bytes_per_s
            pass_s = size / rate.reduce_into_bytes_per_s + copy_s * (1 + 7 / num_ranks) / ROUNDS_PER_RUN
            if size == SIZES[0]:
                copy_s = add_s = pass_s = 0.0  # as the smallest are taken to have overheads only
            times.append((f"shm/shift{suffix}", size, message_s + waiting * pass_s))
            times.append((f"shm/copy{suffix}", size, waiting * (8e-6 + 2 * copy_s)))
            times.append((f"shm/add{suffix}", size, waiting * (8e-6 + copy_s + add_s)))
    probes = [Probe(kind, size, 1, tuple(s * factor for factor in BLOCKS)) for kind, size, s in times]
    probes.append(Probe("shm/call/cold", 64, 1, (cold_s, cold_s, cold_s, cold_s + TRUE.late_s)))
    base = made_measurements(num_ranks, num_cores)
    sizes = {"shared_memory_slot_bytes": SLOT, "shared_memory_touched_bytes": TOUCHED, "transport": transport}
    runs = tuple(all_reduce(num_cores, num_ranks, size) for size in (2**16, 2**20, 2**24))
    return replace(base, provenance=base.provenance | sizes, probes=(*base.probes, *probes), collectives=runs)


def all_reduce(num_cores: int, num_ranks: int, size: int) -> CollectiveTimes:
    """The times of one by a ring, of the same tensor again and again."""
    runtime = OURS.over("shm", touched_bytes=size).runtime
    ring = build(Collective.ALL_REDUCE, "ring", num_ranks)
    time_s = TRUE.call_s + predict_time(ring, true_cluster(num_cores), size, runtime=runtime)
    times, zeros = (time_s,) * 5, (0.0,) * 5
    return CollectiveTimes(
        Collective.ALL_REDUCE, "ring", size, "float32", "sum", num_ranks, True, 0, 1,
        times, zeros, (0,) * 5, (time_s,) * num_ranks,
    )  # fmt: skip


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize(("num_ranks", "num_cores"), [(2, 2), (4, 2), (4, 16)])
def test_calibration_finds_the_host(num_ranks: int, num_cores: int) -> None:
    """Overheads, latency, call and all rates, whether ranks have cores of their own or take turns."""
    fit = calibrate(measured(num_ranks, num_cores))
    found = fit.cluster.spec.host.shared_memory
    assert (found.slot_bytes, found.touched_bytes) == (SLOT, TOUCHED)
    for name in ("send_overhead_s", "receive_overhead_s", "latency_s", "call_s", "cold_call_s", "late_share", "late_s"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-3), name
    for rate, true in zip(found.rates, TRUE.rates, strict=True):
        columns = [[getattr(one, name) for name in MemoryRate.__struct_fields__] for one in (rate, true)]
        np.testing.assert_allclose(*columns, rtol=1e-6)
    assert fit.parameters["host.shared_memory.latency"].value == pytest.approx(TRUE.latency_s, rel=1e-3)
    assert set(fit.parameters) <= set(fit.probes)


@pytest.mark.usefixtures("few_draws")
def test_what_was_measured_is_predicted() -> None:
    """On the network as it is read from its file; over Gloo by what that says of it; where it is silent not at all."""
    cluster = read_network(network_text(calibrate(measured(4)).cluster), "mine.toml")
    comparison = compare(measured(4), cluster)
    assert [case.error for case in comparison.cases] == [pytest.approx(0.0, abs=1e-3)] * 3
    over_gloo = compare(measured(4, transport="gloo"), cluster)
    assert all(case.error is not None and case.error > 0.1 for case in over_gloo.cases)
    silent = compare(measured(4), one_host())
    assert {case.how for case in silent.cases} == {"it used shared memory, which the network file does not describe"}


def test_a_reduce_scatter_in_place_is_predicted_in_place() -> None:
    """Its last sum needs no third place, so that it takes less than out of place, whose input stays as it is."""
    (base,) = [times for times in measured(2).collectives if times.size_bytes == 2**20]
    scatter = replace(base, collective=Collective.REDUCE_SCATTER)
    both = replace(measured(2), collectives=(scatter, replace(scatter, in_place=False)))
    in_place, out_of_place = compare(both, true_cluster(2)).cases
    rate = rate_at(TRUE, 2**19, 2**20)
    shorter_s = 2**19 / rate.reduce_into_bytes_per_s - 2**19 / rate.reduce_bytes_per_s
    assert out_of_place.predicted_s - in_place.predicted_s == pytest.approx(shorter_s)


def test_probes_that_do_not_fit_together_are_named() -> None:
    """A size that only was copied; a slot that says nothing."""
    whole = measured(2)
    without = replace(whole, probes=tuple(p for p in whole.probes if (p.kind, p.size_bytes) != ("shm/add", 2**19)))
    with pytest.raises(ValueError, match="other sizes of shm/copy than of shm/add probes"):
        calibrate(without)
    for value in (None, 0, "4MiB"):
        wrong = replace(whole, provenance=whole.provenance | {"shared_memory_slot_bytes": value})
        with pytest.raises(ValueError, match=r"provenance\.shared_memory_slot_bytes"):
            calibrate(wrong)


@pytest.mark.usefixtures("few_draws")
def test_its_table_fits_80_columns() -> None:
    """Long names of parameters and all; --wide says which probes each comes from. A share is shown in percent."""
    fit = calibrate(measured(2))
    narrow, wide = (format_probe_fit(fit, wide).splitlines() for wide in (False, True))
    assert [line for line in narrow if len(line) > 80] == []
    named = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in wide}
    assert named["host.shared_memory.rate.reduce_into_bandwidth"] == "shm/shift"
    assert "no limit .." not in "".join(wide)
    assert ["rank.first_touch_bandwidth", "no limit"] in [line.split(maxsplit=1) for line in narrow]
    assert any(re.match(r"host\.shared_memory\.late_share +25\.0% +0\.0% \.\. [1-9]\d*\.0%$", line) for line in narrow)


@pytest.mark.usefixtures("few_draws")
def test_other_models_leave_its_probes_out() -> None:
    """The intervals of a network whose links are all alike follow from the others; without any there are no costs."""
    assert calibrate(made_measurements(2)).cluster.spec.host.shared_memory is None
    whole = measured(2)
    more = Probe("reduce", 64, 1, BLOCKS), Probe("shift", 64, 4, tuple(2e-3 * factor for factor in BLOCKS))
    fit = calibrate(replace(whole, probes=(*whole.probes, *more)), model=ProbeModel.NETWORK)
    assert fit.cluster.spec.host.shared_memory is None
    assert fit.cluster.calibration.noise > 0


MESSAGES = made_measurements(4, 2)
LATE_HOST = calibrate_host(MESSAGES, 2)
MESSAGE_S = shift_s(LATE_HOST, 4, 64)
TORCH_S = predict_time(GLOO.schedule(Collective.ALL_REDUCE, 4, 64), LATE_HOST, 64, runtime=GLOO.runtime)
USUAL_S = MESSAGE_S + 5e-4
SEVERAL_LATE = (*(USUAL_S,) * 3, 1.99 * USUAL_S, *(USUAL_S,) * 2, USUAL_S + 3e-3, USUAL_S + 5e-3)


def one_late(usual_s: float, late_s: float = 4e-3) -> tuple[float, ...]:
    """Four calls, the last of which takes so much longer."""
    return (usual_s, usual_s, usual_s, usual_s + late_s)


def waited(for_s: float) -> dict[str, tuple[float, ...]]:
    """The probes where messages have waited so long for cores already."""
    return {"call": (MESSAGE_S + for_s,), "call/warm": (MESSAGE_S,), "call/cold": one_late(MESSAGE_S)}


TORCH = {"call/dist": (1e-4,), "call/dist/warm": (1e-4 + TORCH_S,), "call/dist/cold": one_late(3e-4 + TORCH_S, 9e-3)}
IN_THREAD = {"call": (MESSAGE_S,), "call/cold": (MESSAGE_S,) * 4, "call/async": one_late(MESSAGE_S + 1e-3)}
NONE = (0.0, 0.0)


@pytest.mark.parametrize(
    ("times", "ours", "in_thread", "of_torch"),
    [
        ({"call": (MESSAGE_S + 3e-4,), "call/warm": (MESSAGE_S + 3e-4,), "call/cold": SEVERAL_LATE},
         (2 / 8, 4e-3), NONE, NONE),
        (TORCH, NONE, NONE, (1 / 4, 9e-3)),
        (IN_THREAD, NONE, (1 / 4, 4e-3), NONE),
        (waited(0.0), (1 / 4, 4e-3), NONE, NONE),
        (waited(5e-4), (1 / 4, 2e-3), NONE, NONE),
        (waited(9e-4), (1 / 4, 4e-4), NONE, NONE),
        (waited(1.1e-3), NONE, NONE, NONE),
        ({}, NONE, NONE, NONE),
        ({"call": (MESSAGE_S,), "call/cold": (MESSAGE_S, 1.9 * MESSAGE_S, MESSAGE_S)}, NONE, NONE, NONE),
    ],
    ids=range(9),
)  # fmt: skip
def test_late_calls(
    times: dict[str, tuple[float, ...]], ours: tuple[float, float], in_thread: tuple[float, float],
    of_torch: tuple[float, float],
) -> None:  # fmt: skip
    """Late is what takes more than twice the median; their share, and how much longer that is on average.

    A call of torch is a whole ring of messages; asynchronous ones are of the group's thread, for which all calls wait.
    Where the probes of messages have waited for cores already, simulated calls take the measured mean.
    """
    probes = tuple(Probe(kind, 64, 1, times_s) for kind, times_s in times.items())
    found = calibrate_host(replace(MESSAGES, probes=MESSAGES.probes + probes), 2)
    told = [library.call_cost(found, is_async=is_async)[2:] for library in (OURS, GLOO) for is_async in (False, True)]
    assert told == [pytest.approx(late) for late in (ours, in_thread, of_torch, of_torch)]


@pytest.mark.usefixtures("few_draws")
def test_calls_through_shared_memory() -> None:
    """Which have a share of their own; asynchronous ones are those that go through it."""
    measurements = measured(2)
    (cold,) = measurements.probes_of("call", warmth="cold", transport="shm")
    in_thread = Probe("shm/call/async", 64, 1, one_late(cold.times_s[0] + 1e-3)), Probe("call/async", 64, 1, (1.0, 9.0))
    fit = calibrate(Measurements(2, measurements.provenance, (*measurements.probes, *in_thread)))
    assert OURS.call_cost(fit.cluster)[2:] == pytest.approx((1 / 4, 4e-3), rel=1e-3)
    assert OURS.call_cost(fit.cluster, is_async=True)[2:] == pytest.approx((1 / 4, 4e-3), rel=1e-2)
    assert fit.parameters["host.shared_memory.late"].value == pytest.approx(4e-3, rel=1e-3)
