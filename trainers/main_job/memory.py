"""`measure_memory`: the bytes of the tensors that a rank really holds for one strategy."""

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from trainers.loop.memory import held_bytes, new_bytes
from trainers.loop.train_step import TrainStep
from trainers.predictions.memory import Memory


def measure_memory(train_step: TrainStep) -> Memory:
    """After a step, with its gradients still there; collective, as a forward pass may be."""
    return Memory(**held_bytes(train_step), activations=activation_bytes(train_step))


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
    new_bytes(train_step.model.model.parameters(), seen)  # afterwards, as a sharded strategy has them there only now
    return new_bytes(saved, seen)


def states_per_element(train_step: TrainStep) -> int:
    """How many numbers the optimizer keeps for each element of a parameter, found out by a step without numbers."""
    like = nn.Parameter(torch.empty(2, device="meta"))
    like.grad = torch.empty_like(like)
    optimizer = train_step.task.optimizer([like])
    optimizer.step()
    values = [value for value in optimizer.state[like].values() if torch.is_tensor(value)]
    return sum(value.shape == like.shape for value in values)
