"""`Learner`: a task's model on one rank, with its strategy and optimizer, taking one training step after the other."""

import time
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from collectives.runtime import naming_failures, span
from trainers.data_parallel import DataParallel
from trainers.loop.batches import Share
from trainers.loop.gradient_clock import GradientClock
from trainers.loop.random_states import seed_alike
from trainers.loop.session_config import SessionConfig
from trainers.loop.step_vote import StepVote
from trainers.strategies.ddp import Ddp
from trainers.tasks.base import Task


class Taken(NamedTuple):
    """A step that was taken, or left out.

    loss: of the whole batch, the same on all ranks. trouble: why the step was left out; "" if it was not.
    communication_s: how long this rank did nothing but communicate, or wait for others.
    """

    loss: float
    trouble: str
    communication_s: float


class Learner:
    """Made on all ranks of `group` at once.

    Raises ValueError on every rank if the ranks' models differ and `config.broadcast` is not set.
    """

    def __init__(self, task: Task, config: SessionConfig, group: dist.ProcessGroup, device: str) -> None:
        seed_alike(config.seed)
        model = task.model().to(device)
        self._task = task
        self._config = config
        self._device = device
        self._clock = GradientClock(model)  # before the strategy: what it does with a gradient then comes after it
        self.model = DataParallel(model, config.strategy, group, broadcast=config.broadcast)
        self.optimizer = self.model.optimizer(task.optimizer)
        self.vote = StepVote(group)
        # Of the forward passes only DDP's communicate without saying what failed; other errors there are the task's.
        self._names_forward = isinstance(self.model.strategy, Ddp)

    def step(self, share: Share, stop: bool = False) -> Taken:
        """Train on this rank's share of a batch, or leave that out on all ranks if a loss is not finite; collective.

        stop: whether this rank has to stop: then nothing is done, and all ranks raise StoppedError.
        """
        before = self._copied_buffers()
        own, last = self._forward(share)
        begin_s = time.perf_counter()
        with span("tell the loss"):
            vote = self.vote.take(own, stop)
        communication_s = time.perf_counter() - begin_s
        if vote.trouble:
            for name, value in before.items():
                self.model.model.get_buffer(name).copy_(value)
            return Taken(vote.mean, vote.trouble, communication_s)
        communication_s += self._backward(last)
        self._update()
        return Taken(vote.mean, "", communication_s + self.model.strategy.gather_s)

    def settle(self, share: Share) -> None:
        """Bring DDP to where it is after a step, before a state is loaded.

        After its first backward pass DDP forms its buckets anew, and sums of three and more numbers hang on an
        element's place in its bucket. So a run that goes on after a step must begin with those.
        """
        if isinstance(self.model.strategy, Ddp):
            _, last = self._forward(share)
            self._backward(last)
            self.optimizer.zero_grad()

    def optimizer_form(self) -> dict[str, Any]:
        """What the optimizer's state looks like after a step, without its numbers.

        Of an optimizer that cannot take a step without numbers only the groups are told.
        """
        like = [nn.Parameter(torch.empty_like(p, device="meta")) for p in self.model.strategy.saved_like()]
        groups = torch.optim.Optimizer.state_dict(self.optimizer)["param_groups"]  # a sharded one's own is collective
        try:
            optimizer = self._task.optimizer(like)
            for parameter in like:
                parameter.grad = torch.empty_like(parameter)
            optimizer.step()
        except Exception:  # whatever it is that it misses
            return {"param_groups": groups, "state": {}}
        return {"param_groups": groups, "state": optimizer.state_dict()["state"]}

    def _forward(self, share: Share) -> tuple[float, Tensor]:
        """All of a step before gradients are averaged: this rank's loss, and that part of it that is yet to go back."""
        self.optimizer.zero_grad()
        *held, last = share.split(self._config.accumulate)
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        with self.model.no_sync():
            for part in held:
                loss = self._loss(part)
                total += loss.detach()
                with span("backward"):
                    torch.autograd.backward(loss)
        loss = self._loss(last)
        return (total + loss.detach()).item(), loss

    def _loss(self, share: Share) -> Tensor:
        with span("batch"):
            batch = on_device(self._task.batch(share.indices), self._device)
        with span("forward"), naming_failures("the forward pass failed") if self._names_forward else nullcontext():
            return self._task.loss(self.model, batch) * share.weight

    def _backward(self, loss: Tensor) -> float:
        """The backward pass that is synchronised; returns how long after its last gradient that took."""
        with span("backward and synchronise"), naming_failures("synchronising the gradients failed"):
            torch.autograd.backward(loss)
            return time.perf_counter() - self._clock.last_s

    def _update(self) -> None:
        with span("optimizer"), naming_failures("stepping the optimizer failed"):  # zero1 gathers the parameters
            if self._config.clip_norm is not None:
                self.model.clip_grad_norm_(self._config.clip_norm)
            self.optimizer.step()

    def _copied_buffers(self) -> dict[str, Tensor]:
        """What each buffer holds now: a forward pass on bad numbers leaves them in the running means."""
        if self._config.on_nan != "skip":
            return {}
        return {name: buffer.clone() for name, buffer in self.model.model.named_buffers()}


def on_device(batch: Any, device: str) -> Any:
    """A tensor, or tuples, lists and dicts of them, on the device; anything else as it is."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: on_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(on_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(on_device(value, device) for value in batch)
    return batch
