"""torch's FSDP2 (`fully_shard`), and the same on our backend: what `zero3` shows, with all that torch has beside it."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from trainers.strategies.base import MakeOptimizer, Strategy
from trainers.strategies.ddp import group_on_ring
from trainers.strategies.gradient_norm import clip_parts, norm_over_ranks
from trainers.strategies.layers import layers_of
from trainers.strategies.sharding_guard import ForeignOptimizers, ShardingError


class Fsdp(Strategy):
    """`fully_shard` for each layer, as `layers_of` has them, and for the whole model.

    The parameters are DTensors, of which a rank has some rows; an optimizer steps these. Its state and the model's are
    saved whole, as those of `ring`, so that checkpoints fit other strategies, too. Whole parameters can be looked
    at after `unshard`, but not written to.

    Raises ValueError for a layer of several dtypes, which `fully_shard` does not take.
    """

    name = "fsdp"

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        layers = layers_of(model)
        self._check([{self.parameters[index].dtype for index in part.indices} for part in layers])
        self._mesh = DeviceMesh.from_group(group, self.parameters[0].device.type)
        self._layers = [part.module for part in layers if part.module is not model]
        for part in layers:
            own = {self.parameters[index] for index in part.indices}
            if part.module is not model:
                fully_shard(part.module, mesh=self._mesh, ignored_params=set(part.module.parameters()) - own)
        fully_shard(model, mesh=self._mesh)
        # Which layer is gathered ahead in a backward pass is said here. By itself FSDP takes the order of the last
        # forward passes, which is another one on a rank that has evaluated the model alone.
        for before, module in zip([model, *self._layers], self._layers, strict=False):
            _as_fsdp(module).set_modules_to_backward_prefetch([_as_fsdp(before)])
        _as_fsdp(model).set_modules_to_backward_prefetch([_as_fsdp(module) for module in self._layers[-1:] or [model]])
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        # docs/trainers.md says, once, what torch would say on every rank: not to change a view in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        self._is_whole = False
        self._was_held = False  # since the last backward pass that was synchronised

    def _check(self, dtypes: list[set[torch.dtype]]) -> None:
        for some in dtypes:
            if len(some) > 1:
                raise ValueError(
                    f"{self.name}: a layer has parameters of {', '.join(sorted(map(str, some)))}, and torch's "
                    f"fully_shard takes one dtype for each; take zero3"
                )

    def begin(self) -> None:
        if torch.is_grad_enabled():
            self._reshard()

    def finish(self) -> None:
        """FSDP has done it already."""
        self._was_held = False

    def synchronise(self) -> None:
        if self._was_held:
            raise ShardingError(
                f"{self.name}: only backward passes synchronise gradients; take the last one outside of no_sync()"
            )

    def hold(self, held: bool) -> None:
        self._was_held |= held
        _as_fsdp(self.module).set_requires_gradient_sync(not held)

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        optimizer = make(self.parameters)
        optimizer.register_step_pre_hook(lambda *_: self._reshard())
        optimizer.register_state_dict_post_hook(_whole_state)
        optimizer.register_load_state_dict_pre_hook(_sharded_state)
        return optimizer

    def unshard(self) -> None:
        # On all ranks alike, whatever has been done on one of them, such as asking the plain model for its state.
        for module in (*self._layers, self.module):
            _as_fsdp(module).reshard()
            _as_fsdp(module).unshard()
            _as_fsdp(module).set_reshard_after_forward(False, recurse=False)
        self._is_whole = True
        self._guard = ForeignOptimizers(list(self.module.parameters()), self.name)

    def _reshard(self) -> None:
        """Be as before `unshard`."""
        if self._is_whole:
            for module in (*self._layers, self.module):
                _as_fsdp(module).reshard()
                _as_fsdp(module).set_reshard_after_forward(module is not self.module, recurse=False)
        self._is_whole = False

    def zero_grad(self) -> None:
        for parameter in self.parameters:  # which after `unshard` are not the model's
            parameter.grad = None

    def sync_parameters(self) -> None:
        self.unshard()

    def state_of(self, model: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        state = super().state_of(model, *arguments, **keywords)
        for name in list(state):
            state[name] = _whole(state[name])
        if self._is_whole:  # of which the model knows nothing any more, since it was asked for its state
            self.unshard()
        return state

    def load_into(self, model: nn.Module, state_dict: Mapping[str, Any], strict: bool) -> Any:
        sharded = model.state_dict()
        parts = {name: _like(value, sharded.get(name)) for name, value in state_dict.items()}
        return super().load_into(model, parts, strict)

    def compile(self, compile_module: Callable[[nn.Module], Callable[..., object]]) -> None:  # noqa: ARG002
        """Raises ValueError, as `zero3` does."""
        raise ValueError(f"{self.name}: its passes are not compiled here; take ddp or zero2")

    def saved_like(self) -> list[torch.Tensor]:
        return [torch.empty(p.shape, dtype=p.dtype, device="meta") for p in self.parameters]

    def gradient_norm(self) -> torch.Tensor:
        return norm_over_ranks(self._gradients(), self.group)

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        norm = self.gradient_norm()
        clip_parts(self._gradients(), norm, max_norm)
        return norm

    def _gradients(self) -> list[torch.Tensor]:
        """The rows that this rank has of them."""
        return [_local(parameter.grad) for parameter in self.parameters if parameter.grad is not None]


class FsdpOnRing(Fsdp):
    """The same on a process group of our backend "ring" over the same ranks; see `DdpOnRing`."""

    name = "fsdp_on_ring"

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group_on_ring(group))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of it, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _as_fsdp(module: nn.Module) -> FSDPModule:
    """What `fully_shard` has made of it."""
    assert isinstance(module, FSDPModule)
    return module


def _whole(value: Any) -> Any:
    """A copy of all ranks' rows; what is no DTensor as it is. Collective."""
    return value.full_tensor().detach().clone() if isinstance(value, DTensor) else value


def _like(value: Any, parameter: torch.Tensor | None) -> Any:
    """The rows that this rank has of the parameter, of a tensor that has its shape; else the value as it is."""
    if not isinstance(parameter, DTensor) or not torch.is_tensor(value) or value.shape != parameter.shape:
        return value
    # All ranks have read the same, so nothing need be sent.
    return distribute_tensor(value.detach(), parameter.device_mesh, parameter.placements, src_data_rank=None)


def _whole_state(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """The optimizer's state with whole tensors, the same on every rank; collective."""
    states = state_dict["state"].items()
    return {**state_dict, "state": {index: {k: _whole(v) for k, v in state.items()} for index, state in states}}


def _sharded_state(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """What `_whole_state` gave, with this rank's rows of what has the shape of a parameter."""
    stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = state_dict["state"].items()
    return {
        **state_dict,
        "state": {index: {k: _like(v, stepped[index]) for k, v in state.items()} for index, state in states},
    }
