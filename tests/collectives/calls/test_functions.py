"""Collectives beyond right results (`test_semantics` has these): places in memory, refusals, groups."""

import gc
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.runtime import group_state
from ringsim import Collective
from ringsim.registry.algorithms import ALGORITHMS
from tests.collectives.runtime.test_executor import data
from tests.ranks import RankPool
from tests.refusals import said_by


def scattered_into_its_input(group: dist.ProcessGroup, algorithm: str, offset: int) -> torch.Tensor:
    """Our share, which is written over a part of the input: over ours, moved along by `offset` elements."""
    whole = data(group.rank(), 5 * group.size() + 1, torch.float64)
    share = whole[5 * group.rank() + offset :][:5]
    collectives.reduce_scatter_tensor(share, whole[:-1], group=group, algorithm=algorithm)
    return share


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
@pytest.mark.parametrize("offset", [0, 1])
def test_the_output_may_be_a_part_of_the_input(ranks: RankPool, algorithm: str, offset: int) -> None:
    """Where it is another than this rank's own, the sum is formed elsewhere: that part may still have to be read."""
    expected = torch.stack([data(rank, 16, torch.float64)[:15] for rank in range(3)]).sum(0)
    shares = ranks.run(scattered_into_its_input, algorithm, offset, num_ranks=3)
    torch.testing.assert_close(torch.cat(shares), expected)


def refusals(group: dist.ProcessGroup) -> list[str]:
    """The messages of calls that do not fit."""
    calls = [
        lambda: collectives.all_reduce(torch.zeros(3), dist.ReduceOp.BAND, group),
        lambda: collectives.all_reduce(torch.zeros(3, dtype=torch.bool), dist.ReduceOp.AVG, group),
        lambda: collectives.all_reduce(torch.zeros(3), group=group, algorithm="spiral"),
        lambda: collectives.reduce_scatter_tensor(torch.zeros(2), torch.zeros(5), group=group),
        lambda: collectives.all_gather_into_tensor(torch.zeros(4), torch.zeros(2, dtype=torch.float64), group),
        lambda: collectives.all_reduce(torch.zeros(1).expand(3), group=group),
        lambda: collectives.reduce_scatter_tensor(torch.zeros(1).expand(3), torch.zeros(6), group=group),
        lambda: collectives.all_gather([torch.zeros(2), torch.zeros(1).expand(2)], torch.zeros(2), group),
    ]
    return [said_by(ValueError, call) for call in calls]


def test_misuse_is_refused(ranks: RankPool) -> None:
    """The message names the argument, the value and the rule."""
    known = ", ".join(name for collective, name in ALGORITHMS if collective is Collective.ALL_REDUCE)
    shared = "and strides (0,): elements share memory; give a tensor that is not expanded, such as its clone"
    assert ranks.run(refusals, num_ranks=2)[1] == [
        "op BAND: needs integers or bool, not torch.float32",
        "op AVG: needs numbers, not torch.bool; use BAND or BOR",
        f"algorithm 'spiral': all_reduce has {known}; or give your own as FILE.py:FUNCTION or FILE.xml",
        "input has 5 elements and output 2: input must have 2 times as many, once per rank",
        "output_tensor is torch.float32 and input_tensor torch.float64: both must be the same",
        f"tensor of shape (3,) {shared}",
        f"output of shape (3,) {shared}",
        f"tensor_list[1] of shape (2,) {shared}",
    ]


def test_a_destroyed_group_is_forgotten(tmp_path: Path) -> None:
    """With its buffers, threads and sockets."""
    gc.collect()  # of earlier tests of this process, of which some keep theirs
    before = len(group_state._STATES)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    collectives.all_reduce(torch.ones(3))
    assert len(group_state._STATES) == before + 1
    dist.destroy_process_group()
    gc.collect()
    assert len(group_state._STATES) == before


def gathered_from_the_result(group: dist.ProcessGroup) -> list[list[float]]:
    """Return all_gathers whose input lies in the output: in its place, with another stride, elsewhere, interleaved."""
    n, rank, results = group.size(), group.rank(), []
    for place in (
        lambda whole: whole[4 * rank : 4 * rank + 4],
        lambda whole: whole.as_strided((1, 4), (1, 1), 4 * rank),
        lambda whole: whole[1:5],
        lambda whole: whole[: 2 * 4 : 2],
    ):
        whole = torch.zeros(4 * max(n, 2))
        place(whole).view(-1).copy_(torch.arange(4.0) + 10 * rank)
        collectives.all_gather_into_tensor(whole[: 4 * n], place(whole), group)
        results.append(whole[: 4 * n].tolist())
    return results


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_an_input_in_the_output(ranks: RankPool, num_ranks: int) -> None:
    """It may be its own place there, as FSDP has it, or any other part; its values are read before they are lost."""
    expected = [element + 10.0 * rank for rank in range(num_ranks) for element in range(4)]
    assert ranks.run(gathered_from_the_result, num_ranks=num_ranks) == [[expected] * 4] * num_ranks
