"""`ShardedLayer`: a module whose parameters are there only while its forward or backward pass needs them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import Node

from trainers.strategies.flat_vector import FlatVector
from trainers.strategies.sharded import ShardedWeights
from trainers.strategies.sharding_guard import ShardingError, moved_error, require_at_home
from trainers.strategies.share_gradient import MOVING

# What may be asked of an absent parameter: what it is, and what moves modules; not what it holds.
_ALLOWED = {
    *MOVING, "__hash__", "__repr__", "size", "numel", "dim", "data_ptr", "untyped_storage", "get_device",
    "register_hook", "register_post_accumulate_grad_hook", "requires_grad_",
}  # fmt: skip
_VALUES = ("data", "T", "mT", "H", "mH", "real", "imag")  # properties that are made of the values


class AbsentParameter(nn.Parameter):
    """A parameter whose values are not there: whoever reads or changes them gets a ShardingError.

    A parameter is of this class for a time, as torch's UninitializedParameter is. message: of the error.
    """

    message: str

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        is_property = type(func).__name__ == "method-wrapper"
        is_read = is_property and func.__name__ == "__get__" and func.__self__.__name__ in _VALUES
        if func.__name__ in _ALLOWED or (is_property and not is_read):
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        raise ShardingError(next(t.message for t in tensors_in([args, kwargs]) if isinstance(t, AbsentParameter)))


class LayerWeights(ShardedWeights):
    """Parameters of one dtype. A rank keeps its share; the vector and the parameters are empty until `unshard`.

    The vector's memory is given back and asked for anew, since autograd may hold views of it (a transposed weight) from
    the forward pass to the backward pass, which must see what is gathered then.

    strategy, names: of the strategy and of each parameter, for messages.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup, strategy: str, names: Sequence[str]
    ) -> None:
        super().__init__(parameters, group, is_kept=False)
        self._strategy = strategy
        self._messages = [
            f"{name} is empty: with {strategy} a parameter is there only while its layer is called; within a forward "
            f"pass call the layer rather than use its parameter elsewhere, and between passes call model.unshard() on "
            f"every rank before a parameter is read, changed or copied"
            for name in names
        ]
        self.share = nn.Parameter(self.share.detach().clone())
        self._size_bytes = self.home.vector.nbytes

    @torch.no_grad()
    def unshard(self) -> None:
        """Gather all shares into the vector; collective."""
        if any((p.dtype, p.device) != (self.share.dtype, self.share.device) for p in self.parameters):
            raise moved_error(self._strategy)
        self.home.vector.untyped_storage().resize_(self._size_bytes)
        self.gather()
        for parameter, view in zip(self.parameters, self.home.views, strict=True):
            if type(parameter) is AbsentParameter:
                parameter.__class__ = nn.Parameter  # type: ignore[assignment]
                del parameter.message
            parameter.data = view

    @torch.no_grad()
    def reshard(self, hold: bool) -> None:
        """Keep the share alone, as the parameters hold it now. Raises ShardingError if they lie elsewhere.

        hold: keep their memory, too, which a graph may read.
        """
        require_at_home(self.parameters, self.home, self._strategy)
        self.share.copy_(self.own_part(self.home.vector))
        for parameter, message in zip(self.parameters, self._messages, strict=True):
            if not hold:
                parameter.data = parameter.new_empty(0)
            if type(parameter) is nn.Parameter:
                parameter.__class__ = AbsentParameter
                parameter.message = message  # type: ignore[attr-defined]
        if not hold:
            self._free(self.home.vector.untyped_storage().resizable())

    @torch.no_grad()
    def abandon(self) -> None:
        """Stop using the gathered memory, which an autograd graph may still read, with values of before the step."""
        for parameter in self.parameters:
            parameter.data = torch.empty(0, dtype=self.share.dtype, device=self.share.device)
        self._free(False)

    def _free(self, is_ours: bool) -> None:
        if not is_ours:  # as somebody has made a NumPy array of a parameter, or a graph reads it
            self.home = FlatVector(self.home.views, multiple_of=self.group.size())
        self.home.vector.untyped_storage().resize_(0)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in what a forward pass returns, or a function is given."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)


_next_sequence_nr = torch._C._autograd._get_sequence_nr  # of the graph's nodes that this thread makes
backward_pass = torch._C._current_graph_task_id  # the number of the one that is under way, or -1


