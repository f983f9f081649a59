"""torch's FSDP2 (`fully_shard`), on torch's backend or ours; the idea of `zero3`."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_leaves

from trainers.strategies import sharded
from trainers.strategies.base import MakeOptimizer, ShardingError, parameters_of
from trainers.strategies.flat_vector import LayerParts, layers_of
from trainers.strategies.sharded import Sharded, Withheld


def gathered_rows(value: Any) -> Any:
    """Return a DTensor's copy with all ranks' rows, collective; other values unchanged."""
    return value.full_tensor().detach().clone() if isinstance(value, DTensor) else value


def rows_like(value: Any, parameter: torch.Tensor | None) -> Any:
    """Return this rank's rows of a tensor of the parameter's shape; other values unchanged."""
    if not isinstance(parameter, DTensor) or not torch.is_tensor(value) or value.shape != parameter.shape:
        return value
    # All ranks have read the same, so nothing need be sent.
    return distribute_tensor(value.detach(), parameter.device_mesh, parameter.placements, src_data_rank=None)


class Fsdp(Sharded):
    """`fully_shard` for each layer of `layers_of`, and for the whole model.

    The optimizer steps a rank's rows of DTensors. Changes to the whole parameters after `unshard` are kept.

    Raises ValueError for a layer of several dtypes, unsupported by `fully_shard`.
    """

    name = "fsdp"

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        parts = layers_of(model)
        for part in parts:
            if len(dtypes := {str(parameter.dtype) for parameter in part.parameters}) > 1:
                raise ValueError(
                    f"{self.name}: a layer has parameters of {', '.join(sorted(dtypes))}, and torch's fully_shard "
                    f"needs a single dtype per layer; use zero3"
                )
        root: Any = model  # fully_shard gives modules more methods
        self._root, self._layers = root, list[Any](part.module for part in parts if part.module is not model)
        foreign = [*self.parameters]  # which an optimizer that was made earlier would step
        self._shard(parts)
        self._set_prefetch()
        for module in self._layers:
            module.register_forward_hook(_keep_hidden)
        # torch warns on every rank not to change a view in place; docs/reference/strategies.md says so once.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        # FSDP's own hook, registered at the first gathering, would lose changes to the parameters.
        model.register_state_dict_pre_hook(lambda *_: self._reshard())
        self._shown: list[tuple[nn.Parameter, nn.Parameter]] = []
        self._gather()
        self.stand_ins = [p for p in model.parameters() if p.requires_grad]  # whole, and the model's while gathered
        for whole in self.stand_ins:
            whole.register_hook(lambda _: self._hide_gradients())  # before a gradient is accumulated anywhere
        self.refuse_others([*foreign, *self.stand_ins])
        self._places = self._storages()
        self._versions = [whole._version for whole in self.stand_ins]
        self._reshard()
        _extend_zero_grad(model, self._forget)

    def _shard(self, parts: Sequence[LayerParts]) -> None:
        device = self.parameters[0].device.type
        # DTensor treats meshes of the same ranks and names as one, even if the group of the first is destroyed.
        mesh = DeviceMesh.from_group(self.group, device, mesh_dim_names=(self.group.group_name,))
        own: dict[nn.Module, set[nn.Parameter]] = {self.module: set()}
        own |= {part.module: set(part.parameters) for part in parts}
        # The model before its layers, in which it would otherwise not find parameters that several share.
        for module, some in own.items():
            fully_shard(module, mesh=mesh, ignored_params=set(module.parameters()) - some)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        assert all(isinstance(p, DTensor) for p in self.parameters)

    def _set_prefetch(self) -> None:
        """Set the layer to prefetch in a backward pass.

        FSDP's default, the order of the last forward passes, differs on a rank that evaluated alone.
        """
        for before, module in zip([self._root, *self._layers], self._layers, strict=False):
            module.set_modules_to_backward_prefetch([before])
        self._root.set_modules_to_backward_prefetch(self._layers[-1:] or [self._root])

    def _storages(self) -> list[int]:
        """Return the identities of storages, even of empty ones; an assignment changes them."""
        return [p.untyped_storage()._cdata for p in (*self.parameters, *self.stand_ins)]

    def on_forward(self) -> None:
        if torch.is_grad_enabled() and sharded.backward_pass() < 0:
            if self._iteration().post_backward_final_callback_queued or self._iteration().iter_forward_root is not None:
                self._root.reset_iter_state()  # after a pass that has failed
            if self._is_whole:
                self._reshard()
            if self._storages() != self._places:
                raise ShardingError(sharded.MOVED)

    def _iteration(self) -> Any:
        return self._root._get_fsdp_state()._state_ctx

    def on_backward_end(self) -> None:
        """Raise ShardingError for hooks that FSDP has not called; gradients are already synchronised."""
        if any(parameter._backward_hooks for parameter in self.parameters):
            raise ShardingError(
                f"{self.name} does not call the hooks of Tensor.register_hook on parameters: use "
                f"register_post_accumulate_grad_hook, or the strategy zero3"
            )

    def synchronise(self) -> None:
        """Raise ShardingError for unsynchronised gradients: FSDP synchronises only in backward passes."""
        failed = self._iteration().post_backward_final_callback_queued and sharded.backward_pass() < 0
        if failed or any(sharded.own_gradient(whole) is not None for whole in self.stand_ins):
            raise ShardingError(
                f"{self.name}: some gradients have not been synchronised, which only backward passes do: run the last "
                f"one before optimizer.step() outside no_sync(), and again after one that has failed; use "
                f"torch.utils.checkpoint with use_reentrant=False"
            )

    def set_sync(self, is_synced: bool) -> None:
        self._root.set_requires_gradient_sync(is_synced)

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        optimizer = make(self.parameters)
        _extend_zero_grad(optimizer, partial(self._forget, {id(parameter) for parameter in parameters_of(optimizer)}))
        return self.watch_sharded(
            optimizer, lambda _, part: gathered_rows(part), lambda share, whole: rows_like(whole, share)
        )

    def check_gradients(self) -> None:
        self.synchronise()
        self._reshard()  # else whole parameters of a forward pass without a backward pass would be used after the step

    def unshard(self) -> None:
        if self._is_whole:
            self._reshard()
        self._gather()
        self._versions = [whole._version for whole in self.stand_ins]
        # Code that clips the gradients of whole tensors would skip a tensor whose gradient is None.
        for rows, whole in zip(self.parameters, self.stand_ins, strict=True):
            if rows.grad is not None and whole.grad is None:
                whole.grad = sharded.without_values(whole, whole.shape).as_subclass(Withheld)
                self._shown.append((rows, whole))

    def _hide_gradients(self) -> None:
        for rows, whole in self._shown:
            if whole.grad is None:
                rows.grad = None
            sharded.clear_withheld(whole)
        self._shown.clear()

    def _gather(self) -> None:
        # The same on all ranks, even if the plain model has been asked for its state on one of them.
        for module in (*self._layers, self._root):
            module.reshard()
            module.unshard()
            module.set_reshard_after_forward(False, recurse=False)
        self._is_whole = True

    def _reshard(self) -> None:
        if self._is_whole:
            self._hide_gradients()
            self._keep_written()
        self._is_whole = False
        for module in (*self._layers, self._root):
            module.reshard()
            module.set_reshard_after_forward(module is not self.module, recurse=False)

    @torch.no_grad()
    def _keep_written(self) -> None:
        for rows, whole, version in zip(self.parameters, self.stand_ins, self._versions, strict=True):
            if whole.untyped_storage().size() >= whole.nbytes:
                rows.copy_(rows_like(whole, rows))
            elif whole._version != version:
                raise ShardingError(
                    f"{self.name}: values that were written to parameters after unshard() are lost, because a "
                    f"backward pass has ended since; write them between a backward pass and the next forward pass"
                )

    def zero_grad(self) -> None:
        for parameter in self.parameters:  # after `unshard` they are not the model's
            parameter.grad = None
        self._forget()

    def _forget(self, stepped: set[int] | None = None) -> None:
        """Forget gradients of failed passes and of `no_sync`. stepped: ids of parameters; None: all."""
        for rows, whole in zip(self.parameters, self.stand_ins, strict=True):
            if stepped is None or id(rows) in stepped:
                whole.grad = None

    def state_of(self, model: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        was_whole = self._is_whole
        state = super().state_of(model, *arguments, **keywords)
        for name in list(state):
            state[name] = gathered_rows(state[name])
        if was_whole:
            self.unshard()
        return state

    def load_into(self, model: nn.Module, state_dict: Mapping[str, Any], strict: bool) -> Any:
        sharded = model.state_dict()
        parts = {name: rows_like(value, sharded.get(name)) for name, value in state_dict.items()}
        return super().load_into(model, parts, strict)

    def compile(self, compile_module: Callable[[nn.Module], Callable[..., object]]) -> None:  # noqa: ARG002
        raise ValueError(f"{self.name}: its passes cannot be compiled; use ddp or zero2")

    def share_gradients(self) -> list[torch.Tensor]:
        gradients: list[Any] = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return [gradient.to_local() for gradient in gradients]


def _extend_zero_grad(owner: nn.Module | torch.optim.Optimizer, forget: Callable[[], None]) -> None:
    zero = owner.zero_grad

    def zero_grad(set_to_none: bool = True) -> None:
        forget()
        zero(set_to_none)

    owner.zero_grad = zero_grad  # type: ignore[method-assign]


def _keep_hidden(module: Any, _: object, output: object) -> None:
    """Gather a layer's parameters again if no tensor of its output marks the beginning of its backward pass."""
    shown = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(output))
    if torch.is_grad_enabled() and not shown and sharded.backward_pass() < 0:
        module.unshard()
