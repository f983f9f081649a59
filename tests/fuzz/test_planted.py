"""Faults planted in what ranks run: the attack on them fails; without the fault, the same case does not.

Faults in what runs without ranks are planted in `test_files`.
"""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.runtime.chunks import ChunkMemory
from collectives.runtime.failures import FailureRecords, stopped_first
from tests.fuzz import collectives as attack_on_collectives
from tests.fuzz import deaths, strategies
from tests.fuzz.calls import Call
from tests.fuzz.campaign import attacks
from tests.fuzz.case import Case

# Ranks are given these instead of the functions that the attacks give them.


def with_a_lost_element(group: dist.ProcessGroup, job: attack_on_collectives.Job) -> object:
    """The first element of what arrives is not added."""
    right = ChunkMemory.apply

    def apply(memory: ChunkMemory, receive: Any, arrived: torch.Tensor) -> None:
        right(memory, receive, torch.cat([torch.zeros_like(arrived[:1]), arrived[1:]]))

    with patch.object(ChunkMemory, "apply", apply):
        return attack_on_collectives.carry_out(group, job)


def with_another_rank_blamed(death: deaths.Death) -> object:
    """The first to stop responding is said to be rank 0."""
    with patch.object(FailureRecords, "_trace_cause", lambda *_: stopped_first(0)):
        return deaths.live(death)


def with_sums_for_means(group: dist.ProcessGroup, training: strategies.Training) -> object:
    """ZeRO steps by the sums of the gradients."""
    right = collectives.reduce_scatter_tensor

    def summed(output: torch.Tensor, tensor: torch.Tensor, _: Any, *rest: Any) -> object:
        return right(output, tensor, dist.ReduceOp.SUM, *rest)

    with patch.object(collectives, "reduce_scatter_tensor", summed):
        return strategies.outcomes(group, training)


CALLS = (Call(shape=(70,)), Call(shape=(70,), op="MAX"))
BLAMED = "survivors do not name the rank that was the first to go, 1"
GROUP = attack_on_collectives.Group((0, 1, 2), transport="gloo")


@pytest.fixture(scope="module", autouse=True)
def _closing() -> Iterator[None]:
    """End the ranks that cases share."""
    yield
    for attack in attacks():
        attack.close()


@pytest.mark.parametrize(
    ("case", "name", "fault", "message"),
    [
        (attack_on_collectives.Job((GROUP,), CALLS[:1]), "carry_out", with_a_lost_element, "wrong result of all_red"),
        (deaths.Death(3, "functions", "kill", 1, at=1, calls=CALLS), "live", with_another_rank_blamed, BLAMED),
        (strategies.Training("zero1"), "outcomes", with_sums_for_means, "it trains otherwise than ring"),
    ],
    ids=["collectives", "deaths", "strategies"],
)
def test_a_planted_fault_is_noticed(case: Case, name: str, fault: Any, message: str) -> None:
    """In one case of each attack."""
    case.run()
    with patch(f"{type(case).__module__}.{name}", fault), pytest.raises(AssertionError, match=message):
        case.run()
