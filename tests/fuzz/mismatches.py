"""Ranks that call different things: every rank must be told, within the timeout of the group."""

import math
import random
import traceback
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

import collectives
from tests.collectives.shared_groups import ONE_HOST, PAIRS, on_hosts
from tests.fuzz.calls import REDUCING, Call, issue
from tests.fuzz.case import chance
from tests.fuzz.draws import FLOATS, algorithm, call, collective_of, ops
from tests.ranks import Ranks, whole_group_on

TIMEOUT_S = 3.0
HANGS_S = 60.0


@dataclass(frozen=True)
class Mismatch:
    """Calls that all ranks make alike, and then one in which one rank does something else.

    call, other: what the rest and what rank `odd` call at last; None for nothing.
    backend: of the group, "gloo" or "ring". transport, hosts: of the group, as in `collectives.Group`.
    calls_after: how often all make `call` once more, before a barrier.
    """

    num_ranks: int = 2
    odd: int = 0
    call: Call = Call()  # noqa: RUF009  it is frozen
    other: Call | None = Call(shape=(4,))  # noqa: RUF009
    before: tuple[Call, ...] = ()
    backend: str = "gloo"
    transport: str = "auto"
    hosts: tuple[int, ...] = ONE_HOST
    calls_after: int = 0
    seed: int = 0

    def run(self) -> None:
        with Ranks(self.num_ranks, TIMEOUT_S) as ranks:
            ranks.start(disagree, self)
            answers = ranks.answers(range(self.num_ranks), HANGS_S + 2 * TIMEOUT_S)
            silent = [rank for rank in range(self.num_ranks) if rank not in answers]
            assert not silent, f"ranks hang, or are gone: {silent}\n{ranks.remains(silent)}"
        told = {rank: answer.value for rank, answer in sorted(answers.items())}
        lines = "\n".join(f"    rank {rank}: {text}" for rank, text in told.items())
        assert all(answer.good for answer in answers.values()), f"unforeseen error\n{lines}"
        idle = {self.odd} if self.other is None else set()
        not_told = [rank for rank, (kind, _) in told.items() if kind == "" and rank not in idle]
        assert not not_told, f"ranks that are not told of a mismatch: {not_told}\n{lines}"
        wrong = [rank for rank, (kind, _) in told.items() if kind not in ("", "MismatchError", "CollectiveError")]
        assert not wrong, f"an error of another kind\n{lines}"


def meaning(call: Call, num_ranks: int) -> tuple[object, ...]:
    """What must be alike on all ranks."""
    if call.name == "barrier":
        return (call.name,)
    name = call.name if call.name == "all_reduce_coalesced" else collective_of(call.name)
    rooted = name in ("broadcast", "reduce")
    algorithm = (call.algorithm or ("binomial_tree" if rooted else "ring")).removesuffix("/1")
    details: tuple[object, ...] = (math.prod(call.shape), call.count, call.dtype, algorithm)
    if rooted:
        details += (call.root % num_ranks,)
    if call.name in REDUCING:
        details += (call.op, call.wire or call.dtype)
    return name, *details


def disagree(mismatch: Mismatch) -> tuple[str, str]:
    """The name and text of what the last call raised on this rank; "" if nothing."""
    rank = dist.get_rank()
    group = whole_group_on(mismatch.backend, TIMEOUT_S)
    collectives.use_transport(mismatch.transport, group)
    with on_hosts(rank, mismatch.hosts):
        return _disagree(mismatch, rank, group)


def _disagree(mismatch: Mismatch, rank: int, group: Any) -> tuple[str, str]:
    draw = random.Random(mismatch.seed * 8 + rank)
    for index, each in enumerate(mismatch.before):
        issue(each, group, index).wait(draw)
    last = mismatch.other if rank == mismatch.odd else mismatch.call
    if last is None:
        return "", ""
    try:
        for work in issue(last, group, 99).waits:
            work.wait()
        if last.name in ("broadcast", "reduce"):  # a rank that only sends may be done, and is told in its next call
            for index in range(mismatch.calls_after):
                issued = issue(mismatch.call, group, 100 + index)
                issued.wait(draw)
                if problem := issued.problem():
                    return "a wrong result after a mismatch", problem
            collectives.barrier(group)
    except (ValueError, RuntimeError) as error:
        if isinstance(error, collectives.MismatchError):
            return _after(group, str(error))
        is_ours = isinstance(error, collectives.CollectiveError)
        return type(error).__name__, str(error) if is_ours else traceback.format_exc()
    return "", ""


def _after(group: Any, text: str) -> tuple[str, str]:
    """After a MismatchError the group can be used on."""
    tensor = torch.full((3,), 2.0)
    collectives.all_reduce(tensor, group=group)
    right = tensor.tolist() == [2.0 * group.size()] * 3
    return ("MismatchError" if right else "a wrong sum after a MismatchError"), text


def draw_case(random: random.Random) -> Mismatch:
    """Draw any two calls that differ in something."""
    num_ranks = random.choice([2, 2, 3, 4])
    usual, other = _two_calls(random, num_ranks)
    before = tuple(random.choice([_drawn(random), usual]) for _ in range(random.randrange(4)))
    if other is not None and chance(random, 0.3):
        before = (*before, other)  # neither is new to the group
    return Mismatch(
        num_ranks,
        random.randrange(num_ranks),
        usual,
        other,
        before,
        random.choice(["gloo", "ring"]),
        random.choice(["auto", "auto", "gloo"]),
        random.choice([ONE_HOST, ONE_HOST, PAIRS]),
        random.randrange(4),
    )


def _two_calls(random: random.Random, num_ranks: int) -> tuple[Call, Call | None]:
    """Draw a call and one of another meaning, or none."""
    while True:
        usual = _drawn(random)
        other = _different(random, usual)
        if other is None or meaning(usual, num_ranks) != meaning(other, num_ranks):
            return usual, other


def _drawn(random: random.Random) -> Call:
    while True:
        drawn = call(random, max_length=100_000)
        if not drawn.may_be_refused and drawn.algorithm != "auto":
            # One collective: after the first of several the ranks would have got out of step for good.
            count = drawn.count if drawn.name == "all_reduce_coalesced" else 1
            return replace(drawn, layout="plain", input_layout="plain", count=count)


def _different(random: random.Random, usual: Call) -> Call | None:
    """The same but for what must be alike on all ranks; None for no call."""
    kind = random.choice(["none", "call", "shape", "dtype", "op", "algorithm", "root", "wire"])
    if kind == "none" or usual.name == "barrier":
        return None
    name = algorithm(random, usual.name)
    changes: dict[str, dict[str, Any]] = {
        "shape": {"shape": (random.choice([0, 1, 2, usual.shape[-1] + 1 if usual.shape else 3]),)},
        "dtype": {"dtype": random.choice(FLOATS), "op": "SUM", "wire": ""},
        "algorithm": {"algorithm": "" if name == "auto" else name},
    }
    if usual.name in REDUCING:
        changes["op"] = {"op": random.choice(ops(usual.dtype))}
        changes["wire"] = {"wire": random.choice(FLOATS) if usual.dtype in FLOATS else ""}
    if usual.name in ("broadcast", "reduce"):
        changes["root"] = {"root": usual.root + 1}
    return replace(usual, **changes[kind]) if kind in changes else _drawn(random)
