"""`TrainStep`: a task's model on one rank, with its strategy and optimizer, and its training steps.

A step consists of batch, forward pass, `exchange_losses`, backward pass with gradient synchronisation, and optimizer.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import collectives
from collectives.runtime import CollectiveError, name_first_to_fail, naming_failures, span
from trainers.checkpoints.checkpoint import Checkpoint, seed_alike, seed_apart
from trainers.data_parallel import DataParallel
from trainers.loop.batches import Share
from trainers.loop.config import ScheduledRates, StepConfig
from trainers.strategies.base import MakeOptimizer, parameters_of
from trainers.strategies.ddp import Ddp
from trainers.strategies.fsdp import Fsdp
from trainers.tasks.base import Task

ALGORITHM = "direct"  # the fewest steps, as the message is tiny
CANNOT_CONTINUE = 1  # in place of a signal's number; SIGHUP, whose number this is, ends a rank at once


class StoppedError(RuntimeError):
    """A rank cannot continue, and all ranks stop at the same step."""


class DivergedError(ArithmeticError):
    """A loss is infinite or not a number."""


class RankLosses(NamedTuple):
    """losses: of every rank, weighted by its share of the batch. asked: number of a signal to stop, or 0."""

    losses: list[float]
    asked: int = 0

    @property
    def mean(self) -> float:
        """The loss of the whole batch, bit-identical on all ranks."""
        return math.fsum(self.losses) / len(self.losses)

    @property
    def trouble(self) -> str:
        """The ranks whose loss is not finite, or ""."""
        return ", ".join(
            f"the loss of rank {rank} is {loss}" for rank, loss in enumerate(self.losses) if not math.isfinite(loss)
        )


def exchange_losses(group: dist.ProcessGroup, loss: float, asked: int = 0) -> RankLosses:
    """Exchange the losses of all ranks, and requests to stop; collective.

    All ranks must know of a bad loss before the backward pass, which averages gradients while computing others.

    asked: number of the signal that asks this rank to stop after the step, or 0; CANNOT_CONTINUE: every rank raises
    StoppedError.
    """
    with naming_failures("exchanging the losses failed"):
        losses, stops = gather_numbers([loss, float(asked)], group).T.tolist()
    if CANNOT_CONTINUE in stops:
        raise StoppedError(f"rank {stops.index(CANNOT_CONTINUE)} cannot continue")
    return RankLosses(losses, int(max(stops)))


def require_finite(trouble: str, place: str, advice: str = "") -> None:
    """Raise DivergedError if there is trouble. place: the step. advice: end of the message."""
    if trouble:
        raise DivergedError(f"{place}: {trouble}; a smaller `learning_rate` may help{advice}")


def require_finite_losses(group: dist.ProcessGroup, loss: float, place: str) -> None:
    """Raise DivergedError on every rank if a rank's loss is not finite; collective. place: the step."""
    with naming_failures(f"rank {group.rank()}: {place}"):
        trouble = exchange_losses(group, loss).trouble
    require_finite(trouble, place)


def gather_numbers(own: Sequence[float], group: dist.ProcessGroup) -> Tensor:
    """Return the numbers of all ranks, (ranks, numbers) float64; collective unless there is one rank."""
    here = torch.tensor(own, dtype=torch.float64)
    everywhere = here.repeat(group.size(), 1)
    if group.size() > 1:
        collectives.all_gather_into_tensor(everywhere, here, group, algorithm=ALGORITHM)
    return everywhere


class StepMoments(NamedTuple):
    """The boundaries of a step's parts on this rank, in order, in seconds of `time.perf_counter`.

    params_begin_s, params_end_s: of gathering or averaging parameters in the optimizer's step; otherwise
    backward_end_s.
    """

    begin_s: float
    forward_end_s: float
    losses_end_s: float
    gradients_s: float
    backward_end_s: float
    params_begin_s: float
    params_end_s: float
    end_s: float

    @property
    def forward_s(self) -> float:
        """Batches, forward passes, and backward passes that only accumulate."""
        return self.forward_end_s - self.begin_s

    @property
    def loss_sync_s(self) -> float:
        """The loss exchange, including the wait for the slowest rank."""
        return self.losses_end_s - self.forward_end_s

    @property
    def backward_s(self) -> float:
        """The synchronised backward pass, until this rank's last gradient is ready."""
        return self.gradients_s - self.losses_end_s

    @property
    def sync_s(self) -> float:
        """From the last gradient to the synchronised gradients, and gathering parameters."""
        return self.backward_end_s - self.gradients_s + self.params_end_s - self.params_begin_s

    @property
    def communication_s(self) -> float:
        """The exposed communication, including the wait for other ranks."""
        return self.loss_sync_s + self.sync_s

    @property
    def step_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def optimizer_s(self) -> float:
        return self.end_s - self.backward_end_s - (self.params_end_s - self.params_begin_s)


