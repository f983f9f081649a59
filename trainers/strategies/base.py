"""`Strategy`: average the gradients of all ranks, and change other parts of a training step."""

import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

import collectives

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class ShardingError(RuntimeError):
    """A use of the model that makes its ranks diverge, or train otherwise than asked."""


class Strategy:
    """The interface of strategies to `DataParallel`, which describes methods of the same name. Override `synchronise`.

    module: the model, or its wrapper. parameters: the trained ones.
    param_sync: begin and end of gathering or averaging parameters in the last step, in seconds of `time.perf_counter`.
    stand_ins: parameters that temporarily replace the model's.
    """

    param_sync: tuple[float, float] | None = None
    stand_ins: Sequence[nn.Parameter] = ()

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.module = model
        self.group = group
        self.parameters = [p for p in model.parameters() if p.requires_grad]

    def synchronise(self) -> None:
        """Make every gradient the mean over all ranks, after any backward passes."""

    def on_forward(self) -> None:
        """Discard the remains of a failed backward pass, before a forward pass."""

    def on_grad(self, index: int) -> None:
        """Handle the gradient of `parameters[index]` in a synchronised backward pass."""

    def on_backward_end(self) -> None:
        """Synchronise after a synchronised backward pass."""
        self.synchronise()

    def set_sync(self, is_synced: bool) -> None:
        """Set whether the next backward passes synchronise gradients."""

    def compile(self, compile_module: Callable[[nn.Module], Callable[..., object]]) -> None:
        compiled: Any = compile_module(self.module)
        self.module = compiled

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        return make(self.parameters)

    def zero_grad(self) -> None:
        """Clear gradients outside `parameter.grad`."""

    def held_gradients(self) -> list[torch.Tensor]:
        """Return this rank's gradients, except for the optimizer's parameters."""
        return [p.grad for p in self.parameters if p.grad is not None]

    def gradient_norm(self) -> torch.Tensor:
        """Return the gradients' global norm, also after the optimizer's step; collective."""
        return nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(self.parameters, max_norm)

    @property
    def parameters_agree(self) -> bool:
        """Whether all ranks should hold equal parameters and buffers now."""
        return True

    def sync_parameters(self) -> None:
        self.unshard()

    def unshard(self) -> None:
        """Gather whole parameters; collective."""

    def state_of(self, model: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        """Return the plain model's state with whole tensors; with sharded parameters collective."""
        return model.state_dict(*arguments, **keywords)

    def load_into(self, model: nn.Module, state_dict: Mapping[str, Any], strict: bool) -> Any:
        return model.load_state_dict(state_dict, strict)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that only this rank has; {} on all ranks if none."""
        return {}

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Resume from every rank's result of `state_dict`."""


class OwnOptimizer(Strategy):
    """A strategy that takes part in its optimizer's steps; no other optimizer may step the model."""

    name: str
    _is_stepping = False

    def before_stepping(self) -> None:
        """Prepare a step."""

    def check_gradients(self) -> None:
        """Raise ShardingError unless the step's gradients are there."""

    def after_stepping(self) -> None:
        """Communicate the step's changes."""

    def watch(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Call the strategy before and after each step of `optimizer`."""
        # Not by hooks: a class whose step calls that of its base may have them called twice, on some ranks only.
        plain_step = optimizer.step

        def step(_: torch.optim.Optimizer, closure: Callable[[], Any] | None = None, **keywords: Any) -> Any:
            def checked() -> Any:
                loss = closure() if closure else None
                self.check_gradients()
                return loss

            self._is_stepping = True
            try:
                self.before_stepping()
                if closure:
                    keywords["closure"] = checked  # it makes the gradients, as with Lightning
                else:
                    checked()
                result = plain_step(**keywords)
            finally:
                self._is_stepping = False
            begin_s = time.perf_counter()
            self.after_stepping()
            self.param_sync = begin_s, time.perf_counter()
            return result

        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
        return optimizer

    def refuse_others(self, parameters: Iterable[nn.Parameter]) -> None:
        """Raise ShardingError, while this strategy lives, when another optimizer steps these parameters."""
        watched, this = WeakTensorKeyDictionary(dict.fromkeys(parameters)), weakref.ref(self)

        def refuse(optimizer: torch.optim.Optimizer, *_: object) -> None:
            strategy = this()
            # An optimizer may step others, as Lookahead does.
            if strategy and not strategy._is_stepping and any(p in watched for p in parameters_of(optimizer)):
                kind = type(optimizer).__name__
                raise ShardingError(
                    f"{kind} was constructed from the model's own parameters: with {strategy.name} the parameters of "
                    f"the ranks would diverge; make it with model.optimizer(lambda parameters: {kind}(parameters, ...))"
                )

        weakref.finalize(self, register_optimizer_step_pre_hook(refuse).remove)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def all_alike(own: torch.Tensor, group: dist.ProcessGroup) -> bool:
    """Whether all ranks have the same vector; collective.

    Not a collective of torch 2.13, which aborts if the interpreter ends while Gloo's thread frees torch's tensors.
    """
    everywhere = own.new_empty(group.size() * len(own))
    collectives.all_gather_into_tensor(everywhere, own, group)
    return bool((everywhere.view(group.size(), -1) == own).all())
