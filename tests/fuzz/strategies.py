"""Random training programs with every strategy: right, as the strategy "ring" trains them, or refused on all ranks."""

import copy
import random
import re
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.fuzz.case import HANGS_S, TIMEOUT_S, chance
from tests.ranks import RankPool
from tests.trainers.models import MODELS, inputs, two_groups
from tests.trainers.strategies.odd_layers import ODD_MODELS
from trainers import DataParallel
from trainers.strategies import STRATEGIES, strategy_info

NUM_RANKS = 3
MAX_CASES = 60  # on the same ranks; a refused program leaves things behind
EXACT = tuple(name for name, info in STRATEGIES.items() if info.is_exact and not info.wire)
# Those that average parameters now and then train otherwise; here it counts that they end, on all ranks alike.
OTHERS = ("local_sgd/1", "local_sgd/2", "diloco/2", "powersgd/2", "bucketed_bf16", "ddp_hook_bf16", "zero2/0.0001")


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "nesterov": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, maximize=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True, foreach=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, centered=True, momentum=0.5),
    "two groups": two_groups,
}
ALL_MODELS = MODELS | ODD_MODELS
# Models of which ZeRO takes a gradient that nobody has for zeros, as documented.
PARTLY_USED = ("branching", "leaving")
# Models that strategies of these names do not train, as documented; some end the process.
UNSUITED = {"leaving": ("ddp", "fsdp"), "nested": ("ddp", "fsdp"), "writing": ("fsdp",), "branching": ("fsdp",)}
LOCAL_NORMS = ("detached", "norms")  # which with fsdp are those of a rank's rows, as documented
STEPS = (
    "plain", "plain", "accumulate", "forward fails", "backward fails", "evaluate", "forward alone", "gradients stay",
    "skip", "evaluate alone", "write", "write before the step", "states", "closure", "accumulate, closure",
    "two losses", "in place", "norms",
)  # fmt: skip
CLIPS = ("none", "none", "none", "model", "torch, model", "torch, optimizer", "detached", "value", "half")
REFUSALS = ("ShardingError", "ValueError")  # what is raised by us, with what to do


WAITED = re.compile("timed? ?out", re.IGNORECASE)


@dataclass(frozen=True)
class Training:
    """A program that all ranks run: with `strategy`, and, to compare it with, with "ring".

    steps: what each step does. clip: what becomes of gradients before each step.
    infinite: (step, rank) of an infinite gradient; with `scaler` the steps go through torch.amp.GradScaler.
    early: whether the optimizer is made before the model is wrapped, as it must not be. scheduled: whether its rate,
    and its momentum if it has one, change with each step.
    """

    strategy: str
    model: str = "sequential"
    num_ranks: int = 2
    steps: tuple[str, ...] = ("plain", "plain")
    optimizer: str = "sgd"
    clip: str = "none"
    scaler: bool = False
    infinite: tuple[int, int] | None = None
    early: bool = False
    scheduled: bool = False

    def run(self) -> None:
        try:
            self._judge(_POOL.run(outcomes, self, timeout_s=HANGS_S + 2 * TIMEOUT_S)[: self.num_ranks])
        except BaseException:
            _POOL.end()
            raise

    def _judge(self, by_rank: "list[tuple[Outcome, Outcome]]") -> None:
        own, ring = ([each[which] for each in by_rank] for which in (0, 1))
        told = "\n".join(f"    rank {rank}: {outcome.error or 'trained'}" for rank, outcome in enumerate(own))
        assert len({bool(outcome.error) for outcome in own}) == 1, (
            f"some ranks are told of an error, others not\n{told}"
        )
        if ring[0].error:
            return
        if own[0].error:
            is_clear = own[0].error.startswith(REFUSALS) or self.strategy.startswith(("fsdp", "ddp"))  # torch's
            assert is_clear, f"it is refused in words that are not ours\n{told}"
            assert not WAITED.search(own[0].error), f"ranks wait for one another until a timeout\n{told}"
            return
        if self.is_exact:
            for mine, reference in zip(own, ring, strict=True):
                apart = mine.distance(reference)
                assert apart < 1e-4, f"it trains otherwise than ring: parameters differ by {apart:.1e}, and no error"
        elif all(step == "plain" for step in self.steps) and len(self.steps) % 2 == 0 and self.infinite is None:
            apart = max(outcome.distance(own[0]) for outcome in own)
            assert apart < 1e-6, f"ranks hold different parameters after an average: they differ by {apart:.1e}"

    @property
    def is_exact(self) -> bool:
        """Whether it must train as "ring" does."""
        return self.strategy.partition("/")[0] in EXACT


