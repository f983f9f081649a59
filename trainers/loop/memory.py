"""`held_bytes`: the bytes of the tensors that a rank really holds after a step."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from trainers.loop.train_step import TrainStep
from trainers.strategies.base import Strategy
from trainers.strategies.ddp import Ddp
from trainers.strategies.share_gradient import own_gradient


def held_bytes(train_step: TrainStep) -> dict[str, int]:
    """After a step of this rank, with its gradients still there: the bytes of each kind.

    parameters, gradients and optimizer: those of the strategy and the optimizer. vectors: what the strategy keeps
    besides these. Each storage is counted once and whole, for the first kind that it fits. The buckets of DDP, which
    nothing outside of it can reach, are as DDP says. Activations, which a step does not leave, are not among them.
    """
    strategy, optimizer = train_step.model.strategy, train_step.optimizer
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = map(own_gradient, (*strategy.parameters, *stepped))
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    seen: set[int] = set()
    return {
        "parameters": new_bytes([*strategy.parameters, *stepped], seen),
        "gradients": new_bytes([gradient for gradient in gradients if gradient is not None], seen),
        "optimizer": new_bytes([tensor for tensor in states if tensor.dim()], seen),
        "vectors": new_bytes(kept_tensors(strategy, set()), seen) + _bucket_bytes(strategy),
    }


def new_bytes(tensors: Iterable[torch.Tensor], seen: set[int]) -> int:
    """Return the bytes of the storages that are not yet seen; now they are."""
    own = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    storages = {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in own)}
    size_bytes = sum(nbytes for pointer, nbytes in storages.items() if pointer not in seen)
    seen.update(storages)
    return size_bytes


def kept_tensors(value: Any, visited: set[int]) -> Iterator[torch.Tensor]:
    """Yield the tensors in the attributes, lists and dicts of an object, however deep; not of modules and optimizers.

    visited: the ids of what has been looked at, so that each object is looked at once.
    """
    if id(value) in visited:
        return
    visited.add(id(value))
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, list | tuple | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from kept_tensors(inner, visited)
    elif hasattr(value, "__dict__") and not callable(value) and not isinstance(value, torch.optim.Optimizer):
        yield from kept_tensors(vars(value), visited)


def _bucket_bytes(strategy: Strategy) -> int:
    if not isinstance(strategy, Ddp):
        return 0
    data = strategy.module._get_ddp_logging_data()
    sizes = str(data.get("rebuilt_bucket_sizes") or data["bucket_sizes"])
    return sum(int(size) for size in sizes.split(","))
