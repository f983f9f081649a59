"""Local SGD and DiLoCo: ranks step independently, and average their parameters every few steps."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import collectives
from trainers.strategies import EVERY
from trainers.strategies.base import MakeOptimizer, OwnOptimizer, parameters_of
from trainers.strategies.flat_vector import FlatVector, by_dtype, copy_saved


class OuterMomentum(NamedTuple):
    """DiLoCo's outer optimizer: SGD with Nesterov momentum. Defaults: the paper, section 3."""

    learning_rate: float = 0.7
    momentum: float = 0.9


class Average:
    """The parameters of one dtype, and the outer optimizer's state.

    state: {}, or "start", the parameters after the last average, and "velocity", (num_elements,) each.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], outer: OuterMomentum | None) -> None:
        # The parameters, not their memory, which may change, as after p.data = ...
        self._parameters: list[torch.Tensor] = list(parameters)
        self._outer = outer
        self._flat = FlatVector([p.shape for p in parameters], parameters[0])
        self.state = {name: torch.zeros_like(self._flat.vector) for name in ("start", "velocity") if outer}

    def begin(self) -> None:
        if self._outer:
            self.state["start"].copy_(self._packed())

    def take(self, group: dist.ProcessGroup) -> None:
        """Average the parameters in place; the outer optimizer's gradient is `start` minus the average."""
        average = self._packed()
        collectives.all_reduce(average, dist.ReduceOp.AVG, group)
        if self._outer:
            start, velocity = self.state.values()
            change = torch.sub(start, average, out=average)
            velocity.mul_(self._outer.momentum).add_(change)
            change.add_(velocity, alpha=self._outer.momentum)
            average.copy_(start.sub_(change, alpha=self._outer.learning_rate))
        torch._foreach_copy_(self._parameters, self._flat.views)

    def _packed(self) -> torch.Tensor:
        torch._foreach_copy_(self._flat.views, self._parameters)
        return self._flat.vector


class LocalSgd(OwnOptimizer):
    """Send no gradients; average all parameters after every `every` local steps.

    outer: steps from the last average towards the new one, as in DiLoCo; None: take the new average.

    Sources: Stich 2019, "Local SGD Converges Fast and Communicates Little", algorithm 1; Douillard et al. 2023,
    "DiLoCo: Distributed Low-Communication Training of Language Models", algorithm 1.
    """

    def __init__(
        self, model: nn.Module, group: dist.ProcessGroup, every: int = EVERY.example, outer: OuterMomentum | None = None
    ) -> None:
        super().__init__(model, group)
        self.name = "diloco" if outer else "local_sgd"
        self._every = every
        self._averages = [Average(some, outer) for some in by_dtype(self.parameters)]
        self._taken = 0  # steps since the last average
        self._optimizer: torch.optim.Optimizer | None = None
        self.refuse_others(self.parameters)

    @property
    def parameters_agree(self) -> bool:
        return self._taken == 0

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        """Make the optimizer and count its steps. Raises ValueError for a second optimizer."""
        if self._optimizer is not None:
            raise ValueError(
                f"{self.name}: model.optimizer(...) has already made an optimizer, and supports only one; make one "
                f"optimizer for all parameters, with parameter groups where their options differ"
            )
        self._optimizer = optimizer = self.watch(make(self.parameters))
        if not getattr(optimizer, "_step_supports_amp_scaling", False):
            # GradScaler then asks for a step also where this rank has an infinite gradient: all ranks count the same.
            optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
            optimizer.register_step_pre_hook(lambda *_: _unscale(optimizer))
        return optimizer

    @torch.no_grad()
    def before_stepping(self) -> None:
        if self._taken == 0:
            for average in self._averages:
                average.begin()

    def after_stepping(self) -> None:
        self._taken += 1
        if self._taken == self._every:
            self.sync_parameters()

    @torch.no_grad()
    def sync_parameters(self) -> None:
        if self._taken:
            for average in self._averages:
                average.take(self.group)
            self._taken = 0

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state; rank 0 adds the outer momentum, equal on all ranks."""
        assert self._optimizer is not None
        return {
            "model": self.module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "taken": self._taken,
            "outer": self._outer_state() if self.group.rank() == 0 else [],
        }

    def _outer_state(self) -> list[dict[str, torch.Tensor]]:
        return [average.state for average in self._averages if average.state]

    @torch.no_grad()
    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        assert self._optimizer is not None
        own = states[self.group.rank()]
        taken = own["taken"]
        if taken not in range(self._every) or any(state["taken"] != taken for state in states):
            raise ValueError(
                f"the saved number of steps since the last average is {taken!r}: must be from 0 to {self._every - 1} "
                f"and the same on all ranks"
            )
        self.module.load_state_dict(own["model"])
        self._optimizer.load_state_dict(own["optimizer"])
        self._taken = taken
        for outer, saved in zip(self._outer_state(), states[0]["outer"], strict=True):
            copy_saved(list(outer.values()), [saved[name] for name in outer])


diloco = partial(LocalSgd, outer=OuterMomentum())


@torch.no_grad()
def _unscale(optimizer: torch.optim.Optimizer) -> None:
    """Unscale gradients, or remove them if one is infinite: `torch.amp.GradScaler` leaves this to the optimizer.

    Each rank has its own scale.
    """
    scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
    if found_inf is None:
        return
    for parameter in parameters_of(optimizer):
        if found_inf.item():
            parameter.grad = None
        elif scale is not None and parameter.grad is not None:
            parameter.grad.div_(scale)
    optimizer.grad_scale = optimizer.found_inf = None  # type: ignore[attr-defined]