@dataclass(frozen=True)
class Outcome:
    """What became of a program on one rank: its parameters, or the error that ended it."""

    parameters: tuple[float, ...] = ()
    error: str = ""

    def distance(self, other: "Outcome") -> float:
        """Return the largest difference of the parameters, relative to those above 1; what is not finite is alike."""
        own, others = torch.tensor(self.parameters), torch.tensor(other.parameters)
        gap = (own - others).abs() / others.abs().clamp(min=1.0)
        gap = gap.masked_fill(~own.isfinite() & ~others.isfinite(), 0.0)
        return gap.nan_to_num(nan=torch.inf).max().item()


_POOL = RankPool(NUM_RANKS, TIMEOUT_S, max_cases=MAX_CASES)
close = _POOL.end


# What follows runs on the ranks.


def outcomes(_: dist.ProcessGroup, training: Training) -> tuple[Outcome, Outcome] | None:
    """What became of the program with its strategy, and with "ring", on this rank; None where it has no part."""
    both = []
    for strategy in (training.strategy, "ring"):
        # A group of its own for each: an error in a collective leaves it broken.
        group = dist.new_group(list(range(training.num_ranks)), timedelta(seconds=TIMEOUT_S))
        if not isinstance(group, dist.ProcessGroup):
            continue
        both.append(outcome(replace(training, strategy=strategy), group))
    dist.barrier()
    return (both[0], both[1]) if both else None


def outcome(training: Training, group: dist.ProcessGroup) -> Outcome:
    """What became of the program."""
    try:
        return Outcome(Program(training, group).run())
    except Exception as error:  # whatever a strategy refuses it by
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(error=f"{type(error).__name__}: {str(error)[:300]} ({place.filename}:{place.lineno})")


class OwnError(Exception):
    """What the program itself raises, and catches."""


