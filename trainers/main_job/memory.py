"""`measure_memory`: the bytes of the tensors that a rank really holds for one strategy."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor

from trainers.loop.train_step import TrainStep
from trainers.predictions.memory import Memory
from trainers.strategies.base import Strategy
from trainers.strategies.ddp import Ddp


def measure_memory(train_step: TrainStep) -> Memory:
    """After a step, with its gradients still there; collective, as a forward pass may be.

    Each storage is counted once and whole. The buckets of DDP, which nothing outside of it can reach, are as DDP says.
    """
    strategy, optimizer = train_step.model.strategy, train_step.optimizer
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    seen: set[int] = set()
    return Memory(
        parameters=_new_bytes([*strategy.parameters, *stepped], seen),
        gradients=_new_bytes([p.grad for p in (*strategy.parameters, *stepped) if p.grad is not None], seen),
        optimizer=_new_bytes([tensor for tensor in states if tensor.dim()], seen),
        vectors=_new_bytes(strategy.vectors(), seen) + _bucket_bytes(strategy),
        activations=activation_bytes(train_step),
    )


def activation_bytes(train_step: TrainStep) -> int:
    """What autograd saves in the forward pass of this rank's share of a batch, without parameters; collective."""
    share, *_ = train_step.batches.share(0).split(train_step.config.accumulate)
    seen: set[int] = set()
    saved: list[torch.Tensor] = []  # kept, so that no storage comes to lie where another was

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.random.fork_rng(), train_step.model.no_sync(), saved_tensors_hooks(pack, lambda tensor: tensor):
        train_step.loss(share)
    _new_bytes(train_step.model.model.parameters(), seen)  # afterwards, as a sharded strategy has them there only now
    return _new_bytes(saved, seen)


def states_per_element(train_step: TrainStep) -> int:
    """How many numbers the optimizer keeps for each element of a parameter, found out by a step without numbers."""
    like = nn.Parameter(torch.empty(2, device="meta"))
    like.grad = torch.empty_like(like)
    optimizer = train_step.task.optimizer([like])
    optimizer.step()
    values = [value for value in optimizer.state[like].values() if torch.is_tensor(value)]
    return sum(value.shape == like.shape for value in values)


def _new_bytes(tensors: Iterable[torch.Tensor], seen: set[int]) -> int:
    """Of the storages that are not yet seen; now they are."""
    own = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    storages = {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in own)}
    size_bytes = sum(nbytes for pointer, nbytes in storages.items() if pointer not in seen)
    seen.update(storages)
    return size_bytes


def _bucket_bytes(strategy: Strategy) -> int:
    if not isinstance(strategy, Ddp):
        return 0
    data = strategy.module._get_ddp_logging_data()
    sizes = str(data.get("rebuilt_bucket_sizes") or data["bucket_sizes"])
    return sum(int(size) for size in sizes.split(","))
