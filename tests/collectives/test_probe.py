"""Probing a real process group."""

import pytest
import torch.distributed as dist

from collectives.errors import CollectiveError, naming_failures
from collectives.probe import IN_FLIGHT, NUM_BLOCKS, TURNS, probe
from ringsim.calibrate import calibrate
from ringsim.measurements import Measurements
from tests.ranks import RankPool


def probed(group: dist.ProcessGroup, tensor_bytes: int, memory_bytes: int) -> Measurements:
    """The measurements of a group, small."""
    return probe(group, tensor_bytes, memory_bytes)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_all_ranks_get_the_same_measurements(ranks: RankPool, num_ranks: int) -> None:
    """Of messages up to half the tensor, of several in flight, and of additions; and a network can be made of them."""
    results = ranks.run(probed, 2**18, 2**20, num_ranks=num_ranks)
    assert all(result.probes == results[0].probes for result in results)
    measurements = results[0]
    assert measurements.num_ranks == num_ranks
    assert [p.size_bytes for p in measurements.of("shift", in_flight=1)] == [64, 4096, 32768, 131072]
    assert [p.size_bytes for p in measurements.of("shift", in_flight=IN_FLIGHT)] == [64]
    assert [p.size_bytes for p in measurements.of("reduce")] == [64, 4096, 32768, 131072]
    assert all(len(p.times_s) == TURNS * NUM_BLOCKS and min(p.times_s) > 0 for p in measurements.probes)
    assert {"machine", "cores", "torch", "OMP_NUM_THREADS", "date", "command"} <= measurements.provenance.keys()
    network = calibrate(measurements)
    assert network.latency_s + network.send_overhead_s > 0


@pytest.mark.parametrize("tensor_bytes", [0, 4, 5000])
def test_tensors_of_any_size_can_be_probed_for(ranks: RankPool, tensor_bytes: int) -> None:
    """Also ones smaller than the smallest message, and of an odd size; by a single rank too."""
    for num_ranks in (1, 2):
        (first, *_) = ranks.run(probed, tensor_bytes, tensor_bytes, num_ranks=num_ranks)
        calibrate(first)


def test_a_failure_is_named() -> None:
    """What torch raises becomes one line with the place in front; what is not a fault of the group stays as it is."""
    with (
        pytest.raises(CollectiveError, match=r"^rank 3: step 5: Connection closed$"),
        naming_failures("rank 3: step 5"),
    ):
        raise RuntimeError("Connection closed\nby peer")
    with pytest.raises(ValueError, match="^mine$"), naming_failures("rank 3"):
        raise ValueError("mine")
