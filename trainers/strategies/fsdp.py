"""torch's FSDP2 (`fully_shard`), and the same on our backend: what `zero3` shows, with all that torch has beside it."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_leaves

from trainers.strategies.base import MakeOptimizer
from trainers.strategies.ddp import group_on_ring
from trainers.strategies.flat_vector import LayerParts, layers_of
from trainers.strategies.sharded import Sharded
from trainers.strategies.sharding_guard import ForeignOptimizers, ShardingError, forgotten_error, moved_error
from trainers.strategies.share_gradient import make_way, own_gradient, stand_in_for


class ShardedParameter:
    """One that is trained: `sharded`, of which a rank has some rows, and `whole`, which has its places while gathered.

    FSDP2 knows of neither what is written to `whole` nor of assignments, so these are looked for here.

    model: in which either has its places now. strategy: its name, for messages.
    """

    def __init__(self, model: nn.Module, sharded: nn.Parameter, whole: nn.Parameter, strategy: str) -> None:
        self.sharded, self.whole = sharded, whole
        self._places = [(m, name) for m in model.modules() for name, p in m._parameters.items() if p is whole]
        self._storages = _storages(sharded, whole)
        self._strategy = strategy
        self.gathered()

    def require_own(self) -> None:
        """Raise ShardingError for an assignment, of which FSDP2 takes no notice."""
        placed = [module._parameters.get(name) for module, name in self._places]
        if not all(p is self.sharded or p is self.whole for p in placed):
            raise moved_error(self._strategy)
        if _storages(self.sharded, self.whole) != self._storages:
            raise moved_error(self._strategy)

    def refuse_hooks(self) -> None:
        """Raise ShardingError for a hook that the backward pass has not called: it gives gradients to `whole`."""
        if self.sharded._backward_hooks:
            raise ShardingError(
                f"{self._strategy} does not call the hooks of Tensor.register_hook on parameters: "
                f"use register_post_accumulate_grad_hook, or the strategy zero3"
            )

    def gathered(self) -> None:
        """Gather the whole tensor, for everybody to look at and to write to."""
        self._versions = self._counted()

    def show_gradient(self) -> bool:
        """Give the whole tensor a stand-in for its gradient if only this rank's rows have one; return whether it did.

        Code that clips the gradients of whole tensors would skip a tensor whose gradient is None.
        """
        if self.sharded.grad is None or self.whole.grad is not None:
            return False
        self.whole.grad = stand_in_for(self.whole)
        return True

    def hide_gradient(self) -> None:
        """Remove the stand-in for the gradient. Raises ShardingError if the program has set it to None."""
        if self.whole.grad is None and self.sharded.grad is not None:
            raise forgotten_error(self._strategy)
        make_way(self.whole)

    def _counted(self) -> tuple[int, int]:
        """Return autograd's version counters of the whole tensor and of this rank's rows."""
        return self.whole._version, self.sharded._version

    @torch.no_grad()
    def keep_written(self) -> None:
        """Copy values written to the whole tensor since it was gathered to this rank's rows, before it is freed."""
        if not self.whole.untyped_storage().resizable():
            raise ShardingError(
                f"{self._strategy}: a NumPy array shares the memory of a parameter, which therefore cannot be freed "
                f"after the pass; make the array from parameter.detach().clone()"
            )
        (before, rows_before), (now, rows_now) = self._versions, self._counted()
        is_gone = self.whole.untyped_storage().size() < self.whole.nbytes
        if now == before and (is_gone or rows_now != rows_before):
            return
        if is_gone:
            raise ShardingError(
                f"{self._strategy}: values that were written to parameters after unshard() are lost, because a "
                f"backward pass has ended since; write them between a backward pass and the next forward pass"
            )
        # Also where nothing was counted, as of p.data.mul_(...).
        local(self.sharded).copy_(local(rows_like(self.whole, self.sharded)))


def _storages(*tensors: torch.Tensor) -> list[int]:
    """Tell which memory they have, also while it is empty. A DTensor gets another one by an assignment."""
    return [tensor.untyped_storage()._cdata for tensor in tensors]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the rows that this rank has, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gathered_rows(value: Any) -> Any:
    """Return a copy of all ranks' rows; what is no DTensor as it is. Collective."""
    return value.full_tensor().detach().clone() if isinstance(value, DTensor) else value