class ShardedLayer:
    """`module`, which gathers the parameters of `weights` before its passes and releases them afterwards.

    Every node of autograd's graph that a forward pass makes may read the parameters, which are gathered before the
    first of them runs. Nodes to which the outputs do not lead (hidden in an object, left in an attribute) cannot be
    watched: where there are any, the memory is held until the optimizer's step. The messages do not depend on this,
    since another rank may have no such nodes.

    stays: keep them from a forward pass to the end of its backward pass, as those of the whole model.
    is_whole: whether the parameters are there.
    is_over: whether the backward pass has given a gradient to all of them. Others of its nodes may yet read them.
    on_gather: called before the parameters are gathered. on_backward: called before the layer's backward pass.
    """

    def __init__(
        self,
        module: nn.Module,
        weights: Sequence[LayerWeights],
        stays: bool,
        on_gather: Callable[[], object],
        on_backward: Callable[[], object],
    ) -> None:
        self.weights = weights
        self.is_whole = True
        self.is_over = False
        self._stays = stays
        self._on_gather = on_gather
        self._on_backward = on_backward
        self._in_backward = False
        self._kept_since: int | None = None  # the next node's number when `keep` was called
        self._is_hidden = False  # what may need them in a backward pass
        self._num_steps = 0
        self._first = 0  # node of the forward pass
        parameters = [parameter for some in weights for parameter in some.parameters]
        self._ids = frozenset(map(id, parameters))
        self._missing = set(self._ids)
        # Before and behind those of others that read parameters, as torch's weight_norm does.
        module.register_forward_pre_hook(self._before_forward, prepend=True)
        self._behind = module.register_forward_hook(self._after_forward)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def __reduce__(self) -> tuple[Any, ...]:
        """Make a copy of the model a plain one: it is made while all parameters are gathered."""
        return ShardedLayer, (nn.Module(), (), False, int, int)

    def keep(self) -> None:
        """Gather the parameters, and keep them until `begin`; collective."""
        self._unshard()
        if self._kept_since is None:
            self._kept_since = _next_sequence_nr()

    def begin(self) -> None:
        """Let go of what `keep` or a pass that failed has left."""
        if self._kept_since is not None:
            self._is_hidden |= _next_sequence_nr() > self._kept_since  # in a graph that was made meanwhile
            self._kept_since = None
        self._end()

    def step(self) -> None:
        """Note a step of the optimizer, after which no graph may be used that was made before."""
        self._num_steps += 1
        if self._is_hidden:
            for weights in self.weights:
                weights.abandon()
        self._is_hidden = False

    def release(self) -> None:
        """End the layer: another one begins."""
        if not self._stays:
            self._end()

    def _end(self) -> None:
        """End the backward pass of the layer."""
        self._in_backward = self.is_over = False
        self._reshard()

    def _unshard(self) -> None:
        if not self.is_whole:
            self._on_gather()
            for weights in self.weights:
                weights.unshard()
            self.is_whole = True

    def _reshard(self) -> None:
        if self.is_whole and self._kept_since is None:
            for weights in self.weights:
                weights.reshard(hold=self._is_hidden)
            self.is_whole = False

    def _before_forward(self, module: nn.Module, _: object) -> None:
        if not self.weights:
            return
        self._behind.remove()  # to be called after hooks of others that have come meanwhile
        self._behind = module.register_forward_hook(self._after_forward)
        self._unshard()
        self._first = _next_sequence_nr()

    def _after_forward(self, _: nn.Module, __: object, output: object) -> None:
        if not self.weights or (self._in_backward and backward_pass() >= 0):
            # What is computed anew in a backward pass, as by torch.utils.checkpoint, is needed there right after.
            return
        numbers = range(self._first, _next_sequence_nr())
        nodes = _nodes(output, numbers)
        for node in nodes:
            node.register_prehook(partial(self._before_backward, self._num_steps))
        self._is_hidden |= len(nodes) < len(numbers)
        if not (self._stays and nodes):
            self._reshard()

    def _before_backward(self, num_steps: int, _: object) -> None:
        if num_steps < self._num_steps:
            raise ShardingError(
                "a backward pass belongs to a forward pass from before the last optimizer.step(), which has changed "
                "the parameters since: call backward() on every loss before optimizer.step()"
            )
        if not (self._in_backward and self.is_whole):
            self._in_backward, self.is_over = True, False
            self._missing = set(self._ids)
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
            self._on_backward()
            self._unshard()
        self._is_hidden |= torch.is_grad_enabled()  # in the graph of the gradients (create_graph=True)

    def _arrived(self, parameter: torch.Tensor) -> None:
        self._missing.discard(id(parameter))
        self.is_over = self._in_backward and not self._missing


def _nodes(output: Any, numbers: range) -> set[Node]:
    """Return the nodes of the graph to which an output leads, and which have one of these sequence numbers."""
    nodes: set[Node] = set()
    waiting = [tensor.grad_fn for tensor in tensors_in(output)]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes and node._sequence_nr() in numbers:
            nodes.add(node)
            waiting += [source for source, _ in node.next_functions]
    return nodes
