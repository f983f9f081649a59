"""A peer that dies or stalls: an error on every other rank, in time, that says who waits for whom."""

import os
import random
import re
import signal
import sys
import time
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives import CollectiveError, Event, Executor
from collectives.runtime.transport import Transport
from ringsim import Collective, Schedule
from ringsim.registry import build
from ringsim.schedule.program import rank_program
from tests.collectives.shared_groups import ONE_HOST, PAIRS, on_hosts
from tests.collectives.travel import travelling
from tests.forked import Answer, Leaving
from tests.fuzz.calls import Call
from tests.ranks import RankPool, Ranks

PEER_TIMEOUT_S = 2.0
SOON_S = 20.0  # far from the timeout of a group in which nobody waits for it, also on a busy machine


def reduce_once(group: dist.ProcessGroup) -> None:
    """A first call: the ranks know each other, and what they call."""
    collectives.all_reduce(torch.ones(100_000), group=group)


def reduce_for_ever(group: dist.ProcessGroup) -> None:
    """All-reduce until something goes wrong, which it will."""
    while True:
        collectives.all_reduce(torch.ones(100_000), group=group)


def test_the_others_are_told_of_one_that_stalls() -> None:
    """Rank 1 of three stops in the middle; ranks 0 and 2 raise within the timeout, naming step and peer."""
    with RankPool(3, PEER_TIMEOUT_S) as pool:
        pool.run(reduce_once)
        pool.start(reduce_for_ever)
        time.sleep(0.5)  # not to wait for a result: to let the collectives get going before the fault
        pool.ranks.signal(1, signal.SIGSTOP)
        answers = pool.answers([0, 2], timeout_s=8 * PEER_TIMEOUT_S)
    assert sorted(answers) == [0, 2], "a rank hangs"
    for rank, (good, text) in answers.items():
        assert not good
        last = [line for line in text.splitlines() if "CollectiveError: " in line][-1]
        assert f"rank {rank}: all_reduce ring over 3 ranks: step " in last
        assert "chunk " in last
        assert re.search(r"(receiving chunk \d from|sending chunk \d to) rank \d failed: ", last)
        assert last.endswith("; the first rank to stop responding was rank 1")


class Fuse(list[Event]):
    """A log that kills its process at the event of that number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def append(self, event: Event) -> None:
        """Note it, and perhaps do no more."""
        super().append(event)
        if len(self) > self._number:
            os.kill(os.getpid(), signal.SIGKILL)


Report = tuple[str, str, str, list[tuple], str, str]


class Way(NamedTuple):
    """How chunks travel, and on which host each rank takes itself to be."""

    transport: str
    hosts: tuple[int, ...] = ONE_HOST


def struck(way: Way, victim: int, fuse: int, call: Call) -> tuple[Report, float]:
    """All-reduce until the victim dies: the error, its flight record, and those of calls of each kind after it.

    And when that was over.
    """
    group = dist.group.WORLD
    assert group is not None
    collectives.use_transport(way.transport, group)
    if group.rank() == victim:
        log_all_reduces(Fuse(fuse))
    tensor = torch.ones(call.shape)
    errors = []
    with on_hosts(group.rank(), way.hosts):
        for again in (call.asynchronous, False, True):
            try:
                while True:
                    work = collectives.all_reduce(tensor, group=group, algorithm=call.algorithm, async_op=again)
                    if work is not None:
                        work.wait()
            except CollectiveError as error:
                errors.append(error)
    first, *later = errors
    assert first.flight_record is not None
    entries = [tuple(entry) for entry in first.flight_record.entries]
    report = str(first), str(first.flight_record), first.flight_record.table(), entries, *map(str, later)
    return report, time.monotonic()


GLOO, SHM = Way("gloo"), Way("shm")


def log_all_reduces(log: list[Event]) -> None:
    """Let every all_reduce of this process note its events there."""
    run = Executor.run

    def noting(executor: Executor, *arguments: Any, **options: Any) -> None:
        if executor.schedule.collective is Collective.ALL_REDUCE:
            options["log"] = log
        run(executor, *arguments, **options)

    Executor.run = noting  # type: ignore[method-assign]


def strike(seed: int, way: Way, num_ranks: int = 0, timeout_s: float = 60.0) -> None:
    """Kill a random rank of a few at a random one of its transfers, in its first collectives or a little later."""
    draw = random.Random(seed)
    num_ranks = num_ranks or draw.randint(2, 4)
    algorithm = draw.choice(["ring", "halving_doubling", "double_binary_tree", "two_shot"])
    schedule = build(Collective.ALL_REDUCE, algorithm, num_ranks)
    victim, fuse = draw.randrange(num_ranks), draw.randrange(4 * schedule.num_steps)
    length, asynchronous = draw.choice([0, 1, 1000, 500_000]), draw.random() < 0.5
    survivors = [rank for rank in range(num_ranks) if rank != victim]
    with Ranks(num_ranks, timeout_s) as ranks:
        began_s = time.monotonic()
        ranks.start(struck, way, victim, fuse, Call(algorithm=algorithm, shape=(length,), asynchronous=asynchronous))
        answers = ranks.answers(survivors, 120)
        assert sorted(answers) == survivors, f"a rank hangs\n{ranks.remains()}"
        assert ranks.codes(0)[victim] in (None, -signal.SIGKILL)
    for rank, answer in answers.items():
        assert answer.good, answer.value
        report, told_s = answer.value
        assert_told(schedule, rank, report, victim)
        assert told_s - began_s < SOON_S


def assert_told(schedule: Schedule, rank: int, report: Report, victim: int) -> None:
    """Rank, step, chunk, peer and flight record agree with one another and with the schedule; and who died is named."""
    message, summary, table, entries, *later = report
    told = re.fullmatch(
        rf"rank {rank}: {schedule}: step (\d+): (sending|receiving) chunk (\d+) (?:to|from) rank (\d+) failed: .+ "
        r"\((\d+) of (\d+) sends left, (\d+) of (\d+) receives applied\)"
        rf"; the first rank to stop responding was rank {victim}",
        message,
    )
    assert told, message
    assert f" ({summary}); " in message
    step, doing, chunk, peer, left, sends, applied, receives = told.groups()
    program = rank_program(schedule, rank)
    assert (int(sends), int(receives)) == (len(program.sends), len(program.receives))
    states = {(kind, *place): state for kind, *place, state in entries}
    kind = {"sending": "send", "receiving": "receive"}[doing]
    assert states[kind, int(step), int(peer), int(chunk)] not in {"left", "applied"}
    assert int(left) == sum(entry[-1] == "left" for entry in entries)
    assert int(applied) == sum(entry[-1] == "applied" for entry in entries)
    assert len(table.splitlines()) == len(entries)
    assert later == [f"an earlier collective of this group failed: {message}"] * 2


GLOO_S, HOSTS_S = 4.0, 5.0  # timeouts of groups in which a rank that lost no connection waits for one that died


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 105, 10))])
def test_killed_at_any_transfer(seed: int) -> None:
    """Every survivor says where it was and how far it had got, and refuses further calls at once."""
    strike(seed, GLOO, timeout_s=GLOO_S)


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 30))])
def test_killed_at_any_transfer_through_shared_memory(seed: int) -> None:
    """Every survivor is told at once, and not after the group's timeout."""
    strike(seed, SHM)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_killed_among_several_hosts(seed: int) -> None:
    """Who is on another host may find out only after the timeout, as with Gloo alone, but names the same rank."""
    strike(seed, Way("auto", PAIRS), num_ranks=4, timeout_s=HOSTS_S)


