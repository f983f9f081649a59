"""A rank that dies, stops or leaves: an error on every other rank, in time, that says who waits for whom."""

import os
import random
import re
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch.nn.parallel import DistributedDataParallel

import collectives
from collectives import CollectiveError, Event, Executor, FlightRecord
from collectives.runtime import RunOperands, Transport
from collectives.shared_memory import MEETING_TIMEOUT_S, Meeting
from ringsim import Collective, Schedule
from ringsim.registry import build
from ringsim.schedule import rank_program
from tests.collectives.shared_groups import ONE_HOST, PAIRS, finish, on_hosts, set_timeout
from tests.collectives.travel import travelling
from tests.forked import Leaving
from tests.fuzz.calls import Call
from tests.ranks import Ranks, free_port, whole_group_on

TIMEOUT_S = 60.0  # of a group in which nobody waits for it
SOON_S = 20.0  # far from that, also on a busy machine
STARTS_S = 120.0
STOPPED = "; the first rank to stop responding was rank "


def answers_of(ranks: Ranks, expected: list[int]) -> dict[int, Any]:
    """Return the result of the task on those ranks, all of which must answer."""
    answers = ranks.answers(expected, STARTS_S)
    assert sorted(answers) == expected, f"a rank hangs\n{ranks.remains()}"
    for answer in answers.values():
        assert answer.good, answer.value
    return {rank: answer.value for rank, answer in answers.items()}


class Way(NamedTuple):
    """How chunks travel, on which host each rank takes itself to be, and the timeout for ranks that lose nobody."""

    transport: str
    hosts: tuple[int, ...] = ONE_HOST
    is_batched: bool = False
    is_lent: bool = False
    timeout_s: float = 2.0


WAYS = {
    "gloo": Way("gloo"),
    "batches": Way("gloo", is_batched=True),
    "shm": Way("shm", timeout_s=TIMEOUT_S),
    "lent": Way("shm", is_lent=True, timeout_s=TIMEOUT_S),
    "hosts": Way("auto", PAIRS),
}
STOP_S = 1.0  # timeout of a group in which a rank stops


class Fuse(list[Event]):
    """A log that sends its process a signal at the event of that number."""

    def __init__(self, number: int, strike: signal.Signals) -> None:
        super().__init__()
        self._number, self._strike = number, strike

    def append(self, event: Event) -> None:
        """Note it, and perhaps do no more."""
        super().append(event)
        if len(self) > self._number:
            os.kill(os.getpid(), self._strike)


class Report(NamedTuple):
    """The error of a rank, its flight record, the errors of calls of each kind after it, and when that was over."""

    message: str
    record: FlightRecord
    later: list[str]
    told_s: float


def struck(way: Way, timeout_s: float, victim: int, fuse: Fuse, call: Call) -> Report:
    """All-reduce until something is wrong, which is never a result."""
    group = dist.group.WORLD
    assert group is not None
    collectives.use_transport(way.transport, group)
    with on_hosts(group.rank(), way.hosts):
        collectives.barrier(group)
    set_timeout(group, timeout_s)
    if group.rank() == victim:
        log_all_reduces(fuse)
    tensor = collectives.empty(call.shape) if way.is_lent else torch.empty(call.shape)
    errors = []
    with travelling(group, Transport.BATCHED) if way.is_batched else nullcontext():
        for again in (call.asynchronous, False, True):
            try:
                while True:
                    tensor.fill_(1)
                    finish(collectives.all_reduce(tensor, group=group, algorithm=call.algorithm, async_op=again))
                    assert (tensor == group.size()).all()
            except CollectiveError as error:
                errors.append(error)
    first, *later = errors
    assert first.flight_record is not None
    return Report(str(first), first.flight_record, list(map(str, later)), time.monotonic())


def log_all_reduces(log: list[Event]) -> None:
    """Let every all_reduce of this process note its events there."""
    carry_out = Executor.carry_out

    def noting(executor: Executor, operands: RunOperands) -> None:
        is_noted = executor.schedule.collective is Collective.ALL_REDUCE
        carry_out(executor, replace(operands, log=log) if is_noted else operands)

    Executor.carry_out = noting  # type: ignore[method-assign]


