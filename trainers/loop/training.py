"""The training loop: every strategy in turn at every step, so that all meet the same moods of the machine."""

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from collectives.runtime import CollectiveError, name_first_to_fail, naming_failures
from trainers.data_parallel import DataParallel, broadcast_state
from trainers.loop.gradient_clock import GradientClock
from trainers.strategies.base import Strategy
from trainers.tasks.config import ModelConfig, TrainConfig
from trainers.tasks.data import Shard
from trainers.tasks.model import TinyTransformer, next_token_loss


class DivergedError(ArithmeticError):
    """A loss that is infinite or not a number: training on would only spread it."""


@dataclass(slots=True, eq=False)
class Run:
    """One model being trained with one strategy, and what this rank has noted of each step."""

    name: str
    model: DataParallel
    optimizer: torch.optim.Optimizer
    clock: GradientClock
    losses: list[float] = field(default_factory=list)
    sync_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)

    @property
    def strategy(self) -> Strategy:
        """How its gradients are synchronised."""
        return self.model.strategy

    def step(self, batch: torch.Tensor) -> None:
        """One training step. batch: (batch_size, sequence_length + 1) tokens.

        Raises DivergedError before anything is sent if the loss is not finite, CollectiveError as `train` does.
        """
        begin_s = time.perf_counter()
        self.optimizer.zero_grad()
        with naming_failures(f"strategy {self.name}"):  # in the forward pass too: DDP sends the buffers round there
            loss = next_token_loss(self.model, batch)
        if not torch.isfinite(loss):
            raise DivergedError(f"the loss is {loss.item()}; a smaller --learning-rate may help")
        with naming_failures(f"strategy {self.name}"):
            torch.autograd.backward(loss)
            sync_s = time.perf_counter() - self.clock.last_s
            self.optimizer.step()  # which communicates, too, where each rank steps a share
        self.sync_s.append(sync_s + self.strategy.gather_s)
        self.losses.append(loss.item())
        self.step_s.append(time.perf_counter() - begin_s)


def start_runs(
    names: Sequence[str], model_config: ModelConfig, train: TrainConfig, group: dist.ProcessGroup
) -> list[Run]:
    """One run per strategy, all from rank 0's initial weights."""
    torch.manual_seed(train.seed)
    initial = TinyTransformer(model_config)
    broadcast_state(initial, group)
    return [start_run(name, copy.deepcopy(initial), train.learning_rate, group) for name in names]


def start_run(name: str, model: nn.Module, learning_rate: float, group: dist.ProcessGroup) -> Run:
    """A run of the strategy called `name` with an AdamW of its own."""
    clock = GradientClock(model)  # before the strategy: what it does with a gradient then comes after it
    parallel = DataParallel(model, name, group)
    return Run(name, parallel, parallel.optimizer(partial(torch.optim.AdamW, lr=learning_rate)), clock)


def train(runs: Sequence[Run], shard: Shard, steps: Iterable[int], after_step: Callable[[int], None]) -> None:
    """Train all `runs` on the same batches, each strategy in turn at every step.

    Raises CollectiveError, naming rank, step and strategy, when a peer fails or is later than the group's timeout,
    and DivergedError, naming the same, when a loss is not finite.
    """
    for step in steps:
        batch = shard.batch(step)
        for run in _rotated(runs, step):
            place = f"rank {dist.get_rank()}: training step {step}"
            try:
                run.step(batch)
            except CollectiveError as error:
                name_first_to_fail(error, run.model.group)
                raise CollectiveError(f"{place}, {error}", error.flight_record, error.peer) from error
            except DivergedError as error:
                raise DivergedError(f"{place}, strategy {run.name}: {error}") from error
        after_step(step)


def _rotated(runs: Sequence[Run], step: int) -> list[Run]:
    """The runs, beginning with another one each step, so that none always follows the same one."""
    first = step % len(runs)
    return [*runs[first:], *runs[:first]]
