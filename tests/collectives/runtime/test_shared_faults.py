"""Ranks that share memory and die, stall, fail or leave: the others are told at once, and who leaves harms nobody."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives import CollectiveError, Executor
from collectives.shared_memory import MEETING_TIMEOUT_S, Meeting
from collectives.shared_memory.meeting import LOOK_S
from ringsim import Collective
from ringsim.registry import build
from tests.collectives.runtime.test_faults import SOON_S, Fuse, log_all_reduces
from tests.collectives.shared_groups import local_ranks, shared_by
from tests.forked import Leaving
from tests.ranks import Ranks

TIMEOUT_S = 60.0  # of a group in which nobody waits for it
STARTS_S = 120.0


def shared_world() -> dist.ProcessGroup:
    """The group of all ranks, which share memory."""
    group = dist.group.WORLD
    assert group is not None
    collectives.use_transport("shm", group)
    return group


def answers_of(ranks: Ranks, expected: list[int], limit_s: float = STARTS_S) -> dict[int, Any]:
    """Return the result of the task on those ranks, all of which must answer."""
    answers = ranks.answers(expected, limit_s)
    assert sorted(answers) == expected, f"a rank hangs\n{ranks.remains()}"
    for answer in answers.values():
        assert answer.good, answer.value
    return {rank: answer.value for rank, answer in answers.items()}


def kill() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def pause() -> None:
    """Stop this process for longer than ranks look whether it is still there."""
    subprocess.Popen(["sh", "-c", f"sleep {10 * LOOK_S}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def struck_at_the_meeting(victim: int, act: Callable[[], None]) -> tuple[str, float]:
    """Return a first collective's result where the victim acts once all know how to reach it; and the time."""
    group, meet = shared_world(), Meeting.meet

    def struck_and_met(*arguments: Any) -> Any:
        act()
        return meet(*arguments)

    tensor = torch.ones(10)
    with mock.patch.object(Meeting, "meet", struck_and_met if group.rank() == victim else meet):
        try:
            collectives.all_reduce(tensor, group=group)
        except CollectiveError as error:
            return str(error), time.monotonic()
    return f"{tensor.sum().item()}, on one host: {shared_by(group).on_one_host}", time.monotonic()


@pytest.mark.parametrize("victim", [1, 2])
def test_killed_before_it_connects(victim: int) -> None:
    """Long before the time of the meeting, and that of the group, is over, all name it."""
    with Ranks(3, timeout_s=1800.0) as ranks:
        began_s = time.monotonic()
        ranks.start(struck_at_the_meeting, victim, kill)
        reports = answers_of(ranks, [rank for rank in range(3) if rank != victim])
    for message, told_s in reports.values():
        assert message.endswith(f"; the first rank to stop responding was rank {victim}")
        assert told_s - began_s < MEETING_TIMEOUT_S / 2


def test_paused_before_it_connects() -> None:
    """Nobody takes it for dead: all share memory."""
    with Ranks(3, TIMEOUT_S) as ranks:
        ranks.start(struck_at_the_meeting, 2, pause)
        reports = answers_of(ranks, [0, 1, 2])
    assert {report for report, _ in reports.values()} == {"30.0, on one host: True"}


def killed_with_the_store(port: int, transport: str) -> Leaving | str:
    """Return a rank's error when rank 0, which serves the store, dies while others wait for it or one another."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_ranks)
    collectives.use_transport(transport)
    for turn in range(100):
        if (rank, turn) == (0, 7):
            kill()
        try:
            collectives.all_reduce(torch.ones(1000))
        except CollectiveError as error:
            return Leaving(str(error), "os._exit")  # which others may be waiting for
    return "nothing was raised"


def with_the_store(transport: str) -> dict[int, str]:
    """The reports of the ranks that are left."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with Ranks(4, TIMEOUT_S) as ranks:
        ranks.start(killed_with_the_store, port, transport)
        return answers_of(ranks, [1, 2, 3])


def test_the_store_dies_with_rank_0() -> None:
    """The connections through which ranks wake each other tell who ended, and who only failed since."""
    for report in with_the_store("shm").values():
        assert report.endswith("; the first rank to stop responding was rank 0")


def test_the_store_dies_with_rank_0_over_gloo() -> None:
    """A rank may find other connections closed, too; that of the rank that served the store it names."""
    for report in with_the_store("gloo").values():
        assert re.search("; the first rank to stop responding was (probably )?rank 0$", report), report


def broadcast_for_ever(victim: int) -> str:
    """Rank 0 waits for nobody."""
    group = shared_world()
    for turn in range(1000):
        if (group.rank(), turn) == (victim, 7):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            collectives.broadcast(torch.ones(100), 0, group=group, algorithm="direct")
        except CollectiveError as error:
            return f"{error.peer}: {error}"
    return "nothing was raised"


def test_the_root_of_a_broadcast_is_told() -> None:
    """It receives nothing, but it finds out when its slot is not read any more."""
    with Ranks(3, TIMEOUT_S) as ranks:
        ranks.start(broadcast_for_ever, 2)
        reports = answers_of(ranks, [0, 1])
    assert reports[0].startswith(
        "2: rank 0: broadcast direct over 3 ranks: before step 0: the connection is closed: rank 2 has yet to read"
        " what was sent before (0 of 2 sends left, 0 of 0 receives applied)"
    )
    for report in reports.values():
        assert report.endswith("; the first rank to stop responding was rank 2")