NUM_SEEDS = {
    signal.SIGKILL: {"gloo": 5, "batches": 3, "shm": 9, "lent": 4, "hosts": 3},
    signal.SIGSTOP: {"gloo": 2, "shm": 2},
}
STRIKES = [
    pytest.param(way, strike, seed, id=f"{way} {strike.name} {seed}", marks=[pytest.mark.slow] * is_slow)
    for strike, numbers in NUM_SEEDS.items()
    for way, number in numbers.items()
    for seed in range(number)
    for is_slow in [seed > 0 or (way, strike) == ("shm", signal.SIGSTOP)]
]


@pytest.mark.parametrize(("name", "strike", "seed"), STRIKES)
def test_struck_at_any_transfer(name: str, strike: signal.Signals, seed: int) -> None:
    """A random rank, in its first collectives or a little later: each other one says where it was, and who it was.

    Over shared memory all are told of a death at once. Who is on another host may find out only after the timeout.
    """
    draw, way = random.Random(seed), WAYS[name]
    num_ranks = 4 if name == "hosts" else draw.randint(2, 4)
    algorithm = draw.choice(["ring", "halving_doubling", "double_binary_tree", "two_shot"])
    schedule = build(Collective.ALL_REDUCE, algorithm, num_ranks)
    victim, fuse = draw.randrange(num_ranks), draw.randrange(4 * schedule.num_steps)
    call = Call(algorithm=algorithm, shape=(draw.choice([0, 1, 1000, 500_000]),), asynchronous=draw.random() < 0.5)
    timeout_s = way.timeout_s if strike is signal.SIGKILL else STOP_S
    with Ranks(num_ranks, TIMEOUT_S) as ranks:
        began_s = time.monotonic()
        ranks.start(struck, way, timeout_s, victim, Fuse(fuse, strike), call)
        reports = answers_of(ranks, [rank for rank in range(num_ranks) if rank != victim])
    for rank, report in reports.items():
        assert_told(schedule, rank, report, victim)
        assert report.told_s - began_s < SOON_S


def assert_told(schedule: Schedule, rank: int, report: Report, victim: int) -> None:
    """Rank, step, chunk, peer and flight record agree with one another and with the schedule; the victim is named."""
    message, entries = report.message, report.record.entries
    told = re.fullmatch(
        rf"rank {rank}: {schedule}: step (\d+): "
        r"(?:(sending|receiving) chunk (\d+) (?:to|from) rank (\d+)|sending to and receiving from ranks \d(?:, \d)*)"
        rf" failed: .+ \((\d+) of (\d+) sends left, (\d+) of (\d+) receives applied\){STOPPED}{victim}",
        message,
    )
    assert told, message
    assert f" ({report.record}); " in message
    step, doing, chunk, peer, left, sends, applied, receives = told.groups()
    program = rank_program(schedule, rank)
    assert (int(sends), int(receives)) == (len(program.sends), len(program.receives))
    states = {(kind, *place): state for kind, *place, state in entries}
    if doing:
        kind = {"sending": "send", "receiving": "receive"}[doing]
        assert states[kind, int(step), int(peer), int(chunk)] not in {"left", "applied"}
    assert int(left) == sum(entry[-1] == "left" for entry in entries)
    assert int(applied) == sum(entry[-1] == "applied" for entry in entries)
    assert len(report.record.table().splitlines()) == len(entries)
    assert report.later == [f"an earlier collective of this group failed: {message}"] * 2


def kill(*_: object) -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at_the_meeting(victim: int) -> tuple[str, float]:
    """Return the error of a first collective where the victim dies once all know how to reach it; and the time."""
    collectives.use_transport("shm", dist.group.WORLD)
    with mock.patch.object(Meeting, "meet", side_effect=kill) if dist.get_rank() == victim else nullcontext():
        try:
            collectives.all_reduce(torch.ones(10))
        except CollectiveError as error:
            return str(error), time.monotonic()
    return "nothing was raised", 0.0