def rows_like(value: Any, parameter: torch.Tensor | None) -> Any:
    """Return this rank's rows of a tensor that has the parameter's shape; any other value as it is."""
    if not isinstance(parameter, DTensor) or not torch.is_tensor(value) or value.shape != parameter.shape:
        return value
    # All ranks have read the same, so nothing need be sent.
    return distribute_tensor(value.detach(), parameter.device_mesh, parameter.placements, src_data_rank=None)


class Fsdp(Sharded):
    """`fully_shard` for each layer, as `layers_of` has them, and for the whole model.

    The parameters are DTensors, of which a rank has some rows; an optimizer steps these. Its state and the model's are
    saved whole, as those of `ring`, so that checkpoints fit other strategies as well. Whole parameters are there after
    `unshard`, and what is written to them counts.

    Raises ValueError for a layer of several dtypes, which `fully_shard` does not take.
    """

    name = "fsdp"

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        parts = layers_of(model)
        self._check([{self.parameters[index].dtype for index in part.indices} for part in parts])
        self._layers = [part.module for part in parts if part.module is not model]
        foreign = [*self.parameters]  # an optimizer that has been made before would step these
        self._shard(parts)
        # Which layer is gathered ahead in a backward pass is said here. By itself FSDP takes the order of the last
        # forward passes, which is another one on a rank that has evaluated the model alone.
        for before, module in zip([model, *self._layers], self._layers, strict=False):
            _as_fsdp(module).set_modules_to_backward_prefetch([_as_fsdp(before)])
        _as_fsdp(model).set_modules_to_backward_prefetch([_as_fsdp(module) for module in self._layers[-1:] or [model]])
        for module in self._layers:
            module.register_forward_hook(_keep_hidden)
        # docs/reference/strategies.md says, once, what torch would say on every rank: not to change a view in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        # FSDP does so itself when the plain model is asked for its state, and would lose what has been written. Its own
        # hook comes with the first gathering.
        model.register_state_dict_pre_hook(lambda *_: self._reshard())
        self._shown: list[ShardedParameter] = []  # with something in place of a gradient, since `unshard`
        self._gather()
        self.stand_ins = gathered = [p for p in model.parameters() if p.requires_grad]
        self._pairs = [
            ShardedParameter(model, *pair, self.name) for pair in zip(self.parameters, gathered, strict=True)
        ]
        for parameter in gathered:
            parameter.register_hook(lambda _: self._hide_gradients())  # before a gradient is accumulated anywhere
        self._guard = ForeignOptimizers([*foreign, *gathered], self.name)
        self._reshard()
        _extend_zero_grad(model, self.zero_grad)
        self._was_held = False  # since the last backward pass that was synchronised

    def _check(self, dtypes: list[set[torch.dtype]]) -> None:
        for some in dtypes:
            if len(some) > 1:
                raise ValueError(
                    f"{self.name}: a layer has parameters of {', '.join(sorted(map(str, some)))}, and torch's "
                    f"fully_shard needs a single dtype per layer; use zero3"
                )

    def _shard(self, parts: Sequence[LayerParts]) -> None:
        """Have FSDP2 shard the parameters of each part, and no others."""
        device = self.parameters[0].device.type
        # DTensor takes two meshes of the same ranks and names for one, even if the group of the first is destroyed.
        mesh = DeviceMesh.from_group(self.group, device, mesh_dim_names=(self.group.group_name,))
        own: dict[nn.Module, set[nn.Parameter]] = {self.module: set()}
        own |= {part.module: {self.parameters[index] for index in part.indices} for part in parts}
        # The model before its layers: afterwards it would not look into these for parameters that several share.
        for module, some in own.items():
            fully_shard(module, mesh=mesh, ignored_params=set(module.parameters()) - some)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        assert all(isinstance(p, DTensor) for p in self.parameters)

    def on_forward(self) -> None:
        if torch.is_grad_enabled() and not _in_backward():
            for pair in self._pairs:
                pair.require_own()
            context = self._iteration()
            if context.post_backward_final_callback_queued or context.iter_forward_root is not None:
                _as_fsdp(self.module).reset_iter_state()  # after a pass that has failed
            if self._is_whole:
                self._reshard()

    def _iteration(self) -> Any:
        """Return FSDP's own notes on the passes that are under way."""
        return _as_fsdp(self.module)._get_fsdp_state()._state_ctx

    def on_backward_end(self) -> None:
        """FSDP has synchronised the gradients already."""
        self._was_held = False
        for pair in self._pairs:
            pair.refuse_hooks()

    def synchronise(self) -> None:
        if self._was_held:
            raise ShardingError(
                f"{self.name}: only backward passes synchronise gradients; run the last one outside no_sync()"
            )

    def set_sync(self, is_synced: bool) -> None:
        self._was_held |= not is_synced
        _as_fsdp(self.module).set_requires_gradient_sync(is_synced)

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        optimizer = make(self.parameters)
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        _extend_zero_grad(optimizer, lambda: self._forget_held(stepped))
        return self.watch(optimizer)

    def whole(self, share: torch.Tensor, part: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        return gathered_rows(part)  # type: ignore[no-any-return]

    def own_part(self, share: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        return rows_like(whole, share)  # type: ignore[no-any-return]

    def before_stepping(self) -> None:
        """Raise ShardingError unless the gradients of the rows are there, and let go of whole parameters."""
        if self._iteration().post_backward_final_callback_queued and not _in_backward():
            raise ShardingError(
                f"{self.name}: a backward pass has failed, so the gradients are incomplete; call zero_grad(), and run "
                f"a forward and a backward pass before optimizer.step()"
            )
        if any(own_gradient(pair.whole) is not None for pair in self._pairs):
            raise ShardingError(
                f"{self.name}: some gradients have not been synchronised: run the last backward pass before "
                f"optimizer.step() outside no_sync(), and use torch.utils.checkpoint with use_reentrant=False"
            )
        self._reshard()  # what a forward pass without a backward pass has left would be used again after the step

    def unshard(self) -> None:
        if self._is_whole:
            self._reshard()
        self._gather()
        for pair in self._pairs:
            pair.gathered()
        self._shown = [pair for pair in self._pairs if pair.show_gradient()]

    def _hide_gradients(self) -> None:
        shown, self._shown = self._shown, []
        for pair in shown:
            pair.hide_gradient()

    def _gather(self) -> None:
        # On all ranks alike, whatever has been done on one of them, such as asking the plain model for its state.
        for module in (*self._layers, self.module):
            _as_fsdp(module).reshard()
            _as_fsdp(module).unshard()
            _as_fsdp(module).set_reshard_after_forward(False, recurse=False)
        self._is_whole = True

    def _reshard(self) -> None:
        """Be as before `unshard`, but for what has been written."""
        if self._is_whole:
            self._hide_gradients()
            for pair in self._pairs:
                pair.keep_written()
        self._is_whole = False
        for module in (*self._layers, self.module):
            _as_fsdp(module).reshard()
            _as_fsdp(module).set_reshard_after_forward(module is not self.module, recurse=False)

    def zero_grad(self) -> None:
        for parameter in self.parameters:  # which after `unshard` are not the model's
            parameter.grad = None
        self._forget_held({id(parameter) for parameter in self.parameters})
        self._was_held = False

    def _forget_held(self, parameters: set[int]) -> None:
        """Forget what backward passes within `no_sync`, or failed ones, have left. parameters: the ids of which."""
        for pair in self._pairs:
            if id(pair.sharded) in parameters:
                pair.whole.grad = None

    def sync_parameters(self) -> None:
        self.unshard()

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
        """Raise ValueError, as `zero3` does."""
        raise ValueError(f"{self.name}: its passes cannot be compiled; use ddp or zero2")

    def share_gradients(self) -> list[torch.Tensor]:
        """Return the rows that this rank has of the gradients."""
        return [local(parameter.grad) for parameter in self.parameters if parameter.grad is not None]


class FsdpBackendRing(Fsdp):
    """FSDP on a process group of our backend "ring" over the same ranks; see `DdpBackendRing`."""

    name = "fsdp_backend_ring"

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group_on_ring(group))


def _as_fsdp(module: nn.Module) -> FSDPModule:
    """Return the module as what `fully_shard` has made of it."""
    assert isinstance(module, FSDPModule)
    return module


def _in_backward() -> bool:
    """Return whether a backward pass is under way, in which torch.utils.checkpoint may repeat a forward pass."""
    return torch._C._current_graph_task_id() != -1


def _extend_zero_grad(owner: nn.Module | torch.optim.Optimizer, forget: Callable[[], None]) -> None:
    """Let `owner.zero_grad` also forget what is kept elsewhere than at the DTensors."""
    zero = owner.zero_grad

    def zero_grad(set_to_none: bool = True) -> None:
        forget()
        zero(set_to_none)

    owner.zero_grad = zero_grad  # type: ignore[method-assign]


def _keep_hidden(module: nn.Module, _: object, output: object) -> None:
    """Gather a layer's parameters again if no tensor of its output tells when its backward pass begins."""
    shown = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(output))
    if torch.is_grad_enabled() and not shown and not _in_backward():
        _as_fsdp(module).unshard()
