"""ZeRO stages 1 and 2: each rank steps a share of the parameters; stage 2 also shards the gradients."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import collectives
from trainers.strategies import sharded
from trainers.strategies.base import MakeOptimizer, ShardingError
from trainers.strategies.bucketed import InBuckets
from trainers.strategies.flat_vector import FlatVector, by_dtype
from trainers.strategies.sharded import Sharded, ShareGradient, Withheld

GRADIENT_SET_TO_NONE = (
    "the gradients of some parameters were set to None, but ranks have shares of all gradients together: call "
    "optimizer.zero_grad(), and do without a gradient by requires_grad_(False) before DataParallel(model, ...)"
)


class ShardedWeights:
    """Parameters of one dtype in one vector (`home`), of which each rank owns an equal share.

    share_gradient: the share's mean gradient. gradients: the vector of unreduced gradients, if `keeps_gradients`.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: dist.ProcessGroup,
        lends: bool = True,
        keeps_gradients: bool = False,
    ) -> None:
        self.parameters = list(parameters)
        self.group = group
        self.home = self.vector(lends)
        self.num_elements = self.home.num_elements
        self.gradients = self.vector(lends) if keeps_gradients else None
        for parameter, view in zip(parameters, self.home.views, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        self.share = nn.Parameter(self.own_share(self.home.vector))
        self.share_gradient = torch.zeros_like(self.share, requires_grad=False)
        self._part = self.share_gradient  # where the mean gradient of the last backward pass arrives
        self._shown_gradient = ShareGradient.of(self.share_gradient, group)

    def vector(self, lends: bool = False) -> FlatVector:
        """Return a new vector for all parameters. lends: ranks may share its memory."""
        shapes = [parameter.shape for parameter in self.parameters]
        group = self.group if lends else None
        return FlatVector(shapes, self.parameters[0], multiple_of=self.group.size(), group=group)

    def own_share(self, vector: torch.Tensor) -> torch.Tensor:
        return vector.view(self.group.size(), -1)[self.group.rank()]

    @property
    def are_home(self) -> bool:
        pairs = zip(self.parameters, self.home.views, strict=True)
        return all(p.data_ptr() == view.data_ptr() and p.dtype == view.dtype for p, view in pairs)

    @torch.no_grad()
    def reduce(self, async_op: bool = False) -> dist.Work | None:
        """Reduce-scatter the gradients, with zeros for missing ones, and withhold them; `finish` follows."""
        flat = self.gradients or self.vector()
        for parameter, view in zip(self.parameters, flat.views, strict=True):
            gradient = sharded.own_gradient(parameter)
            view.zero_() if gradient is None else view.copy_(gradient)
            parameter.grad = sharded.without_values(parameter, parameter.shape).as_subclass(Withheld)
        self._part = self.share_gradient if self.share.grad is None else torch.empty_like(self.share_gradient)
        return collectives.reduce_scatter_tensor(self._part, flat.vector, dist.ReduceOp.AVG, self.group, async_op)

    def finish(self) -> None:
        """Add the arrived mean to the means of earlier backward passes since `zero_grad`."""
        if self._part is not self.share_gradient:
            self.share_gradient.add_(self._part)
        self._part = self.share_gradient
        self.share.grad = self._shown_gradient

    def before_accumulating(self, parameter: nn.Parameter, _: torch.Tensor) -> None:
        """Prepare the accumulation of a gradient; forget the share's if all gradients are None."""
        if parameter.grad is None and self.share.grad is not None:
            if any(other.grad is not None for other in self.parameters):
                raise ShardingError(GRADIENT_SET_TO_NONE)
            self.share.grad = None
        sharded.clear_withheld(parameter)

    def gather(self) -> None:
        collectives.all_gather_into_tensor(self.home.vector, self.share.detach(), self.group)

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """All-gather the parts, (share,) each, and return them without padding: (num_elements,)."""
        _require_shape(part, self.share.shape)
        gathered = part.new_empty(self.group.size() * len(part))
        collectives.all_gather_into_tensor(gathered, part.contiguous(), self.group)
        return gathered[: self.num_elements].clone()

    def share_of_result(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's share of a result of `whole`, perhaps from another number of ranks."""
        _require_shape(whole, torch.Size([self.num_elements]))
        padded = whole.new_zeros(self.group.size() * len(self.share))
        padded[: self.num_elements] = whole
        return self.own_share(padded).clone()


def _require_shape(tensor: torch.Tensor, shape: torch.Size) -> None:
    """Raise ValueError for another shape: such a tensor belongs to one rank alone."""
    if tensor.shape != shape:
        raise ValueError(f"has shape {tuple(tensor.shape)}: only state with the shape of the parameter can be sharded")


class Zero1(Sharded):
    """Reduce-scatter the gradients, step the own share, all-gather the parameters: the bytes of an all-reduce.

    The optimizer sees this rank's share, of a vector per dtype, as a single parameter. It must work element by element,
    with the same options for all parameters. A missing gradient counts as zeros.

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 5.1.
    """

    name = "zero1"
    weights: Sequence[ShardedWeights]

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        self.weights = self.cut()
        self.refuse_others(self.parameters)
        for weights in self.weights:
            for parameter in weights.parameters:
                parameter.register_hook(partial(weights.before_accumulating, parameter))

    def cut(self) -> Sequence[ShardedWeights]:
        return [ShardedWeights(some, self.group, keeps_gradients=True) for some in by_dtype(self.parameters)]

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        shares = [weights.share for weights in self.weights]
        sharded.check_shardable(make, self.parameters, shares, self.name)
        of_share = {id(weights.share): weights for weights in self.weights}
        optimizer: Any = self.watch_sharded(
            make(shares),
            lambda share, part: of_share[id(share)].whole(part),
            lambda share, whole: of_share[id(share)].share_of_result(whole),
        )
        self._made = optimizer, shares
        optimizer.zero_grad = self.zero_grad
        return optimizer  # type: ignore[no-any-return]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for weights in self.weights:
            weights.share.grad = None
        for parameter in self.parameters:
            sharded.clear_withheld(parameter)
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def synchronise(self) -> None:
        for weights in self.weights:
            weights.reduce()
            weights.finish()

    def share_gradients(self) -> list[torch.Tensor]:
        return [weights.share_gradient for weights in self.weights]

    def held_gradients(self) -> list[torch.Tensor]:
        return [weights.gradients.vector for weights in self.weights if weights.gradients]

    def before_stepping(self) -> None:
        if not all(weights.are_home for weights in self.weights):
            raise ShardingError(sharded.MOVED)

    def check_gradients(self) -> None:
        sharded.require_exactly(*self._made, self.name, ShardingError)  # a group may have been added since
        for weights in self.weights:
            if any(sharded.own_gradient(parameter) is not None for parameter in weights.parameters):
                raise ShardingError(
                    "there are gradients that have not been synchronised: run the last backward pass before a step "
                    "outside no_sync(), or call model.sync_gradients()"
                )
            if weights.share.grad is not None and any(parameter.grad is None for parameter in weights.parameters):
                raise ShardingError(GRADIENT_SET_TO_NONE)

    def after_stepping(self) -> None:
        for weights in self.weights:
            weights.gather()
        torch.autograd.graph.increment_version(self.parameters)  # for backward passes from before the step


class Zero2(InBuckets, Zero1):
    """`Zero1` with a reduce-scatter per bucket during the backward pass, which frees the bucket's gradients at once.

    The optimizer's state has one vector per bucket. Source: as `Zero1`, 5.2.
    """

    name = "zero2"
    max_under_way = 2  # each has a vector until it has arrived

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, bucket_cap_mb: float | None = None) -> None:
        self._bucket_cap_mb = bucket_cap_mb
        super().__init__(model, group)

    def cut(self) -> Sequence[ShardedWeights]:
        return [ShardedWeights(bucket, self.group) for bucket in self.fill(self._bucket_cap_mb)]

    def send(self, number: int, async_op: bool) -> dist.Work | None:
        return self.weights[number].reduce(async_op)

    def finish(self, number: int) -> None:
        self.weights[number].finish()
