"""A schedule executed by real ranks gives what its replay in one process gives, in the order the simulator says."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings

from collectives import Executor, execute
from collectives.runtime.transport import Transport
from ringsim import Collective, Network, Schedule, Transfer
from ringsim.registry import build
from ringsim.registry.algorithms import ALGORITHMS
from ringsim.schedule import held_at_end, held_at_start, replay
from ringsim.simulation import IN_ORDER, simulate
from tests.collectives.travel import travelling
from tests.ranks import RankPool
from tests.ringsim.strategies import schedules

Rows = list[list[Transfer]]
WAYS = pytest.mark.parametrize("transport", list(Transport))
NETWORK = Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9, reduce_bytes_per_s=1e10)


def data(rank: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers that tell every rank and place apart, and whose sum depends on the order of the additions."""
    generator = torch.Generator().manual_seed(1000 * length + rank)
    return (torch.randn(length, generator=generator, dtype=torch.float64) * 50).to(dtype)


def executed(
    group: dist.ProcessGroup, transport: Transport, schedule: Schedule, length: int
) -> tuple[torch.Tensor, list, list]:
    """The same as `logged`, for messages that travel in a given way."""
    with travelling(group, transport):
        return logged(group, schedule, length)


def logged(group: dist.ProcessGroup, schedule: Schedule, length: int) -> tuple[torch.Tensor, list, list]:
    """The rank's own tensor after `schedule`, and what it logged: (step, peer, chunk) applied, and sent."""
    tensor = data(group.rank(), length, torch.float32)
    log: list = []
    if schedule.collective.is_whole:
        execute(schedule, tensor, group=group, log=log)
    else:
        execute_apart(group, schedule, tensor, log)
    applied = [event[1:4] for event in log if event.kind == "applied"]
    return tensor, applied, [event[1:4] for event in log if event.kind == "sent"]


def execute_apart(group: dist.ProcessGroup, schedule: Schedule, tensor: torch.Tensor, log: list) -> None:
    """Run a schedule after which no rank has all chunks on those of `tensor` that the rank has, and in their place."""
    rank, lengths = group.rank(), np.diff(schedule.bounds(len(tensor)))
    shape = schedule.collective, schedule.num_ranks, schedule.num_chunks
    given, left = (torch.from_numpy(np.repeat(held(*shape)[rank], lengths)) for held in (held_at_start, held_at_end))
    result = torch.zeros(int(left.sum()))
    Executor(schedule, group).run(result, source=tensor[given], splits=tuple(lengths.tolist()), log=log)
    tensor[left] = result


def written_out(
    group: dist.ProcessGroup, transport: Transport, shape: tuple[int, int], rows: Rows, length: int
) -> tuple:
    """The same for a schedule that is listed."""
    return executed(group, transport, Schedule.from_transfers(Collective.ALL_REDUCE, "random", *shape, rows), length)


def built_ins(group: dist.ProcessGroup, transport: Transport, length: int) -> list[tuple]:
    """The same for every built-in one."""
    return [executed(group, transport, build(*key, group.size()), length) for key in ALGORITHMS]


def assert_conforms(schedule: Schedule, results: list[tuple], length: int) -> None:
    """Bits equal the replay's; the order of applying is the simulator's, and what goes to a peer goes in step order.

    What the collective does not leave at a rank is not looked at.
    """
    buffers = [data(rank, length, torch.float32) for rank in range(schedule.num_ranks)]
    replay(schedule, buffers)
    size_bytes = 4 * (length // schedule.collective.num_tensors(schedule.num_ranks))
    timeline = simulate(schedule, NETWORK, size_bytes, element_bytes=4, runtime=IN_ORDER)
    bounds = schedule.bounds(length)
    kept = held_at_end(schedule.collective, schedule.num_ranks, schedule.num_chunks)
    for rank, (tensor, applied, sent) in enumerate(results):
        for chunk in kept[rank].nonzero()[0]:
            elements = slice(bounds[chunk], bounds[chunk + 1])
            assert torch.equal(tensor[elements], buffers[rank][elements]), f"{schedule}: rank {rank}, chunk {chunk}"
        assert applied == timeline.applied_order(rank), schedule
        for peer in range(schedule.num_ranks):
            to_peer = [(step, chunk) for step, other, chunk in sent if other == peer]
            rows = (timeline.src == rank) & (timeline.dst == peer)
            assert to_peer == list(zip(timeline.step[rows].tolist(), timeline.chunk[rows].tolist(), strict=True))


@WAYS
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedules(max_ranks=4, max_chunks=3, max_steps=6, channels_of_a_pair=2))
def test_random_schedules_conform(ranks: RankPool, transport: Transport, schedule: Schedule) -> None:
    """Whatever the transfers: exchanges, several chunks to one rank in a step, overwritten and sent on."""
    rows = [list(step) for step in schedule.steps]
    shape = (schedule.num_ranks, schedule.num_chunks)
    results = ranks.run(written_out, transport, shape, rows, 7, num_ranks=schedule.num_ranks)
    assert_conforms(schedule, results, 7)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("transport", "length"),
    [
        *((Transport.POSTED, length) for length in (0, 3, 1001)),
        (Transport.BATCHED, 1001),
        (Transport.STAGED, 1001),  # as POSTED, on a copy
    ],
)
def test_built_ins_conform(ranks: RankPool, transport: Transport, num_ranks: int, length: int) -> None:
    """Every algorithm, also with fewer elements than ranks, and none."""
    results = ranks.run(built_ins, transport, length, num_ranks=num_ranks)
    for key, *by_rank in zip(ALGORITHMS, *results, strict=True):
        assert_conforms(build(*key, num_ranks), by_rank, length)


