"""`ShardedLayer`: a module whose parameters are there only while its forward or backward pass needs them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainers.strategies.flat_vector import FlatVector
from trainers.strategies.sharded_optimizer import ShardedWeights
from trainers.strategies.sharding_guard import moved_error, refuse_copy, require_at_home


class LayerWeights(ShardedWeights):
    """Parameters of one dtype. A rank keeps its share; the vector and the parameters are empty until `unshard`.

    The vector's memory is given back and asked for anew, since autograd may hold views of it (a transposed weight) from
    the forward pass to the backward pass, which must see what is gathered then. name: of the strategy.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup, name: str) -> None:
        super().__init__(parameters, group)
        self._name = name
        self.share = nn.Parameter(self.share.detach().clone())
        self._size_bytes = self.home.vector.nbytes

    @torch.no_grad()
    def unshard(self) -> None:
        """Gather all shares into the vector; collective."""
        if any((p.dtype, p.device) != (self.share.dtype, self.share.device) for p in self.parameters):
            raise moved_error(self._name)
        self.home.vector.untyped_storage().resize_(self._size_bytes)
        self.gather()
        for parameter, view in zip(self.parameters, self.home.views, strict=True):
            parameter.data = view

    @torch.no_grad()
    def reshard(self) -> None:
        """Keep the share alone."""
        for parameter in self.parameters:
            parameter.data = parameter.new_empty(0)
        if not self.home.vector.untyped_storage().resizable():  # somebody has made a NumPy array of a parameter
            self._flat = FlatVector(self.home.views, multiple_of=self.group.size())
        self.home.vector.untyped_storage().resize_(0)

    @torch.no_grad()
    def take_share(self) -> None:
        """The share becomes what the parameters hold now. Raises ShardingError if they lie elsewhere."""
        require_at_home(self.parameters, self.home, self._name)
        self.share.copy_(self.own_part(self.home.vector))

    def after_step(self) -> None:
        """The parameters are gathered when a forward pass needs them."""


class ShardedLayer:
    """`module`, which gathers the parameters of `weights` before its passes and lets go of them afterwards.

    stays: keep them from a forward pass to its backward pass, as those of the whole model, whose backward pass is next.
    is_whole: whether the parameters are there.
    has_gradients: whether the backward pass has given one to all of them.
    on_gather: called before the parameters are gathered.
    """

    def __init__(
        self, module: nn.Module, weights: Sequence[LayerWeights], stays: bool, on_gather: Callable[[], object]
    ) -> None:
        self.weights = weights
        parameters = [parameter for some in weights for parameter in some.parameters]
        self.is_whole = True
        self.has_gradients = False
        self._stays = stays
        self._on_gather = on_gather
        self._in_backward = False
        self._keeps = False  # the parameters, whatever passes there are
        self._num_parameters = len(parameters)
        self._num_missing = 0
        module.register_forward_pre_hook(self._before_forward)
        module.register_forward_hook(self._after_forward)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def keep(self) -> None:
        """Gather the parameters, and keep them until `begin`; collective."""
        self._unshard()
        self._keeps = True

    __deepcopy__ = refuse_copy  # a copy of the module would have the hooks of this one

    def begin(self) -> None:
        """No backward pass is under way: let go of the parameters, and keep what was written to them meanwhile."""
        self._in_backward = self.has_gradients = False
        if self._keeps:
            self._keeps = False
            for weights in self.weights:
                weights.take_share()
        self._reshard()

    def _unshard(self) -> None:
        if not self.is_whole:
            self._on_gather()
            for weights in self.weights:
                weights.unshard()
            self.is_whole = True

    def _reshard(self) -> None:
        if self.is_whole and not self._keeps:
            for weights in self.weights:
                weights.reshard()
            self.is_whole = False

    def _before_forward(self, *_: object) -> None:
        self._unshard()

    def _after_forward(self, _: nn.Module, __: object, output: object) -> None:
        tensors = list(_tensors(output))
        results = [tensor for tensor in tensors if tensor.requires_grad]
        for tensor in results:
            tensor.register_hook(self._before_backward)
        # Where the output shows no tensor nothing would tell that the backward pass begins.
        stays = (self._stays and results) or (torch.is_grad_enabled() and not tensors)
        # What is computed anew in a backward pass, as by torch.utils.checkpoint, is needed there right after.
        if not (self._in_backward or stays):
            self._reshard()

    def _before_backward(self, _: torch.Tensor) -> None:
        if not self._in_backward:
            self._in_backward, self.has_gradients = True, False
            self._num_missing = self._num_parameters
        self._unshard()

    def _arrived(self, _: torch.Tensor) -> None:
        self._num_missing -= 1
        if self._num_missing == 0:
            self._in_backward, self.has_gradients = False, True
            self._reshard()


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """Those in what a forward pass returns."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        yield from _tensors(list(output.values()))
    elif isinstance(output, list | tuple):
        for part in output:
            yield from _tensors(part)
