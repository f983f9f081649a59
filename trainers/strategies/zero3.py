"""ZeRO stage 3: each rank keeps only its share of the parameters; fully sharded data parallelism."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.hooks import RemovableHandle

from trainers.strategies.base import ShardingError, all_alike
from trainers.strategies.flat_vector import FlatVector, by_dtype, layers_of
from trainers.strategies.sharded import MOVED, WithheldParameter, backward_pass, without_values
from trainers.strategies.zero import ShardedWeights, Zero1

_next_sequence_nr = torch._C._autograd._get_sequence_nr  # of the nodes that this thread adds to autograd's graph
_outer_hooks = torch._C._autograd._top_saved_tensors_default_hooks


class LayerWeights(ShardedWeights):
    """The parameters of one dtype for a module's forward pass; between passes a rank keeps only its share.

    stays: whole until the end of the backward pass. missing: parameters without a gradient yet.
    """

    def __init__(
        self, some: Sequence[nn.Parameter], group: dist.ProcessGroup, number: int, module: nn.Module, stays: bool
    ) -> None:
        super().__init__(some, group, lends=False)
        self.share = nn.Parameter(self.share.detach().clone())
        self.number, self.module, self.stays = number, module, stays
        self.is_whole = True
        self.missing = set(some)

    @torch.no_grad()
    def unshard(self) -> None:
        if any((p.dtype, p.device) != (self.share.dtype, self.share.device) for p in self.parameters):
            raise ShardingError(MOVED)
        self.home = self.vector()
        self.gather()
        self.is_whole = True
        for parameter, view in zip(self.parameters, self.home.views, strict=True):
            parameter.__class__ = nn.Parameter
            parameter.data = view

    @torch.no_grad()
    def release(self, hold: bool) -> None:
        """Keep only the share, with changes to the parameters. hold: keep the values, which a graph may read."""
        if not self.are_home:
            raise ShardingError(MOVED)
        self.share.copy_(self.own_share(self.home.vector))
        self.home = FlatVector([], self.share)
        self.is_whole = False
        for parameter in self.parameters:
            if not hold:
                parameter.data = without_values(parameter, parameter.shape)
            parameter.__class__ = WithheldParameter


class Zero3(Zero1):
    """`Zero1` whose ranks all-gather a layer's parameters before its forward and its backward pass, and then free them.

    Autograd saves a parameter's place instead of its values; reading it gathers the layer. A layer's gradients are
    reduce-scattered when all are ready and another layer begins, without prefetch. Ranks must use the same layers.

    Source: as `Zero1`, 5.3.
    """

    name = "zero3"
    weights: list[LayerWeights]

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        self._layers = self.weights
        self._withhold_parameters()
        for module in dict.fromkeys((*(layer.module for layer in self._layers), model)):
            own = [layer for layer in self._layers if layer.module is module]
            _surround(module, partial(self._enter, own), partial(self._leave, own))
        self._contexts: list[AbstractContextManager[object]] = []  # of the forward passes that are under way
        self._homes = {layer.home.vector.data_ptr(): layer for layer in self._layers}  # of layers that are whole
        self._gathered = 0  # a checksum of the gathered layers, in their order, since the ranks last compared theirs
        self._over: list[LayerWeights] = []  # layers whose gradients are all there
        self._reduced: set[LayerWeights] = set()
        self._is_synced = True
        self._is_end_queued = False
        self._kept_since: int | None = _next_sequence_nr()  # the next node's number at `unshard`, until it ends
        self._num_steps = 0

    def cut(self) -> list[LayerWeights]:
        parts = [(part.module, some) for part in layers_of(self.module) for some in by_dtype(part.parameters)]
        return [
            LayerWeights(some, self.group, number, module, stays=module is self.module)
            for number, (module, some) in enumerate(parts)
        ]

    def _withhold_parameters(self) -> None:
        names = {parameter: name for name, parameter in self.module.named_parameters()}
        for layer in self._layers:
            for parameter in layer.parameters:
                withheld: Any = parameter
                withheld.bring_back = partial(self._gather, layer)
                withheld.message = (
                    f"{names[parameter]} is empty: with zero3 a parameter is there only while its layer is called; "
                    "within a forward pass call the layer rather than use its parameter elsewhere, and between passes "
                    "call model.unshard() on every rank before a parameter is read, changed or copied"
                )
                parameter.register_post_accumulate_grad_hook(partial(self._arrived, layer))

    def set_sync(self, is_synced: bool) -> None:
        self._is_synced = is_synced

    def on_forward(self) -> None:
        # One rank alone may evaluate, without gradients, if all parameters are there. A forward pass within a backward
        # pass computes again what that needs.
        if torch.is_grad_enabled() and backward_pass() < 0:
            self._forget(hold=self._kept_since is not None and _next_sequence_nr() > self._kept_since)

    def _forget(self, hold: bool = False) -> None:
        """Free parameters left by `unshard` or a failed pass. hold: as in `LayerWeights.release`."""
        self._kept_since = None
        self._end_backward(hold)
        self._over.clear()
        self._reduced.clear()
        for layer in self._layers:
            layer.missing = set(layer.parameters)

    def _end_backward(self, hold: bool = False) -> None:
        self._is_end_queued = False
        for layer in self._layers:
            self._release(layer, hold)

    def _enter(self, layers: Sequence[LayerWeights]) -> None:
        # Under hooks of others, such as those of torch.utils.checkpoint, the vectors themselves are saved.
        is_ours = _outer_hooks(False) is None
        self._contexts.append(saved_tensors_hooks(self._save, lambda load: load()) if is_ours else nullcontext())
        self._contexts[-1].__enter__()
        for layer in layers:
            self._gather(layer)

    def _leave(self, layers: Sequence[LayerWeights]) -> None:
        self._contexts.pop().__exit__(None, None, None)
        for layer in layers:
            # What a backward pass computes again it needs right after.
            if backward_pass() < 0 and not (layer.stays and torch.is_grad_enabled()):
                self._release(layer)

    def _gather(self, layer: LayerWeights) -> None:
        if layer.is_whole:
            return
        if backward_pass() >= 0:
            self._settle()
            if not self._is_end_queued:
                torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
                self._is_end_queued = True
        self._gathered = zlib.crc32(layer.number.to_bytes(4), self._gathered)
        layer.unshard()
        self._homes[layer.home.vector.data_ptr()] = layer

    def _release(self, layer: LayerWeights, hold: bool = False) -> None:
        if layer.is_whole and self._kept_since is None:
            self._homes.pop(layer.home.vector.data_ptr(), None)
            layer.release(hold)

    def _save(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        layer = self._homes.get(tensor.untyped_storage().data_ptr()) if tensor.layout is torch.strided else None
        if layer is None or tensor.dtype != layer.share.dtype or tensor.is_conj():
            return partial(_unchanged, tensor, tensor._version)
        return partial(self._load, layer, self._num_steps, tensor.size(), tensor.stride(), tensor.storage_offset())

    def _load(self, layer: LayerWeights, num_steps: int, *place: Any) -> torch.Tensor:
        """Return a view of the gathered vector. num_steps: optimizer steps before the forward pass."""
        if num_steps != self._num_steps:
            raise ShardingError(
                "a backward pass belongs to a forward pass from before the last optimizer.step(), which has changed "
                "the parameters since: call backward() on every loss before optimizer.step()"
            )
        self._gather(layer)
        view = layer.home.vector.as_strided(*place)
        return view.clone() if torch.is_grad_enabled() else view  # the graph of gradients reads it later

    def _arrived(self, layer: LayerWeights, parameter: nn.Parameter) -> None:
        """Note a gradient; a backward pass may contain others, as with checkpoints."""
        self._reduced.discard(layer)
        layer.missing.discard(parameter)
        if not layer.missing:
            layer.missing = set(layer.parameters)
            self._over.append(layer)

    def _settle(self) -> None:
        over, self._over = self._over, []
        for layer in over:
            if not layer.stays:
                self._release(layer)
            if self._is_synced:
                layer.reduce()
                layer.finish()
                self._reduced.add(layer)

    def on_backward_end(self) -> None:
        for layer in self._layers:
            if layer not in self._reduced:
                layer.reduce()
                layer.finish()
        self._compare_gathered()
        self._forget()

    def _compare_gathered(self) -> None:
        """Raise ShardingError if ranks gathered different layers, which might be unnoticed in layers of one size."""
        own = torch.tensor([self._gathered], device=self.parameters[0].device)
        self._gathered = 0
        if not all_alike(own, self.group):
            raise ShardingError(
                "the ranks have used different layers, or the same layers in a different order: with zero3 all ranks "
                "all-gather the parameters of a layer together; if layers are chosen at random, seed all ranks alike"
            )

    def synchronise(self) -> None:
        self._reduced.clear()
        self.on_backward_end()

    def before_stepping(self) -> None:
        self._forget()
        self._num_steps += 1
        torch.autograd.graph.increment_version(self.parameters)

    def after_stepping(self) -> None:
        """Gather nothing: forward passes gather their parameters."""

    def unshard(self) -> None:
        for layer in self._layers:
            self._gather(layer)
        if self._kept_since is None:
            self._kept_since = _next_sequence_nr()

    def state_of(self, model: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        self.unshard()
        state = super().state_of(model, *arguments, **keywords)
        for name in list(state):
            state[name] = state[name].clone()  # as the parameters' memory is given back
        return state

    def load_into(self, model: nn.Module, state_dict: Mapping[str, Any], strict: bool) -> Any:
        self.unshard()
        return super().load_into(model, state_dict, strict)

    def compile(self, compile_module: Callable[[nn.Module], Callable[..., object]]) -> None:  # noqa: ARG002
        """Raise ValueError: a compiled pass does not expect parameters to come and go."""
        raise ValueError("zero3: its passes cannot be compiled; use zero1 or zero2")


def _unchanged(tensor: torch.Tensor, version: int) -> torch.Tensor:
    """Return a saved tensor. Raises RuntimeError if it has changed, which autograd ignores under hooks."""
    if tensor._version != version:
        raise RuntimeError("a tensor that the backward pass needs has been modified by an in-place operation")
    return tensor


def _surround(module: nn.Module, enter: Callable[[], None], leave: Callable[[], None]) -> None:
    """Call `enter` before and `leave` after a module's forward pass, outside the hooks of others."""
    last: list[RemovableHandle] = []

    def after(called: nn.Module, *_: object) -> None:
        if called is module:  # and no copy of it
            leave()

    def before(called: nn.Module, _: object) -> None:
        if called is module:
            last.pop().remove()  # to be called after hooks of others that have come meanwhile
            last.append(module.register_forward_hook(after, always_call=True))
            enter()

    last.append(module.register_forward_hook(after, always_call=True))
    module.register_forward_pre_hook(before, prepend=True)
