"""What FSDP2 makes of parameters: DTensors, and the whole tensors that take their places; states of whole tensors."""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from trainers.strategies.sharding_guard import ShardingError, moved_error


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
                f"{self._strategy} does not call hooks of parameters (register_hook): "
                f"take register_post_accumulate_grad_hook, or the strategy zero3"
            )

    def gathered(self) -> None:
        """The whole tensor is there, for everybody to look at and to write to."""
        self._versions = self._counted()

    def _counted(self) -> tuple[int, int]:
        """How often autograd has seen something written to the whole tensor, and to this rank's rows."""
        return self.whole._version, self.sharded._version

    @torch.no_grad()
    def keep_written(self) -> None:
        """Before the whole tensor goes, take over what has been written to it since it was gathered."""
        if not self.whole.untyped_storage().resizable():
            raise ShardingError(
                f"{self._strategy}: somebody has made a NumPy array of a parameter, whose memory cannot be given back "
                f"now; make it of parameter.detach().clone()"
            )
        (before, rows_before), (now, rows_now) = self._versions, self._counted()
        is_gone = self.whole.untyped_storage().size() < self.whole.nbytes
        if now == before and (is_gone or rows_now != rows_before):
            return
        if is_gone:
            raise ShardingError(
                f"{self._strategy}: what was written to parameters after unshard() is lost, as a backward pass has "
                f"ended since: write after it, and before the next forward pass"
            )
        # Also where nothing was counted, as of p.data.mul_(...).
        local(self.sharded).copy_(local(rows_like(self.whole, self.sharded)))


def _storages(*tensors: torch.Tensor) -> list[int]:
    """Which memory they have, also while there is nothing in it. A DTensor gets another one by an assignment."""
    return [tensor.untyped_storage()._cdata for tensor in tensors]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The rows that this rank has, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(value: Any) -> Any:
    """A copy of all ranks' rows; what is no DTensor as it is. Collective."""
    return value.full_tensor().detach().clone() if isinstance(value, DTensor) else value


def rows_like(value: Any, parameter: torch.Tensor | None) -> Any:
    """The rows that this rank has of the parameter, of a tensor that has its shape; else the value as it is."""
    if not isinstance(parameter, DTensor) or not torch.is_tensor(value) or value.shape != parameter.shape:
        return value
    # All ranks have read the same, so nothing need be sent.
    return distribute_tensor(value.detach(), parameter.device_mesh, parameter.placements, src_data_rank=None)


def whole_state(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """The optimizer's state with whole tensors, the same on every rank; collective."""
    states = state_dict["state"].items()
    return {**state_dict, "state": {index: {k: whole(v) for k, v in state.items()} for index, state in states}}


def sharded_state(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """What `whole_state` gave, with this rank's rows of what has the shape of a parameter."""
    stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = state_dict["state"].items()
    return {
        **state_dict,
        "state": {index: {k: rows_like(v, stepped[index]) for k, v in state.items()} for index, state in states},
    }
