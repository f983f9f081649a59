"""ZeRO stage 3: as stage 2, and each rank keeps its share of the parameters only; fully sharded data parallelism."""

import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import collectives
from trainers.strategies.flat_vector import by_dtype, layers_of
from trainers.strategies.sharded import ShardedGradients, moved_gradients
from trainers.strategies.sharded_layer import LayerWeights, ShardedLayer, backward_pass
from trainers.strategies.sharding_guard import ForeignOptimizers, ShardingError


class Zero3(ShardedGradients):
    """All-gather a layer's parameters before its forward pass and again before its backward pass; free them after each.

    When all gradients of a layer are there, and another layer begins, they are reduce-scattered. So an all-gather is
    added to the bytes of an all-reduce, and a rank holds whole parameters of one layer at a time, beside those that
    belong to no layer (see `layers_of`). Nothing is gathered ahead, to keep the code short; torch's fully_shard does
    that.

    Between passes the model's parameters are empty: `unshard` brings them back. Ranks must use the same layers,
    which they compare at the end of a backward pass.

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 5.3.
    """

    name = "zero3"

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        parts = layers_of(model)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._layers = []
        for number, part in enumerate(parts):
            by_kind = by_dtype([self.parameters[index] for index in part.indices])
            weights = [LayerWeights(some, group, self.name, [names[id(p)] for p in some]) for some in by_kind]
            stays, on_gather = part.module is model, partial(self._note, number)
            self._layers.append(ShardedLayer(part.module, weights, stays, on_gather, self._settle))
        self._gathered = 0  # a checksum of which layers were, in their order, since the ranks last compared theirs
        self._layer_of = {index: number for number, (_, indices) in enumerate(parts) for index in indices}
        self.weights = [weights for layer in self._layers for weights in layer.weights]
        self._guard = ForeignOptimizers(self.parameters, self.name)
        self._due: list[int] = []  # layers whose gradients are all there, and are to be reduced
        self._reduced: set[int] = set()
        self.unshard()

    def on_forward(self) -> None:
        # A forward pass without gradients, as of an evaluation, may be one rank's alone if all is there. One within a
        # backward pass computes anew what that needs.
        if torch.is_grad_enabled() and backward_pass() < 0:
            self._forget()

    def _forget(self) -> None:
        self._due.clear()
        self._reduced.clear()
        for layer in self._layers:
            layer.begin()

    def on_grad(self, index: int) -> None:
        number = self._layer_of[index]
        self._reduced.discard(number)  # if it was: one pass may have others within it, as reentrant checkpoints do
        if self._layers[number].is_over:
            self._due.append(number)

    def _settle(self) -> None:
        """Free the parameters of the layers whose backward pass is over, and reduce their gradients."""
        for layer in self._layers:
            if layer.is_over:
                layer.release()
        while self._due:
            self._reduce(self._due.pop(0))

    def _reduce(self, number: int) -> None:
        """Reduce-scatter a layer's gradients, and free them."""
        self.refuse_stepped()
        for weights in self._layers[number].weights:
            vector, part = moved_gradients(weights, self.group.size()), torch.empty_like(weights.share_gradient)
            collectives.reduce_scatter_tensor(part, vector, dist.ReduceOp.AVG, self.group)
            weights.add_gradient(part)
        self._reduced.add(number)

    def _note(self, number: int) -> None:
        self._gathered = zlib.crc32(number.to_bytes(4), self._gathered)

    def on_backward_end(self) -> None:
        for number in range(len(self._layers)):
            if number not in self._reduced:
                self._reduce(number)
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
        for layer in self._layers:
            layer.step()
        super().before_stepping()

    def after_stepping(self) -> None:
        """Leave the parameters: they are gathered when a forward pass needs them."""

    def unshard(self) -> None:
        for layer in self._layers:
            layer.keep()

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
