"""Random collectives on ranks that live for many cases, against a reference that does not use our code."""

import datetime
import random
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

import collectives
from tests.collectives.shared_groups import ONE_HOST, PAIRS, SMALL_SLOT, on_hosts, slots_of
from tests.fuzz.calls import REDUCING, Call, Issued, issue
from tests.fuzz.case import HANGS_S, TIMEOUT_S, chance, expression
from tests.fuzz.delays import delays
from tests.fuzz.draws import COMPLEX, FLOATS, algorithms, call, collective_of
from tests.fuzz.views import COMPLEX_ONLY
from tests.ranks import RankPool

NUM_RANKS = 5
MAX_JOBS = 150  # on the same ranks; then there are fresh ones
MAX_GROUPS = 12  # that ranks keep for later jobs
ALTERNATING = (0, 1, 0, 1, 0)  # hosts


@dataclass(frozen=True)
class Group:
    """A process group of some of the ranks.

    options: of the backend "ring", names and values of `BackendOptions`.
    checked: with `collectives.check_calls`.
    transport, hosts, slot_bytes: how its chunks travel, on which host each rank takes itself to be, and the size of a
    slot of shared memory, 0 for that of every program.
    fresh: made for one job, and not used before its calls.
    """

    members: tuple[int, ...] = (0, 1)
    backend: str = "gloo"
    options: tuple[tuple[str, str], ...] = ()
    checked: bool = False
    transport: str = "auto"
    hosts: tuple[int, ...] = ONE_HOST
    slot_bytes: int = 0
    fresh: bool = False

    def made(self, timeout_s: float) -> Any:
        """To be called by all ranks."""
        options = None
        if self.backend == "ring":
            values = {name: getattr(torch, v) if name == "wire" else v for name, v in self.options}
            options = collectives.BackendOptions(**values)
        timeout = datetime.timedelta(seconds=timeout_s)
        group = dist.new_group(list(self.members), timeout, self.backend, options)
        if isinstance(group, dist.ProcessGroup):
            collectives.use_transport(self.transport, group)
            if self.checked:
                collectives.check_calls(group)
            if not self.fresh:
                with on_hosts(dist.get_rank(), self.hosts), slots_of(self.slot_bytes):
                    collectives.barrier(group)
        return group

    def effective(self, call: Call) -> Call:
        """The call with the options that the backend adds to it."""
        if call.through != "dist" or self.backend != "ring":
            return call
        options = dict(self.options)
        call = replace(call, algorithm=options.get(collective_of(call.name), ""))
        # torch.distributed hands complex tensors over as real ones, so that the options apply to them as well.
        if call.name in REDUCING and (call.torch_dtype.is_floating_point or call.torch_dtype.is_complex):
            call = replace(call, wire=options.get("wire", ""))
        return call


@dataclass(frozen=True)
class Outcome:
    """What became of one call on one rank."""

    problem: str = ""
    refused: bool = False
    digest: bytes = b""


@dataclass(frozen=True)
class Job:
    """Calls on some groups, which all ranks make in this order.

    threads: one for each group, which makes the group's calls in their order.
    delays: before transfers, in milliseconds at most.
    seed: of the data, and of the order in which each rank waits for what is asynchronous.
    """

    groups: tuple[Group, ...] = (Group(),)
    calls: tuple[Call, ...] = (Call(),)
    threads: bool = False
    delays: int = 0
    seed: int = 0

    def run(self) -> None:
        try:
            self._judge(_POOL.run(carry_out, self, timeout_s=HANGS_S + TIMEOUT_S))
        except BaseException:
            _POOL.end()
            raise

    def _judge(self, by_rank: "list[dict[int, Outcome]]") -> None:
        problems = [
            f"{outcome.problem}\n    call {index} on rank {rank}: {expression(self.calls[index])}"
            for index in range(len(self.calls))
            for rank, results in enumerate(by_rank)
            if (outcome := results.get(index)) and outcome.problem
        ]
        assert not problems, f"{problems[0]}\n    and {len(problems) - 1} more calls of ranks"
        for index, each in enumerate(self.calls):
            self._judge_alike(index, each, [o for results in by_rank if (o := results.get(index))])

    def _judge_alike(self, index: int, call: Call, outcomes: list[Outcome]) -> None:
        assert len({outcome.refused for outcome in outcomes}) <= 1, (
            f"some ranks refuse a call, and others do not\n    call {index}: {expression(call)}"
        )
        effective = self.groups[call.group].effective(call)
        if effective.leaves_all_alike:
            alike = len({outcome.digest for outcome in outcomes}) <= 1
            assert alike, f"ranks do not hold the same bits after a call\n    call {index}: {expression(call)}"


_POOL = RankPool(NUM_RANKS, TIMEOUT_S, max_cases=MAX_JOBS)
close = _POOL.end


# What follows runs on the ranks.

_GROUPS: dict[Group, Any] = {}
_USED: list[Any] = []  # groups that were fresh


