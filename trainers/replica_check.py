"""`first_mismatch`: find out whether all ranks hold the same model, and if not, what differs and by how much."""

import hashlib
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import collectives
from collectives.runtime import gather_objects, home_of, naming_failures

COMPARING = "comparing the ranks' models failed"


class TensorFingerprint(NamedTuple):
    """One tensor of a model. kind: its shape and dtype."""

    name: str
    kind: str
    digest: str


def fingerprints(model: nn.Module, buffers: bool = True, values: bool = True) -> list[TensorFingerprint]:
    """Return the fingerprints of all parameters, then of all buffers, in the order of the model.

    values: whether to hash the elements, in addition to names, shapes and dtypes.
    """
    return [
        TensorFingerprint(name, f"{tuple(tensor.shape)} {tensor.dtype}", _digest(tensor) if values else "")
        for name, tensor in named_tensors(model)
        if buffers or name.startswith("parameter ")
    ]


def named_tensors(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Yield ("parameter 0.weight", tensor) or ("buffer running_mean", tensor); a tied parameter once."""
    for name, parameter in model.named_parameters():
        yield f"parameter {name}", parameter
    for name, buffer in model.named_buffers():
        yield f"buffer {name}", buffer


def fingerprint(model: nn.Module, buffers: bool = True) -> str:
    """Return a hash of all parameters, and of buffers unless these are left out, bit for bit."""
    return _hash(fingerprints(model, buffers)).hex()


def _hash(tensors: list[TensorFingerprint]) -> bytes:
    return hashlib.sha256(repr([tuple(tensor) for tensor in tensors]).encode()).digest()


def first_mismatch(model: nn.Module, group: dist.ProcessGroup, buffers: bool = True, values: bool = True) -> str | None:
    """Return None if all ranks hold the same model; else name the first tensor that differs, the ranks and by how much.

    buffers, values: whether to compare these too.

    Collective; the answer is the same on every rank. Raises CollectiveError when a peer fails.
    """
    own = fingerprints(model, buffers, values)
    with naming_failures(f"rank {group.rank()}: {COMPARING}"):
        hashed = torch.frombuffer(bytearray(_hash(own)), dtype=torch.int64).to(home_of(group))
        if all_alike(hashed, group):
            return None
    models = gather_objects(own, group, COMPARING)
    for index, on_ranks in enumerate(zip(*models, strict=False)):
        if len(set(on_ranks)) > 1:
            return _described(index, on_ranks, model, group)
    counts = ", ".join(str(len(tensors)) for tensors in models)
    return f"the models have {counts} parameters and buffers on the ranks"


def all_alike(own: torch.Tensor, group: dist.ProcessGroup) -> bool:
    """Return whether all ranks have the same vector; collective.

    By a collective of ours: a program often ends after this, and torch 2.13 aborts if the interpreter ends while Gloo's
    thread still lets go of the tensors of a collective of torch's.
    """
    everywhere = own.new_empty(group.size() * len(own))
    collectives.all_gather_into_tensor(everywhere, own, group)
    return bool((everywhere.view(group.size(), -1) == own).all())


def _described(index: int, on_ranks: tuple[TensorFingerprint, ...], model: nn.Module, group: dist.ProcessGroup) -> str:
    """Say what differs. on_ranks: the tensor of that index, by rank."""
    first = on_ranks[0]
    others = [rank for rank, tensor in enumerate(on_ranks) if tensor != first]
    ranks = f"rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
    if len({(tensor.name, tensor.kind) for tensor in on_ranks}) > 1:
        other = on_ranks[others[0]]
        return f"{first.name} of {first.kind} on rank 0 is {other.name} of {other.kind} on {ranks}"
    own = list(named_tensors(model))[index][1].detach()
    return f"{first.name} differs between rank 0 and {ranks}, by up to {_largest_difference(own, group):.3g}"


def _largest_difference(own: torch.Tensor, group: dist.ProcessGroup) -> float:
    """Return the largest difference of an element between rank 0 and another; nan if one is not a number."""
    first = own.clone()
    with naming_failures(f"rank {group.rank()}: {COMPARING}"):
        dist.broadcast(first, group=group, group_src=0)
    here = (own.double() - first.double()).abs().max().item() if own.numel() else 0.0
    return float(max(gather_objects(here, group, COMPARING), key=lambda value: (math.isnan(value), value)))


def _digest(tensor: torch.Tensor) -> str:
    # A copy, as memory that a NumPy array has seen can no longer be given back, which sharded strategies do.
    data = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()
