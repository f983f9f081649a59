"""Which share of the calls waits for a core, and for how long, from the times of single calls."""

import re
from dataclasses import replace

import pytest

from ringsim.calibration.from_probes import calibrate
from ringsim.calibration.hosts import calibrate_host
from ringsim.calibration.probe_times import shift_s
from ringsim.measurements.measurements import Measurements, Probe
from ringsim.native import native_schedule
from ringsim.network.cluster import Cluster
from ringsim.report import format_probe_fit
from ringsim.schedule.collective import Collective
from ringsim.simulation import GLOO, OURS, predict_time
from tests.ringsim.calibration.test_shared_memory import measured
from tests.ringsim.made_probes import made_measurements

MESSAGES = made_measurements(4, 2)
HOST = calibrate_host(MESSAGES, 2)
MESSAGE_S = shift_s(HOST, 4, 64)
TORCH_S = predict_time(native_schedule(Collective.ALL_REDUCE, 4, 64), HOST, 64, runtime=GLOO)
NONE = (0.0, 0.0)


def calibrated(**times: tuple[float, ...]) -> Cluster:
    """The host by these probes as well: call_cold for "call/cold"."""
    probes = tuple(Probe(kind.replace("_", "/"), 64, 1, times_s) for kind, times_s in times.items())
    return calibrate_host(replace(MESSAGES, probes=MESSAGES.probes + probes), 2)


def one_late(usual_s: float, late_s: float = 4e-3) -> tuple[float, ...]:
    """Four calls, the last of which takes so much longer."""
    return (usual_s, usual_s, usual_s, usual_s + late_s)


def test_calls_of_ours() -> None:
    """Late is what takes more than twice the median; how much longer that is on average."""
    usual_s = MESSAGE_S + 5e-4
    times = (usual_s, usual_s, usual_s, 1.99 * usual_s, usual_s, usual_s, usual_s + 3e-3, usual_s + 5e-3)
    found = calibrated(call=(MESSAGE_S + 3e-4,), call_warm=(MESSAGE_S + 3e-4,), call_cold=times)
    assert OURS.late_calls(found) == pytest.approx((2 / 8, 4e-3))
    assert OURS.late_calls(found, is_async=True) == GLOO.late_calls(found) == NONE


def test_calls_of_torch() -> None:
    """Which have a whole ring of messages."""
    warm_s, cold_s = (1e-4 + TORCH_S,), one_late(3e-4 + TORCH_S, 9e-3)
    found = calibrated(call_dist=(1e-4,), call_dist_warm=warm_s, call_dist_cold=cold_s)
    assert GLOO.late_calls(found) == GLOO.late_calls(found, is_async=True) == pytest.approx((1 / 4, 9e-3))
    assert OURS.late_calls(found) == NONE


def test_asynchronous_calls() -> None:
    """Of the group's thread, for which all calls wait."""
    usual_s = MESSAGE_S + 1e-3
    found = calibrated(call=(MESSAGE_S,), call_cold=(MESSAGE_S,) * 4, call_async=one_late(usual_s))
    assert OURS.late_calls(found, is_async=True) == pytest.approx((1 / 4, 4e-3))
    assert OURS.late_calls(found) == NONE


@pytest.mark.parametrize(("waited_s", "late_s"), [(0.0, 4e-3), (5e-4, 2e-3), (9e-4, 4e-4), (1.1e-3, 0.0)])
def test_what_messages_waited_for_counts_once(waited_s: float, late_s: float) -> None:
    """Where the probes of messages have waited for cores already, simulated calls take the measured mean."""
    message_s = MESSAGE_S + waited_s
    found = calibrated(call=(message_s,), call_warm=(MESSAGE_S,), call_cold=one_late(MESSAGE_S))
    assert OURS.late_calls(found) == (pytest.approx((1 / 4, late_s)) if late_s else NONE)


def test_no_probes_and_no_late_calls() -> None:
    """Nothing is late, and the network file says nothing of it."""
    assert OURS.late_calls(HOST) == GLOO.late_calls(HOST) == NONE
    assert OURS.late_calls(calibrated(call=(MESSAGE_S,), call_cold=(MESSAGE_S, 1.9 * MESSAGE_S, MESSAGE_S))) == NONE


def test_calls_through_shared_memory() -> None:
    """Which have a share of their own; asynchronous ones are those that go through it."""
    measurements = measured(2)
    (cold,) = measurements.probes_of("shm/call/cold")
    in_thread = Probe("shm/call/async", 64, 1, one_late(cold.times_s[0] + 1e-3)), Probe("call/async", 64, 1, (1.0, 9.0))
    fit = calibrate(Measurements(2, measurements.provenance, (*measurements.probes, *in_thread)))
    assert OURS.late_calls(fit.cluster) == pytest.approx((1 / 4, 4e-3), rel=1e-3)
    assert OURS.late_calls(fit.cluster, is_async=True) == pytest.approx((1 / 4, 4e-3), rel=1e-2)
    assert fit.values["host.shared_memory.late"] == pytest.approx(4e-3, rel=1e-3)


def test_a_share_is_shown_in_percent() -> None:
    """Unlike all other values, it is neither a time nor a rate."""
    table = format_probe_fit(calibrate(measured(2)))
    assert re.search(r"^host\.shared_memory\.late_share +25\.0% +0\.0% \.\. [1-9]\d*\.0%$", table, re.MULTILINE)