def test_killed_before_it_connects() -> None:
    """Long before the time of the meeting, and that of the group, is over, all name it."""
    with Ranks(3, timeout_s=1800.0) as ranks:
        began_s = time.monotonic()
        ranks.start(killed_at_the_meeting, 1)
        reports = answers_of(ranks, [0, 2])
    for message, told_s in reports.values():
        assert message.endswith(f"{STOPPED}1"), message
        assert told_s - began_s < MEETING_TIMEOUT_S / 2


def with_a_store_of_rank_0(port: int, transport: str, victim: int) -> Leaving:
    """Return a rank's error when the victim dies while others wait for it or one another; rank 0 serves the store."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_ranks)
    collectives.use_transport(transport)
    while True:
        for _ in range(7):
            try:
                collectives.all_reduce(torch.ones(1000))
            except CollectiveError as error:
                return Leaving(str(error), "os._exit")  # which others may be waiting for
        if rank == victim:
            kill()


@pytest.mark.parametrize(
    ("transport", "victim", "certainty"), [("shm", 0, ""), ("gloo", 0, "(probably )?"), ("gloo", 1, "")]
)
def test_the_store_ends_with_rank_0(transport: str, victim: int, certainty: str) -> None:
    """If it dies, connections of shared memory tell who ended, and who only failed since; over Gloo most of them do.

    If it loses its neighbour it leaves, and takes the store with it, only after all others know.
    """
    with Ranks(4, TIMEOUT_S) as ranks:
        ranks.start(with_a_store_of_rank_0, free_port(), transport, victim)
        reports = answers_of(ranks, [rank for rank in range(4) if rank != victim])
    for report in reports.values():
        assert re.search(f"; the first rank to stop responding was {certainty}rank {victim}$", report), report


def trained(with_buffers: bool) -> str:
    """DistributedDataParallel with the hook; rank 0 leaves before the first step, in which torch broadcasts buffers."""
    layers = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4, track_running_stats=with_buffers)
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.0001)  # the first one is not the last
    model.register_comm_hook(collectives.HookState(dist.group.WORLD), collectives.ddp_comm_hook)
    if dist.get_rank() == 0:
        os._exit(0)
    with pytest.raises(RuntimeError) as raised, collectives.explain_failures() if with_buffers else nullcontext():
        model(torch.ones(4, 4)).sum().backward()
    return str(raised.value)


@pytest.mark.parametrize(("with_buffers", "what"), [(True, "gloo/transport"), (False, ": before all_reduce of 28 ")])
def test_all_name_the_rank_that_died_in_training(with_buffers: bool, what: str) -> None:
    """In the backward pass, where our hook reduces, and where a broadcast that torch's DDP sends fails first."""
    with Ranks(3, SOON_S) as ranks:
        ranks.start(trained, with_buffers)
        reports = answers_of(ranks, [1, 2])
    for message in reports.values():
        assert what in message
        assert message.endswith(f"{STOPPED}0"), message


def a_few_and_gone(backend: str, calls: int, manners: tuple[str, ...]) -> Leaving:
    """Some collectives, after which the rank leaves at once."""
    group = whole_group_on(backend, TIMEOUT_S)
    sum_of: Callable[..., Any] = dist.all_reduce if backend == "ring" else collectives.all_reduce
    is_right = True
    for turn in range(calls):
        tensor = torch.full((1000 + 3_000_000 * (turn == 2),), float(turn))
        sum_of(tensor, group=group)
        is_right &= bool((tensor == turn * group.size()).all())
    return Leaving(is_right, manners[group.rank()])


@pytest.mark.parametrize(("backend", "calls"), [("gloo", 3), ("ring", 1)])
def test_who_leaves_after_the_last_collective_harms_nobody(backend: str, calls: int) -> None:
    """Each leaves as soon as it is done, whoever is last: nobody gets an error, and all interpreters end well."""
    with Ranks(3, TIMEOUT_S) as ranks:
        ranks.start(a_few_and_gone, backend, calls, ("os._exit", "destroy", "return"))
        assert answers_of(ranks, [0, 1, 2]) == dict.fromkeys(range(3), True)
        assert ranks.codes() == [0] * 3, ranks.remains()
