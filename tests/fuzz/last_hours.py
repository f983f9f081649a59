"""`live`: what a rank does in a `Death`: its calls, until something happens to it or to others, and its leaving."""

from __future__ import annotations

import copy
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import collectives
from tests.forked import Leaving
from tests.fuzz.calls import Issued, issue
from tests.fuzz.delays import before_transfers, delays
from tests.fuzz.views import in_shared_memory
from tests.ranks import whole_group_on

if TYPE_CHECKING:
    from tests.fuzz.deaths import Death

FAILED = 3  # the exit code of a program that ends after an error


@dataclass
class Report:
    """What a rank says of its calls.

    problem: a wrong result. error: what a call raised, after error_s; refusal: what the call after that raised.
    """

    problem: str = ""
    error: str = ""
    error_s: float = 0.0
    refusal: str = ""
    exit_code: int = 0


_PREPARED: list[Any] = []  # the group, and what makes the calls


def prepare(death: Death) -> None:
    """Make the group, and the model if there is one."""
    group = whole_group_on("ring" if death.way == "ring" else "gloo", death.timeout_s)
    if death.is_lent:
        collectives.empty(1, group=group)  # the first time all do it together
    _PREPARED[:] = group, _Steps(death, group) if death.way == "ddp" else _Calls(death, group)


def live(death: Death) -> Leaving:
    """The calls of `death` on this rank, and how it leaves."""
    rank, report = dist.get_rank(), Report()
    with delays(death.delays, death.seed + rank):
        _make_calls(death, rank, report)
    return Leaving(report, death.manner(rank), report.exit_code)


def _make_calls(death: Death, rank: int, report: Report) -> None:
    group, calls = _PREPARED
    is_victim = rank == death.victim and death.how not in ("none", "leave")
    strike = _strike_of(death) if is_victim else lambda _: None
    began_s = time.monotonic()
    try:
        strike(-1)
        for index in range(len(death.calls) + 1):
            strike(index)
            if death.how == "leave" and rank == death.victim and index == death.at:
                return
            began_s = time.monotonic()
            with in_shared_memory(group) if death.is_lent else nullcontext():
                problem = calls.finish() if index == len(death.calls) else calls.make(index)
            report.problem = report.problem or problem
    except RuntimeError as error:  # a CollectiveError, or in DDP what comes of it
        report.error, report.error_s = str(error), time.monotonic() - began_s
        report.refusal = _refusal(group)
        report.exit_code = FAILED


def _refusal(group: Any) -> str:
    total = torch.ones(3)
    try:
        collectives.all_reduce(total, group=group)
    except collectives.CollectiveError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()
    return "" if total.eq(dist.get_world_size(group)).all() else f"a wrong sum, {total.tolist()}"


def _strike_of(death: Death) -> Callable[[int], None]:
    """What is called before each call, with -1 at first; it strikes this rank, or lights the fuse."""
    number = signal.SIGKILL if death.how == "kill" else signal.SIGSTOP

    def strike() -> None:
        os.kill(os.getpid(), number)

    def at_call(index: int) -> None:
        if index == death.at and death.moment == "call":
            strike()
        elif index == -1 and death.moment == "time":
            timer = threading.Timer(death.at / 1000, strike)
            timer.daemon = True
            timer.start()
        elif index == -1 and death.moment == "transfer":
            _strike_at_transfer(death.at, strike)

    return at_call


def _strike_at_transfer(at: int, strike: Callable[[], None]) -> None:
    """Before the send or receive of that number of any process group."""
    count = 0

    def counting() -> None:
        nonlocal count
        count += 1
        if count == at + 1:
            strike()

    before_transfers(counting).__enter__()  # for good


class _Calls:
    """Calls of collectives; asynchronous ones are waited for at random later times."""

    def __init__(self, death: Death, group: Any) -> None:
        self._death, self._group = death, group
        self._pending: list[Issued] = []
        self._draw = random.Random(death.seed * 8 + dist.get_rank())

    def make(self, index: int) -> str:
        """Make this call; what is wrong with the results of calls that are over."""
        issued = issue(self._death.calls[index], self._group, self._death.seed * 1000 + index)
        self._pending.append(issued)
        return self._over([each for each in self._pending if not each.waits or self._draw.random() < 0.3])

    def finish(self) -> str:
        """Wait for all."""
        return self._over(self._draw.sample(self._pending, len(self._pending)))

    def _over(self, ready: list[Issued]) -> str:
        problem = ""
        for issued in ready:
            issued.wait(self._draw)
            self._pending = [each for each in self._pending if each is not issued]
            text = issued.problem()
            problem = problem or (f"{text} ({issued.call})" if text else "")
        return problem


class _Steps:
    """Training steps; the gradients are compared with the mean of those of all ranks, each worked out here."""

    def __init__(self, death: Death, group: Any) -> None:
        torch.manual_seed(death.seed)
        self._seed = death.seed
        self._plain = nn.Sequential(nn.Linear(7, 300), nn.Tanh(), nn.Linear(300, 5))
        kind = collectives.DistributedDataParallel if death.is_lent else DistributedDataParallel
        self._module = kind(copy.deepcopy(self._plain), process_group=group, bucket_cap_mb=0.001)
        state = collectives.HookState(group, algorithm=death.calls[0].algorithm or "ring")
        self._module.register_comm_hook(state, collectives.ddp_comm_hook)

    def make(self, index: int) -> str:
        """One step."""
        gradients = [self._gradients(self._plain, index, rank) for rank in range(dist.get_world_size())]
        means = [torch.stack(parts).mean(0) for parts in zip(*gradients, strict=True)]
        got = self._gradients(self._module, index, dist.get_rank())
        close = all(torch.allclose(mine, right, rtol=1e-4, atol=1e-5) for mine, right in zip(got, means, strict=True))
        return "" if close else f"the gradients of step {index} are not the mean of all ranks'"

    def finish(self) -> str:
        return ""

    def _gradients(self, module: nn.Module, step: int, rank: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(self._seed * 1000 + step * 16 + rank)
        module.zero_grad(set_to_none=True)
        module(torch.randn(4, 7, generator=generator)).square().mean().backward()
        return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