class StepResult(NamedTuple):
    """A taken or skipped step; in a skipped step all moments after the loss exchange are equal.

    loss: of the whole batch. trouble: why the step was skipped, or "". asked: as in `RankLosses`.
    """

    loss: float
    trouble: str
    moments: StepMoments
    asked: int = 0


class TrainStep:
    """A model, its strategy and its optimizer on all ranks of `group`; several objects may alternate their steps.

    num_steps: of the whole run. Raises ValueError on every rank if the ranks' models differ without `config.broadcast`,
    and for batches that leave a rank without a sample.
    """

    def __init__(
        self, task: Task, config: StepConfig, group: dist.ProcessGroup, device: str = "cpu", num_steps: int = 1
    ) -> None:
        schedule = config.schedule(num_steps)
        self.batches = config.batches(task, group.rank(), group.size())
        seed_alike(config.seed)
        model = task.model().to(device)
        self.task, self.config, self.group, self.device = task, config, group, device
        self.clock = GradientClock(model)  # before the strategy, whose work on a gradient then comes after it
        self.model = DataParallel(model, config.strategy, group, broadcast=config.broadcast)
        self.optimizer = self.model.optimizer(task.optimizer)
        if config.compile:
            self.model.compile()
        self._options = [set(group) for group in self.optimizer.param_groups]  # which loading a bad state replaces
        self._rates = ScheduledRates(self.optimizer.param_groups, schedule)
        self._norm_before_clipping: Tensor | None = None
        # Only torch's own wrappers communicate in a forward pass without saying what failed.
        self._names_forward = isinstance(self.model.strategy, Ddp | Fsdp)
        seed_apart(config.seed, 0, group.rank())

    def run(self, step: int, asked: int = 0) -> StepResult:
        """Train on this rank's share of a batch; all ranks skip it if a loss is not finite; collective.

        asked: see `exchange_losses`. Raises CollectiveError, with rank, step and strategy, when a peer fails.
        """
        self._rates.set(self.optimizer.param_groups, step)
        with self.naming_step(step), span(f"training step {step}"):
            return self._run(self.batches.share(step), asked)

    def _run(self, share: Share, asked: int) -> StepResult:
        begin_s = time.perf_counter()
        # Restored if the step is skipped: a forward pass on bad numbers spoils running means.
        buffers = self.model.model.named_buffers() if self.config.on_nan == "skip" else ()
        before = {name: buffer.clone() for name, buffer in buffers}
        own, last = self._forward(share)
        forward_end_s = time.perf_counter()
        with span("tell the loss"):
            losses = exchange_losses(self.group, own, asked)
        begun = begin_s, forward_end_s, time.perf_counter()
        if losses.trouble:
            for name, value in before.items():
                self.model.model.get_buffer(name).copy_(value)
            return StepResult(losses.mean, losses.trouble, StepMoments(*begun, *[begun[-1]] * 5), losses.asked)
        self._backward(last)
        backward_end_s = time.perf_counter()
        with span("optimizer"), naming_failures("stepping the optimizer failed"):  # some gather parameters there
            if self.config.clip_norm is not None:
                self._norm_before_clipping = self.model.clip_grad_norm_(self.config.clip_norm)
            self.optimizer.step()
        end_s = time.perf_counter()
        param_sync = self.model.strategy.param_sync or (backward_end_s, backward_end_s)
        moments = StepMoments(*begun, self.clock.last_s(backward_end_s), backward_end_s, *param_sync, end_s)
        return StepResult(losses.mean, "", moments, losses.asked)

    def gradient_norm(self) -> float:
        """Return the norm of the last step's gradients before clipping; collective. The step must not be skipped."""
        norm = self._norm_before_clipping
        if norm is None:
            with naming_failures("taking the norm of the gradients failed"):
                norm = self.model.strategy.gradient_norm()
        return norm.item()

    def finish(self) -> None:
        """Make the parameters equal on all ranks; collective."""
        with span("average the parameters"), naming_failures("averaging the parameters failed"):
            self.model.sync_parameters()

    @contextmanager
    def naming_step(self, step: int) -> Iterator[None]:
        """Add rank, step, strategy and the first failed rank to a CollectiveError."""
        try:
            yield
        except CollectiveError as error:
            place = f"rank {self.group.rank()}: training step {step}, strategy {self.config.strategy}"
            name_first_to_fail(error, self.group)
            raise error.during(place) from error

    def rebuild_buckets(self) -> None:
        """Make a backward pass before a checkpoint is loaded: DDP then rebuilds its buckets, on which sums depend."""
        if isinstance(self.model.strategy, Ddp):
            _, last = self._forward(self.batches.share(0))
            self._backward(last)
            self.optimizer.zero_grad()

    def load(self, checkpoint: Checkpoint) -> None:
        """Load all states; collective. Raises torch's errors if they do not fit.

        Raises ValueError for what torch would load: the state of another optimizer, and a tensor of another shape than
        the optimizer makes.
        """
        self.model.load_state_dict(checkpoint.model_state)
        self.optimizer.load_state_dict(checkpoint.optimizer_state)
        self.model.strategy.load_state_dict(checkpoint.strategy_states)
        for own, group in zip(self._options, self.optimizer.param_groups, strict=True):
            if differing := sorted(own ^ group.keys()):
                raise ValueError(f"its optimizer has other options: {', '.join(differing)}")
        parameters = parameters_of(self.optimizer)
        for index, form in enumerate(optimizer_forms(self.task.optimizer, parameters)):
            state = self.optimizer.state.get(parameters[index], {})
            for name in form.keys() & state.keys():
                if (shape := tuple(state[name].shape)) != form[name]:
                    raise ValueError(f"its optimizer state {index}, {name}: is of shape {shape}, must be {form[name]}")

    def _forward(self, share: Share) -> tuple[float, Tensor]:
        """Run a step until its last backward pass; return this rank's loss and the last micro-batch's."""
        self.optimizer.zero_grad()
        *held, last = share.split(self.config.accumulate)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        with self.model.no_sync():
            for part in held:
                loss = self.loss(part)
                total += loss.detach()
                with span("backward"):
                    torch.autograd.backward(loss)
        loss = self.loss(last)
        return (total + loss.detach()).item(), loss

    def loss(self, share: Share) -> Tensor:
        """Return the loss of a share; collective if the model has buffers to broadcast."""
        with span("batch"):
            batch = tree_map_only(Tensor, lambda tensor: tensor.to(self.device), self.task.batch(share.indices))
        with span("forward"), naming_failures("the forward pass failed") if self._names_forward else nullcontext():
            if self.config.amp is None:
                return self.task.loss(self.model, batch) * share.weight
            with torch.autocast(torch.device(self.device).type, getattr(torch, self.config.amp)):
                loss = self.task.loss(self.model, batch)
            return loss.float() * share.weight  # losses are compared and added on all ranks

    def _backward(self, loss: Tensor) -> None:
        with span("backward and synchronise"), naming_failures("synchronising the gradients failed"):
            torch.autograd.backward(loss)


