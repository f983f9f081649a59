"""Probing a real process group."""

import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from statistics import median
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.benchmark.call_overhead import probe_calls
from collectives.probes.probe import Blocks, probe, time_blocks
from collectives.probes.workloads import IN_FLIGHT, RESTED_CALLS, ProbedGroup, ProbeWorkload, TimedAddition
from collectives.runtime import Executor, transport_in_use
from ringsim.calibration import calibrate, calibrate_uniform
from ringsim.measurements.measurements import ROUNDS_PER_RUN, Measurements, ProbeKind
from ringsim.registry import build
from ringsim.schedule.collective import Collective
from tests.collectives.shared_groups import sharing_group
from tests.ranks import RankPool
from tests.ringsim.topologies import costs_of

SHORT = Blocks(turns=2, number=2, least_s=1e-3)  # the times need not be good ones
LATE_S = 0.1
Times = list[tuple[float, float]]


def probed(group: dist.ProcessGroup, tensor_bytes: int, memory_bytes: int) -> Measurements:
    """The measurements of a group, small."""
    return probe(group, tensor_bytes, memory_bytes, blocks=SHORT)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_all_ranks_get_the_same_measurements(ranks: RankPool, num_ranks: int) -> None:
    """Of messages up to half the tensor, of several in flight, of additions; and a network can be made of them."""
    results = ranks.run(probed, 2**18, 2**20, num_ranks=num_ranks)
    assert all(result.probes == results[0].probes for result in results)
    measurements = results[0]
    assert measurements.num_ranks == num_ranks
    assert [p.size_bytes for p in measurements.probes_of("shift", in_flight=1)] == [64, 4096, 32768, 131072]
    assert [p.size_bytes for p in measurements.probes_of("shift", in_flight=IN_FLIGHT)] == [64]
    assert [p.size_bytes for p in measurements.probes_of("reduce")] == [64, 131072]
    assert all(len(p.times_s) == SHORT.turns * SHORT.number and min(p.times_s) > 0 for p in measurements.probes)
    assert {"machine", "cores", "torch", "OMP_NUM_THREADS", "date", "command"} <= measurements.provenance.keys()
    assert not measurements.probes_of("shift", warmth="rested")  # of one host, which has no links to others
    costs = costs_of(calibrate_uniform(measurements))
    assert costs.latency_s + costs.gap_s > 0


@pytest.mark.parametrize("tensor_bytes", [0, 4, 5000])
def test_tensors_of_any_size_can_be_probed_for(ranks: RankPool, tensor_bytes: int) -> None:
    """Also ones smaller than the smallest message, and of an odd size; by a single rank too."""
    for num_ranks in (1, 2):
        (first, *_) = ranks.run(probed, tensor_bytes, tensor_bytes, num_ranks=num_ranks)
        calibrate_uniform(first)


def rested_rounds(group: dist.ProcessGroup) -> list[tuple[str, int, int]]:
    """Return what is probed after a pause, each having been done once."""
    workloads = list(
        ProbedGroup(group, torch.zeros(2**21, dtype=torch.uint8), (64, 4096, 2**17, 2**19)).rested_shifts()
    )
    for workload in workloads:
        workload.before()
        workload.rounds()
    return [(str(workload.kind), workload.size_bytes, workload.calls) for workload in workloads]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_messages_after_a_pause_are_probed(ranks: RankPool, num_ranks: int) -> None:
    """The smallest, for what a pause costs, and long ones, a few calls each, as each waits for its pause."""
    expected = [("shift/rested", size, RESTED_CALLS) for size in (64, 2**17, 2**19)]
    assert ranks.run(rested_rounds, num_ranks=num_ranks) == [expected] * num_ranks


def probed_calls(group: dist.ProcessGroup) -> list[str]:
    """The kinds of probes there are, each having done its rounds; the group made for them is gone."""
    before = len(dist.distributed_c10d._world.pg_map)
    with probe_calls(group) as experiments:
        for each in experiments:
            each.rounds()
    assert len(dist.distributed_c10d._world.pg_map) == before
    return [str(each.kind) for each in experiments]


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_calls_are_probed(ranks: RankPool, num_ranks: int) -> None:
    """Ours where there is somebody to send to, torch's always."""
    kinds = [kind + state for kind in ("call/dist", "call") for state in ("", "/cold", "/warm")] + ["call/async"]
    expected = kinds if num_ranks > 1 else ["call/dist"]
    for probed_kinds in ranks.run(probed_calls, num_ranks=num_ranks):
        # Those of shared memory are there as the environment has it.
        assert [kind for kind in probed_kinds if not kind.startswith("shm/")] == expected


