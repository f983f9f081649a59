"""Ranks that fail and live on: the others are told who it was, and no rank returns a sum of what was overwritten.

All faults happen at the same time, each in a group of its own, which begins without one.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives import CollectiveError, Executor
from collectives.calls.call import GroupRuntime
from collectives.runtime import state_of
from collectives.runtime.schedule_run import ScheduleRun
from ringsim import Collective, Schedule, Transfer
from ringsim.registry import build
from tests.collectives.shared_groups import (
    ONE_HOST,
    SMALL_SLOT,
    fresh_group,
    lent,
    local_ranks,
    set_timeout,
    sharing_group,
)
from tests.ranks import RankPool

TIMEOUT_S = 2.0  # once a group has begun
VICTIM = 1
WHERE = {"gloo": ("gloo", ONE_HOST), "shm": ("shm", ONE_HOST), "hosts": ("auto", (0, 0, 1))}
Group = dist.ProcessGroup


def said(call: Callable[..., object], *arguments: object, **options: object) -> str:
    """Return the error that a call raises."""
    try:
        call(*arguments, **options)
    except (CollectiveError, KeyboardInterrupt, MemoryError, ZeroDivisionError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def never_calls(group: Group) -> str:
    """One rank makes no call of the group, not even the first."""
    return "" if group.rank() == VICTIM else said(collectives.all_reduce, torch.ones(3), group=group)


def stops_reading(group: Group) -> str:
    """One rank does not read what the root lends."""
    if group.rank() == VICTIM:
        return ""
    return said(collectives.broadcast, lent(group, length=100), 0, group=group, algorithm="direct")


def is_gone(group: Group) -> str:
    """The connections to one rank close; the root of broadcasts waits for nobody else."""
    if group.rank() == VICTIM:
        local_ranks(group).close()
        return ""
    try:
        while True:
            collectives.broadcast(torch.ones(100), 0, group=group, algorithm="direct")
    except CollectiveError as error:
        return f"{error.peer}: {error}"


def has_no_room(group: Group) -> str:
    """One rank raises an error of its own in a call."""
    if group.rank() == VICTIM:
        executor, *_ = state_of(group).part(GroupRuntime).executors.values()
        executor.carry_out = mock.Mock(side_effect=MemoryError("no room"))  # type: ignore[method-assign]
    return said(collectives.all_reduce, torch.ones(1), group=group)


def failing(chunk: torch.Tensor, arrived: torch.Tensor) -> None:
    """A user's `reduce`, with a fault in the middle."""
    chunk[: len(chunk) // 2].add_(arrived[: len(chunk) // 2])
    raise ZeroDivisionError(f"{len(chunk)} elements")


def raises_in_reduce(group: Group) -> str:
    """Two runs of an executor, in the first of which the `reduce` of one rank raises."""
    executor = Executor(build(Collective.ALL_REDUCE, "ring", group.size()), group)
    reduce = failing if group.rank() == VICTIM else torch.Tensor.add_
    first = said(executor.run, torch.ones(12), reduce=reduce)
    return f"{first}; then {said(executor.run, torch.ones(12))}"


def raises_and_overwrites(group: Group) -> str:
    """With several algorithms, each in a group of its own: the sums that ranks return nevertheless."""
    results = set()
    for other, algorithm in zip(_GROUPS_OF_ALGORITHMS, ALGORITHMS, strict=True):
        tensor = lent(other)
        executor = Executor(build(Collective.ALL_REDUCE, algorithm, other.size()), other)
        error = said(executor.run, tensor, reduce=failing if group.rank() == VICTIM else torch.Tensor.add_)
        kind, is_raised, _ = error.partition(":")
        results.add(kind if is_raised else f"{kind}: {tensor.unique().tolist()}")
        tensor.fill_(99.0)
    return ", ".join(sorted(results))


ALGORITHMS = ("ring", "halving_doubling", "two_shot", "recursive_doubling", "direct")
_GROUPS_OF_ALGORITHMS: list[Group] = []


def is_interrupted(group: Group) -> str:
    """Ctrl-C on one rank as it waits for another one, which comes later."""
    store = group.get_group_store()
    if group.rank() == VICTIM:
        local_ranks(group)._look = mock.Mock(side_effect=KeyboardInterrupt)  # type: ignore[method-assign]
    elif group.rank() == 0:
        store.wait(["interrupted"])
    told = said(collectives.all_reduce, torch.ones(1), group=group)
    store.set("interrupted", "")
    return told


def is_interrupted_in_between(group: Group) -> str:
    """Ctrl-C on one rank when it has ended the first of many portions."""
    run = ScheduleRun.run

    def run_and_interrupt(portion: ScheduleRun) -> None:
        run(portion)
        if portion.group is group and group.rank() == VICTIM:
            raise KeyboardInterrupt

    with mock.patch.object(ScheduleRun, "run", run_and_interrupt):
        return said(collectives.all_reduce, torch.ones(100_000), group=group)


CHAIN = [[Transfer(0, 1, 0, True)], [Transfer(1, 2, 0, True)]]


def overwrites(group: Group, lenders: tuple[int, ...] = (0, 1, 2), num_steps: int = 2) -> str:
    """Rank 0 is interrupted, and changes its tensor, before rank 1 has read it, and perhaps passed the sum on."""
    store = group.get_group_store()

    def add_late(chunk: torch.Tensor, arrived: torch.Tensor) -> None:
        store.wait(["overwritten"])
        chunk.add_(arrived)

    executor = Executor(Schedule.from_transfers(Collective.ALL_REDUCE, "chain", 3, 1, CHAIN[:num_steps]), group)
    tensor = lent(group) if group.rank() in lenders else torch.ones(1000)
    if group.rank() == 0:
        local_ranks(group).take_back = mock.Mock(side_effect=KeyboardInterrupt)  # type: ignore[method-assign]
    told = said(executor.run, tensor, reduce=add_late if group.rank() == 1 else torch.Tensor.add_)
    tensor.fill_(99.0)
    if group.rank() == 0:
        store.set("overwritten", "")
    return told


class Case(NamedTuple):
    """A fault, the way that chunks travel, and patterns of the ranks' reports."""

    fault: Callable[[Group], str]
    where: str
    reports: tuple[str, ...]


def on_all(others: str, victim: str) -> tuple[str, str, str]:
    """Return the patterns for all three ranks; others: with a place for the rank."""
    return others.replace("RANK", "0"), victim, others.replace("RANK", "2")


FIRST = "; the first rank to (?:stop responding|fail) was rank {}"
INTERRUPTED = FIRST.format("1: KeyboardInterrupt.*")
OURS = r"CollectiveError: rank RANK: all_reduce ring over 3 ranks: .*"
CLOSED = OURS + "failed: the connection is closed.*"
NO_ROOM = OURS + FIRST.format("1: MemoryError: no room")
AFTERWARDS = "; then CollectiveError: .*an earlier failure has closed the connections to the other ranks of this host.*"
MAYBE = r"(CollectiveError|ZeroDivisionError|nothing was raised: \[3\.0\])(, nothing was raised: \[3\.0\])?"
RAISED = r"ZeroDivisionError, nothing was raised: \[3\.0\]"  # where it has nothing to add, it is as the others
CHANGED = ".*rank 0 has failed, and may have overwritten its tensor while this rank read it.*"
OVERWRITTEN = ("KeyboardInterrupt: ", CHANGED, "CollectiveError: rank 2: .*")
STALLED = "CollectiveError: rank 0: broadcast .*: after the last step: timed out after 2 s: rank 1 has yet to read .*"
LEARNING = "learning about shared memory from rank 1 failed: .*"
BEFORE = "CollectiveError: .*: rank RANK: before step 0: " + LEARNING + FIRST.format(1)
GONE = (
    r"1: rank 0: broadcast direct over 3 ranks: before step 0: the connection is closed: rank 1 has yet to read what "
    r"was sent before \(0 of 2 sends left, 0 of 0 receives applied\)" + FIRST.format(1)
)
CASES = {
    "never calls": Case(never_calls, "new", on_all(BEFORE, "")),
    "stops reading": Case(stops_reading, "shm", (STALLED + FIRST.format(1), "", "CollectiveError: .*|nothing .*")),
    "is gone": Case(is_gone, "shm", (GONE, "", ".*" + FIRST.format(1))),
    **{
        f"has no room, {where}": Case(has_no_room, where, on_all(NO_ROOM, "MemoryError: no room"))
        for where in ("gloo", "shm", "hosts")
    },
    "raises in reduce": Case(
        raises_in_reduce, "shm", on_all(CLOSED + AFTERWARDS, "ZeroDivisionError: 4 elements" + AFTERWARDS)
    ),
    "raises and overwrites": Case(raises_and_overwrites, "shm", on_all(MAYBE, RAISED)),
    "is interrupted": Case(is_interrupted, "shm", on_all(OURS + INTERRUPTED, "KeyboardInterrupt: ")),
    "is interrupted between portions": Case(is_interrupted_in_between, "shm", on_all(CLOSED, "KeyboardInterrupt: ")),
    "overwrites what it lends": Case(overwrites, "shm", OVERWRITTEN),
    "overwrites, others copy": Case(partial(overwrites, lenders=(0,)), "shm", OVERWRITTEN),
    "overwrites, nobody else reads": Case(partial(overwrites, num_steps=1), "shm", (*OVERWRITTEN[:2], ".*")),
    "overwrites, two hosts": Case(overwrites, "hosts", OVERWRITTEN),
}


def all_at_once(_: Group) -> list[str]:
    """Return the reports of this rank."""
    groups = [_begun(case.where) for case in CASES.values()]
    _GROUPS_OF_ALGORITHMS[:] = (_begun("shm") for _ in ALGORITHMS)
    with ThreadPoolExecutor(len(CASES)) as threads:
        return list(threads.map(lambda case, group: case.fault(group), CASES.values(), groups))


def _begun(where: str) -> Group:
    group = fresh_group(3) if where == "new" else sharing_group(3, *WHERE[where], SMALL_SLOT)
    assert group is not None
    if where != "new":
        collectives.broadcast(torch.ones(100), 0, group=group, algorithm="direct")
        collectives.all_reduce(torch.ones(1), group=group)  # the messages of the first one carry a stamp
    set_timeout(group, TIMEOUT_S)
    return group


@pytest.fixture(scope="module")
def reports() -> Iterator[dict[str, tuple[str, ...]]]:
    """By fault, the report of each rank."""
    with RankPool(3) as pool:
        yield dict(zip(CASES, zip(*pool.run(all_at_once), strict=True), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_all_are_told(reports: dict[str, tuple[str, ...]], name: str) -> None:
    """Each rank's report is as it must be."""
    for report, pattern in zip(reports[name], CASES[name].reports, strict=True):
        assert re.fullmatch(pattern, report), report
