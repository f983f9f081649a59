"""Rings within a host, whose busbw grows with the ranks."""

from dataclasses import replace

import pytest

from ringsim.calibration.cases import TimedCase
from ringsim.calibration.from_logs import calibrate_logs
from ringsim.calibration.library_choice import choose, fastest_protocol
from ringsim.calibration.protocol_time import predict
from ringsim.calibration.questions import Question
from ringsim.network.cluster import Cluster
from ringsim.network.file_reader import read_network
from ringsim.network.file_writer import network_text
from ringsim.registry import build
from ringsim.schedule.collective import Collective

SIZES = tuple(4**power for power in range(8, 17))


def gathered(num_ranks: int, fill: float, sizes: tuple[int, ...] = SIZES) -> list[TimedCase]:
    """The times of an all_gather on links of 200 GB/s."""
    return [
        TimedCase("all_gather", "ring", size, num_ranks, 1,
                  (20e-6 + (num_ranks - 1 + fill) * (1e-6 + size / num_ranks / 200e9),), file=f"{num_ranks}.log")
        for size in sizes
    ]  # fmt: skip


def fitted(*num_ranks: int, fill: float) -> Cluster:
    """From logs of so many ranks, as it is read from the file."""
    cases = [case for ranks in num_ranks for case in gathered(ranks, fill)]
    return read_network(network_text(calibrate_logs(cases, "mine").cluster), "mine.toml")


def error(cluster: Cluster, num_ranks: int, fill: float) -> float:
    """Of 1 GiB."""
    (case,) = gathered(num_ranks, fill, (2**30,))
    [(time_s, _)] = predict(cluster, [case.question])
    return time_s / case.measured_s - 1


@pytest.mark.parametrize(("fill", "low", "high"), [(0.1, 0.1, 0.16), (0.4, 0.35, 0.4)])
def test_logs_of_two_numbers_of_ranks_tell_it(fill: float, low: float, high: float) -> None:
    """The fit lies between the prior, 0.2, and the truth; predictions for other numbers of ranks are then right."""
    found = fitted(2, 4, fill=fill)
    assert low < found.spec.library.ring_fill < high
    assert error(found, 8, fill) == pytest.approx(0, abs=0.03)


def test_one_log_leaves_what_is_believed() -> None:
    """Of many ranks on two, a prediction is off by what it may be off."""
    found = fitted(2, fill=0.3)
    assert found.spec.library.ring_fill == pytest.approx(0.2, rel=0.01)
    assert error(found, 2, 0.3) == pytest.approx(0, abs=0.01)
    assert abs(error(found, 8, 0.3)) < 0.08
    without = found.with_spec(library=replace(found.spec.library, ring_fill=0.0))
    assert error(without, 2, 0.3) < -0.1


def with_nics(**changes: int) -> tuple[Cluster, Cluster]:
    """Return hosts with such NICs, fitted to rings that fill, and the same without the filling."""
    found = fitted(4, fill=0.3)
    nics = replace(found.spec.host.nics, bandwidth_bytes_per_s=25e9)
    found = found.with_spec(host=replace(found.spec.host, nics=nics), **changes)
    return found, found.with_spec(library=replace(found.spec.library, ring_fill=0.0))


def test_only_rings_within_a_host_fill() -> None:
    """Not a message, not a chain, and not what crosses hosts."""
    found, without = with_nics()
    others = [
        Question("sendrecv", 2**30, 2, 1),
        Question("broadcast", 2**30, 4, 1),
        Question("all_gather", 2**30, 8, 2),
    ]
    assert predict(found, others) == predict(without, others)
    [(filling_s, _)], [(full_s, _)] = (predict(net, [Question("all_gather", 2**30, 4, 1)]) for net in (found, without))
    assert filling_s == pytest.approx(full_s * (1 + found.spec.library.ring_fill / 3), rel=0.01)


def test_what_is_simulated_fills_too() -> None:
    """Chosen or named; a group with one rank of each host does not."""
    found, without = with_nics(ranks_per_host=4)
    ring = build(Collective.ALL_GATHER, "ring", 4)
    for per_host, factor in ((4, 1 + found.spec.library.ring_fill / 3), (1, 1.0)):
        for filling, full in (
            [choose(net, Collective.ALL_GATHER, 4, 2**30, ranks_per_host=per_host) for net in (found, without)],
            [fastest_protocol(ring, net, 2**30, ranks_per_host=per_host) for net in (found, without)],
        ):
            assert filling is not None
            assert full is not None
            assert filling.time_s() == pytest.approx(factor * full.time_s(), rel=0.01)