def timed_apart(group: dist.ProcessGroup) -> tuple[list[float], Times, Times, int]:
    """Return a chunk to which rounds have added, the times of these additions, and those of calls that are late.

    And how many rounds there are that take one rank longer than the other.
    """
    add, chunk, uneven = TimedAddition(), torch.zeros(2), Mock(wraps=partial(time.sleep, 0.005 + 0.02 * group.rank()))

    def rounds() -> None:
        time.sleep(LATE_S)  # stands for messages
        add(chunk, torch.ones(2))

    meeting = Executor(build(Collective.ALL_REDUCE, "recursive_doubling", 2), group, shares_memory=False)
    additions = ProbeWorkload(ProbeKind("reduce"), 8, 1, range(2), rounds, clock=add.read)
    come = partial(time.sleep, LATE_S * (group.rank() == 0))
    late = ProbeWorkload(ProbeKind("late"), 64, 1, range(2), lambda: dist.barrier(group), come, calls=3)
    blocks = Blocks(turns=1, number=2, least_s=LATE_S / 2)
    workloads = additions, late, ProbeWorkload(ProbeKind("uneven"), 0, 1, range(2), uneven)
    of_additions, of_calls, _ = (time_blocks(each, blocks, meeting, lambda: None) for each in workloads)
    return chunk.tolist(), of_additions, of_calls, uneven.call_count


def test_only_what_is_probed_is_timed(ranks: RankPool) -> None:
    """Of rounds the additions, not what passes between; of a call the shortest time, not what is done before.

    Nor do ranks that came early count, which wait. All do as many rounds.
    """
    results = ranks.run(timed_apart, num_ranks=2)
    assert results[0][2:] == results[1][2:]
    for chunk, additions, calls, _ in results:
        assert chunk == [3.0, 3.0]  # one to find out how many rounds a block has, and one in each block
        assert 0 < median(time_s for times in additions for time_s in times) < LATE_S / ROUNDS_PER_RUN
        assert len(calls) == 2 * 3
        assert median(elapsed for elapsed, _ in calls) < LATE_S  # on a busy machine one of them may take long


def no_calls(_: dist.ProcessGroup) -> AbstractContextManager[list[ProbeWorkload]]:
    """Probe all but calls."""
    return nullcontext([])


def probed_through_shared_memory(_: dist.ProcessGroup) -> tuple[list[str], Measurements, str] | None:
    """The kinds of calls that are probed, and the measurements, of ranks that share memory; a collective is right."""
    group = sharing_group(4)
    if group is None:
        return None
    with probe_calls(group) as calls:
        kinds = [str(call.kind) for call in calls]
    measurements = probe(group, 2**18, 2**20, blocks=SHORT, sizes=(64, 4096), calls=no_calls)
    collectives.all_reduce(tensor := torch.ones(16), group=group)
    assert tensor[0] == 4
    return kinds, measurements, transport_in_use(group)


def test_shared_memory_is_probed_where_ranks_share_it(ranks: RankPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies and additions, of tensors from all over the memory and of the same ones; and a host is calibrated.

    Of four ranks only two take part in a probe of a pair.
    """
    calls, measurements, transport = ranks.run(probed_through_shared_memory)[0]
    kinds, origin = {*calls, *(probe.kind for probe in measurements.probes)}, measurements.provenance
    wanted = {"shm/shift", "shm/copy", "shm/add", "shm/copy/cached", "shm/add/cached", "shm/call", "shift", "call"}
    assert wanted <= kinds
    assert origin["shared_memory_slot_bytes"] == 8 * 2**20
    assert origin["shared_memory_touched_bytes"] == 2**20
    assert transport == "shm"
    monkeypatch.setattr("ringsim.calibration.from_probes._RESAMPLED", 4)
    shared = calibrate(measurements).cluster.spec.host.shared_memory
    assert shared.rates[-1].published_bytes <= shared.slot_bytes
