"""`LayerWeights`: parameters that are gathered while they are needed, and are of class `AbsentParameter` otherwise."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainers.strategies.flat_vector import FlatVector
from trainers.strategies.sharded_optimizer import ShardedWeights
from trainers.strategies.sharding_guard import ShardingError, moved_error, require_at_home

# What may be asked of an absent parameter: what it is, and what moves modules; not what it holds.
_ALLOWED = {
    torch.Tensor.__hash__,
    torch.Tensor.__repr__,
    torch.Tensor.size,
    torch.Tensor.numel,
    torch.Tensor.dim,
    torch.Tensor.is_complex,
    torch.Tensor.is_floating_point,
    torch.Tensor.data_ptr,
    torch.Tensor.untyped_storage,
    torch.Tensor.get_device,
    torch.Tensor.register_hook,
    torch.Tensor.register_post_accumulate_grad_hook,
    torch.Tensor.to,
    torch.Tensor.cpu,
    torch.Tensor.cuda,
    torch.Tensor.half,
    torch.Tensor.bfloat16,
    torch.Tensor.float,
    torch.Tensor.double,
    torch.Tensor.requires_grad_,
    torch._has_compatible_shallow_copy_type,
}
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
        if func in _ALLOWED or (is_property and not is_read):
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
        super().__init__(parameters, group)
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
        """Leave the memory that was held to the graph: what it reads may be of before the optimizer's step."""
        for parameter in self.parameters:
            parameter.data = torch.empty(0, dtype=self.share.dtype, device=self.share.device)
        self._free(False)

    def _free(self, is_ours: bool) -> None:
        if not is_ours:  # as somebody has made a NumPy array of a parameter, or a graph reads it
            self._flat = FlatVector(self.home.views, multiple_of=self.group.size())
        self.home.vector.untyped_storage().resize_(0)

    def after_step(self) -> None:
        """The parameters are gathered when a forward pass needs them."""


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Those in what a forward pass returns, or a function is given."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