def struck_in_batches(group: dist.ProcessGroup, victim: int, fuse: int) -> tuple[str, str, int]:
    """Return the error of an executor whose steps are launched as groups, as on NCCL, when the victim dies."""
    executor = Executor(build(Collective.ALL_REDUCE, "ring", group.size()), group)
    log = Fuse(fuse if group.rank() == victim else sys.maxsize)
    with travelling(group, Transport.BATCHED):
        try:
            while True:
                executor.run(torch.ones(1000), log=log)
        except CollectiveError as error:
            return str(error), str(error.flight_record), len(getattr(error.flight_record, "entries", ()))


@pytest.mark.parametrize("fuse", [0, 7])
def test_killed_in_a_batched_run(fuse: int) -> None:
    """The survivors are told rank, step and peers, and how far they had got."""
    schedule = build(Collective.ALL_REDUCE, "ring", 3)
    with RankPool(3, peer_timeout_s=20.0) as pool:  # nobody waits for it: all see its connections close
        pool.start(struck_in_batches, 1, fuse)
        answers = pool.answers([0, 2], timeout_s=60)
    assert sorted(answers) == [0, 2], "a rank hangs"
    for rank, (good, report) in answers.items():
        assert good, report
        message, summary, num_transfers = report
        one = r"(sending|receiving) chunk \d (to|from) rank \d"
        several = r"sending to and receiving from ranks \d(, \d)*"
        assert re.fullmatch(rf"rank {rank}: {schedule}: step \d: ({one}|{several}) failed: .+ \(.+\)", message), message
        assert message.endswith(f"({summary})")
        program = rank_program(schedule, rank)
        assert num_transfers == len(program.sends) + len(program.receives)


def leaving(destroy: bool) -> Leaving:
    """A program that ends with exit code 3 after an error, as rank 1 of three dies."""
    collectives.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    works = [collectives.all_reduce(torch.ones(500_000), async_op=True) for _ in range(3)]
    with pytest.raises(CollectiveError):
        works[0].wait()
    return Leaving(None, "destroy" if destroy else "sys.exit", 3)


@pytest.mark.parametrize("destroy", [False, True])
def test_a_survivor_can_end(destroy: bool) -> None:
    """With sys.exit, whether or not it destroys its groups before, and with calls still in the queue."""
    with Ranks(3, 10.0) as ranks:
        ranks.start(leaving, destroy)
        assert ranks.answers([0, 2], 60) == dict.fromkeys([0, 2], Answer(True, None)), ranks.remains()
        assert ranks.codes() == [3, -signal.SIGKILL, 3], ranks.remains()
