"""ZeRO stage 3: as stage 2, and each rank keeps its share of the parameters only; fully sharded data parallelism."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import collectives
from trainers.strategies.flat_vector import FlatVector, LayerParts, by_dtype, layers_of
from trainers.strategies.own_optimizer import ShardingError
from trainers.strategies.sharded import ShardedVectors, ShardedWeights, moved_error
from trainers.strategies.withheld import WithheldParameter, backward_pass, without_values

_next_sequence_nr = torch._C._autograd._get_sequence_nr  # of the nodes that this thread adds to autograd's graph
_outer_hooks = torch._C._autograd._top_saved_tensors_default_hooks


class LayerWeights(ShardedWeights):
    """Parameters of one dtype. A rank keeps its share; their vector is there between `unshard` and `release`."""

    def __init__(self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup, strategy: str) -> None:
        super().__init__(parameters, group, lends=False)
        self._strategy = strategy
        self.share = nn.Parameter(self.share.detach().clone())

    @torch.no_grad()
    def unshard(self) -> None:
        """Gather all shares into a new vector; collective."""
        if any((p.dtype, p.device) != (self.share.dtype, self.share.device) for p in self.parameters):
            raise moved_error(self._strategy)
        self.home = self.vector()
        self.gather()
        for parameter, view in zip(self.parameters, self.home.views, strict=True):
            parameter.__class__ = nn.Parameter
            parameter.data = view

    @torch.no_grad()
    def release(self, hold: bool) -> None:
        """Keep the share alone, as the parameters hold it now. Graphs that read the vector keep it alive.

        hold: a graph may read the parameters themselves, which keep their values for it.
        """
        if not self.are_home:
            raise moved_error(self._strategy)
        self.share.copy_(self.own_share(self.home.vector))
        self.home = FlatVector([], self.share)
        for parameter in self.parameters:
            if not hold:
                parameter.data = without_values(parameter, parameter.shape)
            parameter.__class__ = WithheldParameter


class ShardedLayer:
    """A module and the weights that its forward pass needs.

    stays: keep them from a forward pass to the end of its backward pass, as those of the whole model.
    missing: the parameters whose gradients the backward pass has not made yet.
    """

    def __init__(self, number: int, part: LayerParts, weights: Sequence[LayerWeights], stays: bool) -> None:
        self.number, self.module, self.weights, self.stays = number, part.module, weights, stays
        self.is_whole = True
        self.indices = frozenset(part.indices)
        self.missing = set(self.indices)


class Zero3(ShardedVectors):
    """All-gather a layer's parameters before its forward pass, and for its backward pass again; free them after each.

    Autograd saves no parameter for the backward pass, but where to find it: whatever reads it gathers its layer. When
    all gradients of a layer are there, and another layer begins, they are reduce-scattered. So an all-gather is added
    to the bytes of an all-reduce, and a rank holds whole parameters of one layer at a time, besides those that belong
    to no layer (see `layers_of`). Nothing is gathered ahead, to keep the code short; torch's fully_shard does that.

    Between passes the model's parameters are withheld: `unshard` brings them back. Ranks must use the same layers,
    which they compare at the end of a backward pass.

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 5.3.
    """

    name = "zero3"

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        self._layers: list[ShardedLayer] = []
        names = {parameter: name for name, parameter in model.named_parameters()}
        for number, part in enumerate(layers_of(model)):
            by_kind = by_dtype([self.parameters[index] for index in part.indices])
            weights = [LayerWeights(some, group, self.name) for some in by_kind]
            layer = ShardedLayer(number, part, weights, stays=part.module is model)
            self._layers.append(layer)
            for index in part.indices:
                parameter: Any = self.parameters[index]
                parameter.bring_back = partial(self._gather, layer)
                parameter.message = (
                    f"{names[parameter]} is empty: with zero3 a parameter is there only while its layer is called; "
                    "within a forward pass call the layer rather than use its parameter elsewhere, and between passes "
                    "call model.unshard() on every rank before a parameter is read, changed or copied"
                )
                parameter.register_post_accumulate_grad_hook(partial(self._arrived, layer, index))
        self.shard([weights for layer in self._layers for weights in layer.weights])
        by_module = {layer.module: layer for layer in self._layers}
        for module in dict.fromkeys((*by_module, model)):
            _surround(module, partial(self._enter, by_module.get(module)), partial(self._leave, by_module.get(module)))
        self._contexts: list[AbstractContextManager[object]] = []  # of the forward passes that are under way
        self._homes: dict[int, tuple[ShardedLayer, LayerWeights]] = {}  # by the address of the vector
        self._gathered = 0  # a checksum of which layers were, in their order, since the ranks last compared theirs
        self._over: list[ShardedLayer] = []  # layers whose gradients are all there
        self._reduced: set[ShardedLayer] = set()
        self._is_synced = True
        self._is_end_queued = False
        self._kept_since: int | None = None  # the next node's number at `unshard`
        self._num_steps = 0
        self._forget()
        self.unshard()

    def set_sync(self, is_synced: bool) -> None:
        self._is_synced = is_synced

    def on_forward(self) -> None:
        # A forward pass without gradients, as of an evaluation, may be one rank's alone if all is there. One within a
        # backward pass computes anew what that needs.
        if torch.is_grad_enabled() and backward_pass() < 0:
            self._forget(hold=self._kept_since is not None and _next_sequence_nr() > self._kept_since)

    def _forget(self, hold: bool = False) -> None:
        """Let go of what `unshard` or a pass that failed has left. hold: as of `LayerWeights.release`."""
        self._kept_since = None
        self._end_backward(hold)
        self._over.clear()
        self._reduced.clear()
        for layer in self._layers:
            layer.missing = set(layer.indices)

    def _end_backward(self, hold: bool = False) -> None:
        self._is_end_queued = False
        for layer in self._layers:
            self._release(layer, hold)

    def _enter(self, layer: ShardedLayer | None) -> None:
        # Where others save in their own way, as torch.utils.checkpoint does, they have the vectors themselves.
        is_ours = _outer_hooks(False) is None
        self._contexts.append(saved_tensors_hooks(self._save, lambda load: load()) if is_ours else nullcontext())
        self._contexts[-1].__enter__()
        if layer is not None:
            self._gather(layer)

    def _leave(self, layer: ShardedLayer | None) -> None:
        self._contexts.pop().__exit__(None, None, None)
        # What is computed anew in a backward pass is needed there right after.
        if layer is not None and backward_pass() < 0 and not (layer.stays and torch.is_grad_enabled()):
            self._release(layer)

    def _gather(self, layer: ShardedLayer) -> None:
        if layer.is_whole:
            return
        if backward_pass() >= 0:
            self._settle()
            if not self._is_end_queued:
                torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
                self._is_end_queued = True
        self._gathered = zlib.crc32(layer.number.to_bytes(4), self._gathered)
        for weights in layer.weights:
            weights.unshard()
            self._homes[weights.home.vector.data_ptr()] = layer, weights
        layer.is_whole = True

    def _release(self, layer: ShardedLayer, hold: bool = False) -> None:
        if layer.is_whole and self._kept_since is None:
            for weights in layer.weights:
                self._homes.pop(weights.home.vector.data_ptr(), None)
                weights.release(hold)
            layer.is_whole = False

    def _save(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Return what autograd saves in place of a tensor."""
        home = self._homes.get(tensor.untyped_storage().data_ptr()) if tensor.layout is torch.strided else None
        if home is None or tensor.dtype != home[1].share.dtype or tensor.is_conj():
            return partial(_unchanged, tensor, tensor._version)
        return partial(self._load, *home, self._num_steps, (tensor.size(), tensor.stride(), tensor.storage_offset()))

    def _load(self, layer: ShardedLayer, weights: LayerWeights, num_steps: int, place: tuple[Any, ...]) -> torch.Tensor:
        """Return a view of the gathered vector. num_steps: the steps of the optimizer that were taken before."""
        if num_steps != self._num_steps:
            raise ShardingError(
                "a backward pass belongs to a forward pass from before the last optimizer.step(), which has changed "
                "the parameters since: call backward() on every loss before optimizer.step()"
            )
        self._gather(layer)
        view = weights.home.vector.as_strided(*place)
        return view.clone() if torch.is_grad_enabled() else view  # the graph of gradients reads it later

    def _arrived(self, layer: ShardedLayer, index: int, _: torch.Tensor) -> None:
        """Note that the backward pass has made a gradient; a pass may have others within it, as checkpoints do."""
        self._reduced.discard(layer)
        layer.missing.discard(index)
        if not layer.missing:
            layer.missing = set(layer.indices)
            self._over.append(layer)

    def _settle(self) -> None:
        """Free the parameters of the layers whose backward pass is over, and reduce their gradients."""
        over, self._over = self._over, []
        for layer in over:
            if not layer.stays:
                self._release(layer)
            if self._is_synced:
                self._reduce(layer)

    def _reduce(self, layer: ShardedLayer) -> None:
        for weights in layer.weights:
            weights.reduce()()
        self._reduced.add(layer)

    def on_backward_end(self) -> None:
        for layer in self._layers:
            if layer not in self._reduced:
                self._reduce(layer)
        self._compare_gathered()
        self._forget()

    def _compare_gathered(self) -> None:
        """Shares of several layers of the same size would otherwise be put together, unnoticed."""
        own = torch.tensor([self._gathered], device=self.parameters[0].device)
        everywhere = own.new_empty(self.group.size())
        collectives.all_gather_into_tensor(everywhere, own, self.group)
        self._gathered = 0
        if not bool((everywhere == own).all()):
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
        """Leave the parameters: they are gathered when a forward pass needs them."""

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

    def sync_parameters(self) -> None:
        self.unshard()

    def compile(self, compile_module: Callable[[nn.Module], Callable[..., object]]) -> None:  # noqa: ARG002
        """Raise ValueError: parameters come and go within a pass, which a compiled one does not expect."""
        raise ValueError("zero3: its passes cannot be compiled; use zero1 or zero2")


def _unchanged(tensor: torch.Tensor, version: int) -> torch.Tensor:
    """Return a saved tensor. Raises RuntimeError if it has changed, for which autograd does not look here."""
    if tensor._version != version:
        raise RuntimeError("a tensor that the backward pass needs has been modified by an in-place operation")
    return tensor


def _surround(module: nn.Module, enter: Callable[[], None], leave: Callable[[], None]) -> None:
    """Call `enter` before, and `leave` after, a forward pass of the module and the hooks of others."""

    def after(called: nn.Module, *_: object) -> None:
        if called is module:
            leave()

    def before(called: nn.Module, _: object) -> None:
        nonlocal behind
        if called is module:  # and no copy of it
            behind.remove()  # to be called after hooks of others that have come meanwhile
            behind = module.register_forward_hook(after, always_call=True)
            enter()

    behind = module.register_forward_hook(after, always_call=True)
    module.register_forward_pre_hook(before, prepend=True)
