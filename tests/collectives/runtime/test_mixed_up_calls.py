"""Ranks that mix up their calls: all of them are told which calls these were, and no result is wrong."""

import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.runtime import failures
from tests.collectives.replayed_calls import made
from tests.collectives.shared_groups import ONE_HOST, set_timeout, sharing_group
from tests.fuzz import views
from tests.fuzz.calls import Call
from tests.ranks import RankPool

TIMEOUT_S = 2.0  # once a group has begun; those who have noticed a mix-up at once wait longer for who is late
WHERE = {"gloo": ("gloo", ONE_HOST), "shm": ("shm", ONE_HOST), "lent": ("shm", ONE_HOST), "hosts": ("auto", (0, 0, 1))}
OF_THREAD = threading.local()  # its group
VARIANTS: dict[str, dict[str, Any]] = {
    "long": {"shape": (300_000,)},  # what is not eager
    "longer": {"shape": (101,)},
    "new": {"shape": (77,)},  # which the group has not made before
    "root 2": {"root": 2},
    "int32": {"dtype": "int32"},
    "max": {"op": "MAX"},
}


def make_call(name: str, group: dist.ProcessGroup, seed: int) -> bool:
    """Make the call, and say whether the result is right. name: of the function, and perhaps one of VARIANTS."""
    function, _, variant = name.partition(" ")
    function = "all_gather_into_tensor" if function == "all_gather" else function
    call = Call(function, **({"shape": (100,)} | VARIANTS.get(variant, {})))
    return not made(call, group, seed).problem()


class MixUp(NamedTuple):
    """The calls of ranks 0 and 2, and those of rank 1; then all call the same again."""

    usual: Sequence[str]
    other: Sequence[str]
    then: Sequence[str] = ("all_reduce", "all_reduce")

    def calls(self, rank: int) -> list[str]:
        """Of one of the ranks."""
        return [*(self.other if rank == 1 else self.usual), *self.then]

    def position(self) -> int:
        """The first call that is not the same."""
        pairs = zip(self.calls(0), self.calls(1), strict=False)
        return next(position for position, (usual, other) in enumerate(pairs) if usual != other)


KINDS = ("broadcast", "reduce", "barrier", "all_gather", "all_reduce")
AFTERWARDS = ("broadcast", "broadcast", "broadcast", "reduce", "reduce", "all_reduce", "barrier")
PAIRS = [
    *zip(KINDS, KINDS[1:] + KINDS[:1], strict=True),
    ("broadcast", "all_reduce"),
    ("all_gather", "reduce"),
    ("barrier", "all_reduce new"),
    ("all_reduce", "reduce new"),
    ("broadcast", "broadcast root 2"),
    ("reduce", "reduce root 2"),
    ("all_reduce", "all_reduce int32"),
    ("all_reduce", "all_reduce max"),
    ("broadcast", "broadcast longer"),
    ("broadcast long", "reduce long"),
    ("broadcast long", "broadcast"),
]
MIX_UPS = [
    *(MixUp([usual], [other]) for usual, other in PAIRS),
    MixUp(["broadcast", "reduce"], ["reduce", "broadcast"]),
    MixUp(["broadcast", "all_gather"], ["all_gather", "broadcast"]),
    MixUp(["all_reduce max", "all_gather"], ["all_gather", "all_reduce max"]),
    *(MixUp([kind], []) for kind in ("broadcast", "all_gather")),
    *(MixUp([], [kind]) for kind in ("reduce", "barrier")),
    MixUp(["broadcast"], ["reduce"], AFTERWARDS),
    MixUp(["all_reduce", "broadcast", "reduce"], ["all_reduce", "reduce", "reduce"], AFTERWARDS),
    MixUp(["reduce long"], ["broadcast long"], AFTERWARDS),
]


class Told(NamedTuple):
    """The report to a rank: the error's class and message, and the calls from the mix-up on with wrong results."""

    error: str
    message: str
    wrong: list[str]


def mixed_up(_: dist.ProcessGroup, transport: str) -> list[Told]:
    """Of each mix-up, in a group of its own; all at the same time, as many of them wait for their timeout."""
    groups = [_group_that_knows(mix_up, *WHERE[transport]) for mix_up in MIX_UPS]
    new_memory = _lent_memory if transport == "lent" else views.new_memory
    with (
        mock.patch.object(views, "new_memory", new_memory),
        mock.patch.multiple(failures, LATE_GRACE_S=2.0, LIMIT_S=5.0),
        ThreadPoolExecutor(len(MIX_UPS)) as threads,
    ):
        return list(threads.map(_mix_up, MIX_UPS, groups))


def _lent_memory(length: int, dtype: torch.dtype) -> torch.Tensor:
    return collectives.empty(length, dtype=dtype, group=OF_THREAD.group)


def _group_that_knows(mix_up: MixUp, transport: str, hosts: Sequence[int]) -> dist.ProcessGroup:
    """A new group that has made the calls which are not new, in the same order on all ranks."""
    group = sharing_group(3, transport, hosts)
    assert group is not None
    for call in sorted({*mix_up.calls(0), *mix_up.calls(1)}):
        assert call.endswith("new") or make_call(call, group, 0), call
    set_timeout(group, TIMEOUT_S)
    return group


def _mix_up(mix_up: MixUp, group: dist.ProcessGroup) -> Told:
    wrong, OF_THREAD.group = [], group
    for index, call in enumerate(mix_up.calls(group.rank())):
        try:
            if not make_call(call, group, index) and index >= len(mix_up.usual):
                wrong.append(f"{index}: {call}")
        except (collectives.MismatchError, collectives.CollectiveError) as error:
            return Told(type(error).__name__, str(error), wrong)
    return Told("", "", wrong)


@pytest.mark.parametrize("transport", WHERE)
def test_all_are_told_of_both_sides(trio: RankPool, transport: str) -> None:
    """Each rank raises, and says which call all sides made where they first differ; no later result is wrong."""
    for mix_up, *told in zip(MIX_UPS, *trio.run(mixed_up, transport), strict=True):
        for rank, of_rank in enumerate(told):
            assert_told(mix_up, rank, of_rank)


def assert_told(mix_up: MixUp, rank: int, told: Told) -> None:
    """A rank is."""
    position = mix_up.position()
    usual, other = (mix_up.calls(rank)[position].partition(" ")[0] for rank in (0, 1))
    where = mix_up, rank, told.message
    assert (told.error, told.wrong) == ("CollectiveError", []), where
    told_of = told.message.partition("; the ranks do not agree on what to do: ")[2]
    sides = re.findall(r"ranks? ([012, ]+): call (\d+), (\w+)\b", told_of)
    # On a busy machine 0 or 2 may fail too late to be named; the other one then stands for their side.
    assert {ranks == "1": call for ranks, _, call in sides} == {True: other, False: usual}, where
    assert len({position for _, position, _ in sides}) == 1, where
    if mix_up.calls(rank)[position].endswith("new"):  # it was comparing that call
        before = rf"rank {rank}: before {other if rank == 1 else usual}\b[^:]*: asking what rank \d calls failed: "
        assert re.match(before + "(?!.* over 3 ranks)", told.message), where
