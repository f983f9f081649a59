"""`Strategy`: what `DataParallel` asks of a way to synchronise gradients."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Strategy:
    """What all have in common; by itself it synchronises nothing.

    module: what is called in place of the model: the model itself, or a wrapper of it.
    parameters: those that are trained, in their order.
    gather_s: how long the optimizer's last step has taken to gather parameters, where ranks step shares of them, or to
    average them.
    keeps_state: whether a rank has a state of its own, beside that of model and optimizer on rank 0.
    """

    gather_s = 0.0
    keeps_state = False

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.module = model
        self.group = group
        self.parameters = [p for p in model.parameters() if p.requires_grad]

    def begin(self) -> None:
        """A forward pass begins: forget what a backward pass that failed may have left."""

    def ready(self, index: int) -> None:
        """In a backward pass that is to be synchronised: the gradient of `parameters[index]` is there."""

    def finish(self) -> None:
        """Such a backward pass ends: make every gradient the mean over all ranks."""
        self.synchronise()

    def synchronise(self) -> None:
        """Make every gradient the mean over all ranks, whatever backward passes have left there."""

    def compile(self, compile_module: Callable[[nn.Module], Callable[..., object]]) -> None:
        """Let forward passes go through what `compile_module` makes of the plain model."""
        compiled: Any = compile_module(self.module)
        self.module = compiled

    def hold(self, held: bool) -> None:
        """Until told otherwise, backward passes are to be synchronised (not held) or not."""

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        """What `make` makes of the parameters that this rank is to step."""
        return make(self.parameters)

    @property
    def parameters_agree(self) -> bool:
        """Whether all ranks should hold the same parameters and buffers now."""
        return True

    def sync_parameters(self) -> None:
        """Leave the same parameters on all ranks, if steps of their own have taken them apart; collective."""

    def unshard(self) -> None:
        """Have whole parameters at the model until the next forward pass with gradients, or step; collective."""

    def state_of(self, model: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        """The state of the plain model, with whole tensors; collective, and a copy, where ranks have shares of them."""
        return model.state_dict(*arguments, **keywords)

    def load_into(self, model: nn.Module, state_dict: Mapping[str, Any], strict: bool) -> Any:
        """Into the plain model what `state_of` gave; collective where ranks have shares of it."""
        return model.load_state_dict(state_dict, strict)

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on as if it had never stopped, beside what rank 0 saves; {} of most."""
        return {}

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Go on from what `state_dict` gave. states: of every rank."""

    def state_forms(self, optimizer: dict[str, Any]) -> list[dict[str, Any]]:  # noqa: ARG002
        """What the states of all ranks look like, as `mismatch` takes it; [] if there are none.

        optimizer: what the state of the optimizer looks like.
        """
        return []

    def zero_grad(self) -> None:
        """Forget the gradients that are kept elsewhere than at the parameters, if any are."""

    def vectors(self) -> list[torch.Tensor]:
        """All that is kept from step to step beside parameters, their gradients and the optimizer's state."""
        return []

    def saved_like(self) -> Sequence[torch.Tensor]:
        """Of which shapes and dtypes the optimizer's state is, as it is saved: those of what it steps, all ranks'."""
        return self.parameters

    def gradient_norm(self) -> torch.Tensor:
        """The global norm of the synchronised gradients, also after the optimizer's step; collective."""
        return nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale the synchronised gradients down to a global norm of at most `max_norm`; returns what it was."""
        return nn.utils.clip_grad_norm_(self.parameters, max_norm)
