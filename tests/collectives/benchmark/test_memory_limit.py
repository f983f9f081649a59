"""The limit of the memory: the operations that are timed compute the results of all ranks."""

import pytest
import torch.distributed as dist

import collectives
from collectives.benchmark.case import BenchmarkCase, BenchmarkPlan, Buffers, pattern
from collectives.benchmark.job import run_plan
from collectives.benchmark.memory_limit import blocks_of, memory_limit
from ringsim.schedule.collective import Collective
from tests.collectives.shared_groups import another_group
from tests.ranks import RankPool

OUT_OF_PLACE = [(collective, False) for collective in Collective]
IN_PLACE = [(collective, True) for collective in Collective if collective is not Collective.ALL_TO_ALL]


@pytest.mark.parametrize(("collective", "in_place"), [*OUT_OF_PLACE, *IN_PLACE])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_blocks_compute_the_results_of_all_ranks(collective: Collective, in_place: bool, num_ranks: int) -> None:
    """In any order of the blocks, whose size need not divide a chunk."""
    case = BenchmarkCase(collective, 1000 * num_ranks, "float32", num_ranks, in_place)
    data, buffers = pattern(case), Buffers.of_all(pattern(case))
    for operations in reversed(blocks_of(case, buffers, 300)):
        for operation in operations:
            operation()
    assert [data.count_wrong(rank, own.output) for rank, own in enumerate(buffers)] == [0] * num_ranks


@pytest.mark.parametrize(("size_bytes", "cores"), [(64, 2.0), (2**19, 1.5), (2**21, 3.0)])
def test_threads_share_the_blocks(monkeypatch: pytest.MonkeyPatch, size_bytes: int, cores: float) -> None:
    """The results are right with any size of blocks and any number of threads."""
    monkeypatch.setattr("collectives.benchmark.memory_limit.available_cores", lambda: cores)
    case = BenchmarkCase(Collective.ALL_REDUCE, size_bytes // 2, "bfloat16", 4, in_place=False)
    data, buffers = pattern(case), Buffers.of_all(pattern(case))
    operation = memory_limit(case, buffers)
    for own in buffers:
        own.invalidate_output()
    operation()
    assert [data.count_wrong(rank, own.output) for rank, own in enumerate(buffers)] == [0] * 4


def timed(group: dist.ProcessGroup, transport: str) -> list[tuple[str, int | None]]:
    """The algorithms of a benchmark with the limit, and their wrong elements."""
    group = another_group(group)
    collectives.use_transport(transport, group)
    plan = BenchmarkPlan(
        (Collective.ALL_GATHER,), (), (1000,), in_place=(True,), iterations=2, calls=1, warm_up=1, limit=True
    )
    return [(times.algorithm, times.wrong) for times in run_plan(plan, group).collectives]


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_only_ranks_that_share_memory_have_the_limit(ranks: RankPool, transport: str) -> None:
    """Its results are not those of this rank's buffers, so nothing counts wrong elements there."""
    limit = [("limit", None)] if transport == "shm" else []
    assert ranks.run(timed, transport, num_ranks=2) == [[("dist", 0), ("ring", 0), *limit]] * 2