def optimizer_forms(make: MakeOptimizer, parameters: Sequence[Tensor]) -> list[dict[str, tuple[int, ...]]]:
    """Return the shapes of the tensors that an optimizer keeps for each parameter, from a step on the meta device.

    Scalars are left out. [] for an optimizer that cannot take such a step.
    """
    like = [nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="meta")) for p in parameters]
    try:
        optimizer = make(like)
        for parameter in like:
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
    except Exception:  # of any kind, as the optimizer may be a user's
        return []
    states = [optimizer.state.get(parameter, {}) for parameter in like]
    return [{name: tuple(v.shape) for name, v in state.items() if torch.is_tensor(v) and v.dim()} for state in states]


class GradientClock:
    """Records, in every backward pass, when each parameter's gradient has been accumulated."""

    def __init__(self, model: nn.Module) -> None:
        self._ready_s: dict[int, float] = {}
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._note, index))

    def _note(self, index: int, _: Tensor) -> None:
        self._ready_s[index] = time.perf_counter()

    def last_s(self, unknown: float = 0.0) -> float:
        """Return when the last gradient was ready; `unknown` with FSDP, which replaces the parameters."""
        return max(self._ready_s.values(), default=unknown)

    def before_last_s(self) -> list[float]:
        """Return the seconds from each parameter's gradient to the last gradient."""
        return [self.last_s() - self._ready_s[index] for index in range(len(self._parameters))]