def stalled(victim: int) -> tuple[str, float]:
    """Return the error of a rank when the victim stops, and how long the last call took."""
    group = shared_world()
    for turn in range(100):
        if (group.rank(), turn) == (victim, 3):
            os.kill(os.getpid(), signal.SIGSTOP)
        began_s = time.monotonic()
        try:
            collectives.all_reduce(torch.ones(1000), group=group)
        except CollectiveError as error:
            return str(error), time.monotonic() - began_s
    return "nothing was raised", 0.0


def test_one_that_stalls() -> None:
    """The others raise after the group's timeout, and name it."""
    with Ranks(3, timeout_s=2.0) as ranks:
        ranks.start(stalled, 1)
        reports = answers_of(ranks, [0, 2])
    for message, took_s in reports.values():
        assert ": step " in message
        assert message.endswith("; the first rank to stop responding was rank 1")
        assert took_s > 1.9
    assert any("timed out after 2 s" in message for message, _ in reports.values())


def failing(chunk: torch.Tensor, arrived: torch.Tensor) -> None:
    """A user's `reduce`, with a fault."""
    raise ZeroDivisionError(f"{len(chunk)} elements and {len(arrived)}")


def failed_by_itself(victim: int) -> list[str]:
    """Return the errors of two runs of an executor, in the first of which a rank's `reduce` raises."""
    group = shared_world()
    executor = Executor(build(Collective.ALL_REDUCE, "ring", group.size()), group)
    executor.run(torch.ones(12))
    errors = []
    for reduce in (failing if group.rank() == victim else torch.Tensor.add_, torch.Tensor.add_):
        try:
            executor.run(torch.ones(12), reduce=reduce)
        except (CollectiveError, ZeroDivisionError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    return errors


def test_a_reduce_that_raises() -> None:
    """The rank raises what its `reduce` did, the others that its connection is closed; no group is used on."""
    with Ranks(3, TIMEOUT_S) as ranks:
        began_s = time.monotonic()
        ranks.start(failed_by_itself, 1)
        reports = answers_of(ranks, [0, 1, 2])
        assert time.monotonic() - began_s < SOON_S
    assert reports[1][0] == "ZeroDivisionError: 4 elements and 4"
    for rank in (0, 2):
        assert f"CollectiveError: rank {rank}: all_reduce ring over 3 ranks: step " in reports[rank][0]
        assert "failed: the connection is closed" in reports[rank][0]
    for errors in reports.values():
        assert errors[1].startswith("CollectiveError: ")
        assert "an earlier failure has closed the connections to the other ranks of this host" in errors[1]


def a_few_and_gone(calls: int, length: int, algorithm: str, how: str) -> Leaving:
    """Some collectives, after which the rank leaves at once."""
    group = shared_world()
    right = True
    for turn in range(calls):
        tensor = torch.full((length,), float(turn))
        collectives.all_reduce(tensor, group=group, algorithm=algorithm)
        right &= bool((tensor == turn * group.size()).all())
    assert all(rank in local_ranks(group) for rank in range(group.size()))
    return Leaving(right, how)


@pytest.mark.parametrize(("times", "how"), [(3, "os._exit"), (1, "return"), (1, "destroy")])
def test_who_leaves_after_the_last_collective_harms_nobody(times: int, how: str) -> None:
    """Whoever is last."""
    for turn in range(times):
        with Ranks(4, TIMEOUT_S) as ranks:
            algorithm = ("ring", "binomial_tree", "direct")[turn % 3]
            ranks.start(a_few_and_gone, 1 + turn % 3, (3, 3_000_000)[turn % 2], algorithm, how)
            assert answers_of(ranks, [0, 1, 2, 3]) == dict.fromkeys(range(4), True)
            assert ranks.codes() == [0] * 4


def with_a_child(victim: int) -> tuple[str, float]:
    """The victim has a child that outlives it."""
    group = shared_world()
    collectives.all_reduce(torch.ones(3), group=group)
    if group.rank() == victim:
        if os.fork() == 0:
            time.sleep(SOON_S)
            os._exit(0)
        log_all_reduces(Fuse(5))
    try:
        while True:
            collectives.all_reduce(torch.ones(3), group=group)
    except CollectiveError as error:
        return str(error), time.monotonic()


def test_a_child_of_the_dead() -> None:
    """Keeps none of its connections."""
    with Ranks(2, TIMEOUT_S) as ranks:
        began_s = time.monotonic()
        ranks.start(with_a_child, 1)
        message, told_s = answers_of(ranks, [0])[0]
    assert told_s - began_s < SOON_S
    assert message.endswith("; the first rank to stop responding was rank 1")


def interrupted(call: Callable[[], object]) -> str:
    """Return the error that a call raises."""
    try:
        call()
    except (KeyboardInterrupt, CollectiveError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def interrupted_rank() -> str:
    """Ctrl-C on rank 0 as it waits for rank 1, which comes later."""
    group = shared_world()
    collectives.all_reduce(torch.ones(3), group=group)
    if group.rank() == 0:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    else:
        time.sleep(1)  # not to wait for a result, but to be late
    return interrupted(lambda: collectives.all_reduce(torch.ones(3), group=group))


def test_an_interrupt_is_told_to_the_others() -> None:
    """At once, and which rank it was."""
    with Ranks(2, TIMEOUT_S) as ranks:
        began_s = time.monotonic()
        ranks.start(interrupted_rank)
        reports = answers_of(ranks, [0, 1])
        assert time.monotonic() - began_s < SOON_S
    assert reports[0].startswith("KeyboardInterrupt")
    assert reports[1].startswith("CollectiveError: rank 1: ")
    assert "rank 0: KeyboardInterrupt" in reports[1]
