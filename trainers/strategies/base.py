"""`Strategy`: how the gradients of all ranks become their mean, and what else of a training step it may change."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Strategy:
    """A strategy as `DataParallel` uses it.

    Overriding `synchronise` is enough. Other methods let a strategy communicate while a backward pass goes on, or give
    each rank a share of the parameters, the gradients and the optimizer's state.

    module: the module to call in place of the model: the model itself, or a wrapper of it.
    parameters: the parameters that are trained, in their order.
    param_sync: when the optimizer's last step began and ended to gather or average the parameters, on the clock of
    `time.perf_counter`; None if it does not.
    stand_ins: parameters that replace those of the model at times.
    """

    param_sync: tuple[float, float] | None = None
    stand_ins: Sequence[nn.Parameter] = ()

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.module = model
        self.group = group
        self.parameters = [p for p in model.parameters() if p.requires_grad]

    def synchronise(self) -> None:
        """Make every gradient the mean over all ranks, whatever backward passes have left there."""

    def on_forward(self) -> None:
        """Forget, at the beginning of a forward pass, what a backward pass that failed may have left."""

    def on_grad(self, index: int) -> None:
        """Take the gradient of `parameters[index]`, which a backward pass that is to be synchronised has just made."""

    def on_backward_end(self) -> None:
        """Make every gradient the mean over all ranks, at the end of such a backward pass."""
        self.synchronise()

    def set_sync(self, is_synced: bool) -> None:
        """Set whether gradients are synchronised at the end of the backward passes that follow."""

    def compile(self, compile_module: Callable[[nn.Module], Callable[..., object]]) -> None:
        """Run forward passes through the function that `compile_module` returns for the plain model."""
        compiled: Any = compile_module(self.module)
        self.module = compiled

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        """Return the optimizer that `make` builds for the parameters which this rank updates."""
        return make(self.parameters)

    def zero_grad(self) -> None:
        """Clear gradients that are stored elsewhere than in `parameter.grad`, if there are any."""

    def held_gradients(self) -> list[torch.Tensor]:
        """Return the gradients that this rank holds, besides those of the optimizer's parameters."""
        return [p.grad for p in self.parameters if p.grad is not None]

    def gradient_norm(self) -> torch.Tensor:
        """Return the global norm of the synchronised gradients, also after the optimizer's step; collective."""
        return nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale the synchronised gradients down to a global norm of at most `max_norm`; returns what it was."""
        return nn.utils.clip_grad_norm_(self.parameters, max_norm)

    @property
    def parameters_agree(self) -> bool:
        """Whether all ranks should hold the same parameters and buffers now."""
        return True

    def sync_parameters(self) -> None:
        """Leave the same, whole parameters on every rank, also where ranks step alone or hold shares; collective."""
        self.unshard()

    def unshard(self) -> None:
        """Have whole parameters at the model until the next forward pass with gradients, or step; collective."""

    def state_of(self, model: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        """Return the state of the plain model, with whole tensors; collective, and a copy, where ranks have shares."""
        return model.state_dict(*arguments, **keywords)

    def load_into(self, model: nn.Module, state_dict: Mapping[str, Any], strict: bool) -> Any:
        """Load into the plain model what `state_of` gave; collective where ranks have shares of it."""
        return model.load_state_dict(state_dict, strict)

    def state_dict(self) -> dict[str, Any]:
        """Return what only this rank has and needs to go on as if it had never stopped; {} on all ranks if nothing."""
        return {}

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Go on from what `state_dict` gave. states: of every rank."""