def misuses(group: dist.ProcessGroup) -> list[str]:
    """The messages of calls that do not fit."""
    ring = build(Collective.ALL_REDUCE, "ring", group.size())
    wrong_size = build(Collective.ALL_REDUCE, "ring", group.size() + 1)
    messages = []
    for schedule, tensor in (
        (wrong_size, torch.zeros(4)),
        (ring, torch.zeros(4, 4).t()),
        (ring, torch.zeros(4, device="meta")),
    ):
        try:
            execute(schedule, tensor, group=group)
        except ValueError as error:
            messages.append(str(error))
    return messages


def test_misuse_is_refused_before_anything_is_sent(ranks: RankPool) -> None:
    """The message names the value and the rule, on every rank, and the group is as good as before."""
    assert (
        ranks.run(misuses, num_ranks=2)
        == [
            [
                "all_reduce ring over 3 ranks: the group has 2 ranks; build the schedule for 2",
                "all_reduce ring over 2 ranks: the tensor has strides (1, 4): must be contiguous; "
                "call contiguous() on it",
                "the tensor is on meta: must be on the CPU or on a CUDA device",
            ]
        ]
        * 2
    )
    ranks.run(built_ins, Transport.POSTED, 5, num_ranks=2)


def test_without_a_process_group() -> None:
    """The message says what to call first."""
    with pytest.raises(ValueError, match="call dist.init_process_group first"):
        execute(build(Collective.ALL_REDUCE, "ring", 1), torch.zeros(1))


def late(
    group: dist.ProcessGroup, transport: Transport, rows: Rows, shape: tuple[int, int], length: int, sleeper: int
) -> torch.Tensor:
    """A listed schedule where one rank comes late, so that the others run as far ahead of it as they can."""
    tensor = data(group.rank(), length, torch.float32)
    if group.rank() == sleeper:
        time.sleep(0.3)  # not to wait for a result, but to be late
    with travelling(group, transport):
        execute(Schedule.from_transfers(Collective.ALL_REDUCE, "late", *shape, rows), tensor, group=group)
    return tensor


EXCHANGE = [[Transfer(src, 1 - src, chunk, True) for chunk in range(5) for src in (0, 1)]]
OVERWRITTEN = [[Transfer(0, 1, 0, False)], [Transfer(2, 0, 0, False)]]
CROSSED = [
    [Transfer(src, dst, chunk, False)]
    for src, dst, chunk in [(2, 0, 0), (0, 3, 0), (3, 1, 0), (2, 1, 2), (2, 1, 3), (0, 1, 1), (2, 0, 1)]
]


@pytest.mark.parametrize(
    ("rows", "shape", "length", "sleeper"),
    [
        pytest.param(EXCHANGE, (2, 5), 50, 1, id="more exchanges in a step than are posted ahead"),
        pytest.param(OVERWRITTEN, (3, 1), 1_000_000, 1, id="overwritten while it is still being sent"),
        pytest.param(CROSSED, (4, 4), 400_000, 3, id="a send that must not be waited for too early"),
    ],
)
@WAYS
def test_late_ranks_change_nothing(
    ranks: RankPool, transport: Transport, rows: Rows, shape: tuple[int, int], length: int, sleeper: int
) -> None:
    """Neither a deadlock nor an overtaken send: the executor's two rules, each where it is needed."""
    schedule = Schedule.from_transfers(Collective.ALL_REDUCE, "late", *shape, rows)
    buffers = [data(rank, length, torch.float32) for rank in range(shape[0])]
    replay(schedule, buffers)
    for rank, tensor in enumerate(ranks.run(late, transport, rows, shape, length, sleeper, num_ranks=shape[0])):
        assert torch.equal(tensor, buffers[rank]), f"rank {rank}"


def of_two_lengths(group: dist.ProcessGroup, transport: Transport, lengths: tuple[int, int]) -> list[torch.Tensor]:
    """Two sums by one executor."""
    executor = Executor(build(Collective.ALL_REDUCE, "ring", group.size()), group)
    tensors = [data(group.rank(), length, torch.float32) for length in lengths]
    with travelling(group, transport):
        for tensor in tensors:
            executor.run(tensor)
    return tensors


@WAYS
def test_what_is_kept_may_be_longer_than_what_is_needed(ranks: RankPool, transport: Transport) -> None:
    """Of the staging memory of a longer tensor a whole number of shorter buffers is used."""
    lengths = 2_000_000, 1_800_000
    results = ranks.run(of_two_lengths, transport, lengths)
    for index, length in enumerate(lengths):
        buffers = [data(rank, length, torch.float32) for rank in range(len(results))]
        replay(build(Collective.ALL_REDUCE, "ring", len(results)), buffers)
        assert all(torch.equal(result[index], buffers[0]) for result in results)


PUBLISHED = Path(__file__).parents[2] / "ringsim" / "formats" / "msccl"


def imported(group: dist.ProcessGroup, collective: Collective, path: Path, length: int) -> tuple:
    """The rank's own tensor after the algorithm of the file, and what it logged."""
    return executed(group, Transport.POSTED, build(collective, str(path), group.size()), length)


@pytest.mark.parametrize(
    ("file", "collective"),
    [
        ("allpairs_4.xml", Collective.ALL_REDUCE),
        ("fused_ring_4.xml", Collective.ALL_REDUCE),
        ("hierarchical_all_gather_4.xml", Collective.ALL_GATHER),
    ],
)
@pytest.mark.parametrize("length", [3, 1001])
def test_published_algorithms_conform(ranks: RankPool, file: str, collective: Collective, length: int) -> None:
    """The bits are the replay's, the order of the transfers the simulator's."""
    results = ranks.run(imported, collective, PUBLISHED / file, length, num_ranks=4)
    assert_conforms(build(collective, str(PUBLISHED / file), 4), results, length)