class Program:
    """A training loop as people write them, on one rank."""

    def __init__(self, training: Training, group: dist.ProcessGroup) -> None:
        self.training, self.group = training, group
        plain = ALL_MODELS[training.model]()
        early = OPTIMIZERS[training.optimizer](plain.parameters()) if training.early else None
        self.model = DataParallel(plain, training.strategy, group)
        self.optimizer = early or self.model.optimizer(OPTIMIZERS[training.optimizer])
        schedulers = torch.optim.lr_scheduler
        self.scheduler = schedulers.CosineAnnealingLR(self.optimizer, 4) if training.scheduled else None
        self.norms: list[float] = []  # what was asked for on the way
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2) if training.scaler else None

    def run(self) -> tuple[float, ...]:
        """The parameters in the end."""
        for index, step in enumerate(self.training.steps):
            try:
                self._step(index, step)
            except OwnError:
                self.optimizer.zero_grad()
        self.model.unshard()
        flat = [value.detach().double().flatten() for value in self.model.module.parameters()]
        return (*self.norms, *torch.cat(flat).tolist())  # a tensor would be sent by memory that processes share

    def _step(self, index: int, step: str) -> None:
        x = inputs(10 * index + self.group.rank())
        if step == "in place":
            (self.model if index % 2 else self.optimizer).zero_grad(set_to_none=False)
        elif step != "gradients stay":
            self.model.zero_grad()
        self._before(x, step)
        if step in ("accumulate", "accumulate, closure"):
            with self.model.no_sync():
                self._backward(x.flip(0), index, "")
        if step.endswith("closure") and not self.scaler:
            self.optimizer.step(lambda: self._backward(x, index, step))  # type: ignore[arg-type, return-value]
            return
        self._backward(x, index, step)
        if step == "write before the step":
            self._write()
        if step == "norms":
            self.norms.append(sum(float(p.grad.norm() ** 2) for p in self._held() if p.grad is not None))
        if step != "skip":
            self._update()

    def _before(self, x: torch.Tensor, step: str) -> None:
        """What comes before the passes of a step."""
        if step.startswith("evaluate"):
            if step == "evaluate alone":
                self.model.unshard()
            self.model.eval()
            if step == "evaluate" or self.group.rank() == 0:
                with torch.no_grad():
                    self.model(x)
            self.model.train()
        if step == "forward alone":
            self.model(x)
        if step == "write":
            self._write()
        if step == "states":
            state = {name: value * 0.9 for name, value in self.model.state_dict().items()}
            optimizer_state = copy.deepcopy(self.optimizer.state_dict())
            self._write()
            self.model.load_state_dict(state)
            self.optimizer.load_state_dict(optimizer_state)

    @torch.no_grad()
    def _write(self) -> None:
        self.model.unshard()
        for value in self.model.parameters():
            value.mul_(0.9)

    def _held(self) -> list[nn.Parameter]:
        return [value for group in self.optimizer.param_groups for value in group["params"]]

    def _backward(self, x: torch.Tensor, index: int, step: str) -> torch.Tensor:
        loss = self._forward(x, fails=step == "forward fails").pow(2).mean()
        if step == "two losses":
            loss = loss + self._forward(x.flip(1), fails=False).pow(2).mean()
        if step == "backward fails":
            loss.register_hook(_raise)
        if self.training.infinite == (index, self.group.rank()):
            loss = loss * torch.inf
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        return loss.detach()

    def _forward(self, x: torch.Tensor, fails: bool) -> torch.Tensor:
        last = list(self.model.module.children())[-1]
        with last.register_forward_pre_hook(_raise) if fails else nullcontext():
            result: torch.Tensor = self.model(x)
        return result

    def _update(self) -> None:
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        self._clip()
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self.scheduler:
            self.scheduler.step()

    def _clip(self) -> None:
        match self.training.clip:
            case "model":
                self.model.clip_grad_norm_(0.1)
            case "torch, model":
                nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
            case "torch, optimizer":
                nn.utils.clip_grad_norm_(self._held(), 0.1)
            case "detached":
                norm = sum(float(p.grad.detach().norm() ** 2) for p in self._held() if p.grad is not None) ** 0.5
                for value in self._held():
                    if value.grad is not None:
                        value.grad.data.mul_(min(1.0, 0.1 / (norm + 1e-6)))
            case "value":
                nn.utils.clip_grad_value_(self.model.parameters(), 0.01)
            case "half":
                for value in self.model.parameters():
                    if value.grad is not None:
                        value.grad.mul_(0.5)


def _raise(*_: object) -> None:
    raise OwnError


# What follows draws programs.


def draw_case(random: random.Random) -> Training:
    """Draw any program that its strategy trains, as documented."""
    num_ranks, num_steps = random.choice([2, 2, 3]), random.randint(2, 5)
    steps = tuple(random.choice(STEPS) for _ in range(num_steps))
    scaler = chance(random, 0.25)
    infinite = (random.randrange(num_steps), random.randrange(num_ranks))
    strategy, model = random.choice([*EXACT, *OTHERS]), random.choice(list(ALL_MODELS))
    drawn = Training(strategy, model, num_ranks, steps, random.choice(list(OPTIMIZERS)), random.choice(CLIPS), scaler)
    if scaler and chance(random, 0.7):
        drawn = replace(drawn, infinite=infinite)
    drawn = replace(drawn, early=chance(random, 0.05), scheduled=chance(random, 0.3))
    return drawn if _is_suited(drawn) else draw_case(random)


def _is_suited(drawn: Training) -> bool:
    strategy = drawn.strategy
    if drawn.model in PARTLY_USED and strategy_info(strategy).saves_vectors:
        return False
    if strategy.startswith(UNSUITED.get(drawn.model, ())):
        return False
    # In "evaluate alone" rank 0 alone would have hooks that were registered after wrapping, as documented.
    unsuited = {*LOCAL_NORMS, "evaluate alone"} if drawn.model == "hooked" else set(LOCAL_NORMS)
    return not strategy.startswith("fsdp") or {drawn.clip, *drawn.steps}.isdisjoint(unsuited)