def _groups(job: Job) -> list[Any]:
    """Made when first asked for; all ranks ask for the same ones in the same order."""
    missing = [group for group in job.groups if group not in _GROUPS]
    if missing and len(_GROUPS) + len(_USED) + len(missing) > MAX_GROUPS:
        dist.barrier()  # nobody is in a collective of theirs any more
        for each in (*_GROUPS.values(), *_USED):
            if isinstance(each, dist.ProcessGroup):
                dist.destroy_process_group(each)
        _GROUPS.clear()
        _USED.clear()
    groups = []
    for group in job.groups:
        if group.fresh:
            _USED.append(group.made(TIMEOUT_S))
        elif group not in _GROUPS:
            _GROUPS[group] = group.made(TIMEOUT_S)
        groups.append(_USED[-1] if group.fresh else _GROUPS[group])
    return groups


def carry_out(_: dist.ProcessGroup, job: Job) -> dict[int, Outcome]:
    """What became of each call of the job, by its index, on this rank."""
    rank = dist.get_rank()
    groups = _groups(job)
    own = [index for index, planned in enumerate(job.calls) if rank in job.groups[planned.group].members]
    parts = [own]
    if job.threads:
        # Two groups of a job that are described alike are one and the same, unless they are fresh.
        different = {id(group): group for group in groups}.values()
        parts = [[index for index in own if groups[job.calls[index].group] is group] for group in different]
        random.Random(job.seed * NUM_RANKS + rank).shuffle(parts)
    with delays(job.delays, job.seed + rank), ThreadPoolExecutor(len(parts)) as pool:
        draws = [random.Random(job.seed * NUM_RANKS + rank + part[0]) if part else random for part in parts]
        done = list(pool.map(lambda part, draw: _carried_out(job, part, groups, draw), parts, draws))
    return {index: outcome for outcomes in done for index, outcome in outcomes.items()}


def _carried_out(job: Job, indices: list[int], groups: list[Any], draw: Any) -> dict[int, Outcome]:
    """What became of those calls, made in their order in this thread."""
    outcomes: dict[int, Outcome] = {}
    pending: dict[int, Issued] = {}
    for index in indices:
        planned = job.calls[index]
        wanted = job.groups[planned.group]
        try:
            issued = issue(wanted.effective(planned), groups[planned.group], job.seed * 1000 + index)
        except Exception as error:
            outcomes[index] = _refusal(planned, error)
            if outcomes[index].problem:
                break
            continue
        pending[index] = issued
        for ready in [each for each in pending if not pending[each].waits or draw.random() < 0.2]:
            outcomes[ready] = _over(job.calls[ready], pending.pop(ready), draw)
    for index in draw.sample(list(pending), len(pending)):
        outcomes[index] = _over(job.calls[index], pending[index], draw)
    return outcomes


def _refusal(call: Call, error: Exception) -> Outcome:
    if isinstance(error, ValueError) and call.may_be_refused:
        return Outcome(refused=True)
    return Outcome(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")


def _over(call: Call, issued: Issued, draw: random.Random) -> Outcome:
    """Wait for it, and look at what has become of it."""
    try:
        issued.wait(draw)
    except Exception as error:
        return _refusal(call, error)
    problem = issued.problem()
    return Outcome(f"wrong result of {call.name}\n    {problem}" if problem else "", digest=issued.digest())


# What follows draws jobs.


def draw_case(random: random.Random) -> Job:
    """Draw any job."""
    groups = tuple(_drawn_group(random) for _ in range(random.choice([1, 1, 2, 4])))
    calls = tuple(_drawn_call(random, groups) for _ in range(random.choice([1, 2, 5, random.randint(5, 20)])))
    # A tensor goes through small slots in hundreds of portions, which would all be delayed.
    longest_ms = 0 if any(group.slot_bytes for group in groups) else random.choice([0, 0, 0, 2, 20])
    return Job(groups, calls, chance(random, 0.3), longest_ms, random.randrange(10**6))


def _drawn_group(random: random.Random) -> Group:
    members = tuple(sorted(random.sample(range(NUM_RANKS), random.randint(1, NUM_RANKS))))
    backend = random.choice(["gloo", "ring"])
    options: list[tuple[str, str]] = []
    if backend == "ring" and chance(random, 0.6):
        for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"):
            options.append((name, random.choice([*algorithms(name), f"ring/{random.randint(1, 4)}"])))
        if chance(random, 0.2):
            options.append(("wire", random.choice(FLOATS)))
    drawn = Group(members, backend, tuple(options), chance(random, 0.1), random.choice(["auto", "auto", "gloo", "shm"]))
    if chance(random, 0.3):
        return replace(drawn, fresh=True)
    if drawn.transport == "auto" and chance(random, 0.4):
        drawn = replace(drawn, hosts=random.choice([PAIRS, ALTERNATING]))
    return replace(drawn, slot_bytes=random.choice([0, 0, SMALL_SLOT, 65_536]))


def _drawn_call(random: random.Random, groups: tuple[Group, ...]) -> Call:
    group = random.randrange(len(groups))
    drawn = replace(call(random), group=group)
    if groups[group].backend == "ring" and chance(random, 0.7):
        return _through_torch(drawn)
    return drawn


def _through_torch(drawn: Call) -> Call:
    """torch.distributed looks at complex tensors as at real ones, which those in some layouts cannot be."""
    drawn = replace(drawn, through="dist", algorithm="", wire="")
    if drawn.dtype in COMPLEX and drawn.layout in COMPLEX_ONLY:
        drawn = replace(drawn, layout="plain")
    if drawn.dtype in COMPLEX and drawn.input_layout in COMPLEX_ONLY:
        drawn = replace(drawn, input_layout="plain")
    return drawn
