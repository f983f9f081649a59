"""`DataParallel`: train a model on several ranks with any strategy of gradient synchronisation."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import collectives
from collectives.integrations import check_trained_dtypes, trained_dtypes
from collectives.runtime import gather_objects, home_of, naming_failures, resolve
from trainers.strategies import MakeStrategy, make_strategy
from trainers.strategies.base import MakeOptimizer, all_alike
from trainers.strategies.ddp import Ddp
from trainers.strategies.flat_vector import FlatVector, by_dtype


class DriftError(RuntimeError):
    """The models of the ranks differ, although they should be equal."""


COMPARING = "comparing the ranks' models failed"
ADVICE = "every rank must make the same steps, with the optimizer that model.optimizer(...) gives"


class DataParallel(nn.Module):
    """A wrapper of `model` whose backward passes leave the mean of all ranks' gradients; use it like the model.

    strategy: a name in STRATEGIES, or a function of model and group.
    group: the default process group if None.
    broadcast: copy rank 0's parameters and buffers to all ranks, which otherwise must have the same.

    Rank 0 broadcasts its persistent buffers before each forward pass in training. The trained parameters are fixed at
    construction.

    Raises ValueError on every rank if the ranks' models differ, for a model on several devices, and for sparse
    gradients.

    >>> import torch
    >>> from trainers import DataParallel, distributed_environment, init_process_group
    >>> group = init_process_group(distributed_environment(), timeout_s=60)
    >>> model = DataParallel(torch.nn.Linear(2, 1), "bucketed", group)
    >>> optimizer = model.optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    >>> model(torch.ones(4, 2)).mean().backward()
    >>> model.weight.grad
    tensor([[1., 1.]])
    >>> optimizer.step()
    """

    def __init__(
        self,
        model: nn.Module,
        strategy: str | MakeStrategy = "ring",
        group: dist.ProcessGroup | None = None,
        *,
        broadcast: bool = False,
    ) -> None:
        super().__init__()
        self.group = resolve(group)
        _check(model)
        if broadcast:
            if differs := first_mismatch(model, self.group, values=False):
                raise ValueError(
                    f"{differs}: broadcast=True sends values, not layers; make the same model on every rank"
                )
            for _, tensor in named_tensors(model):
                collectives.broadcast(tensor.detach(), group=self.group, group_src=0)
        elif differs := first_mismatch(model, self.group):
            raise ValueError(
                f"{differs}; use the same seed on all ranks before making the model, or give broadcast=True to use the "
                "model of rank 0"
            )
        self.model = model
        self.strategy = (make_strategy(strategy) if isinstance(strategy, str) else strategy)(model, self.group)
        self._trained_dtypes = trained_dtypes([*model.parameters(), *self.strategy.stand_ins])
        self._enabled = True
        self._in_backward = False
        # torch's DDP sends buffers itself.
        saved = {} if isinstance(self.strategy, Ddp) else model.state_dict(keep_vars=True)
        self._buffers_to_send = [name for name, _ in model.named_buffers() if name in saved]
        for index, parameter in enumerate(self.strategy.parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, index))

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        self._in_backward = False
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            check_trained_dtypes(self.model.named_parameters(), self._trained_dtypes)
        self.strategy.on_forward()
        if self._buffers_to_send and self.training and self._enabled and self.strategy.parameters_agree:
            self._broadcast_buffers()
        return self.strategy.module(*arguments, **keywords)

    def _broadcast_buffers(self) -> None:
        # By .data: a forward pass may have saved them for a backward pass that is still to come.
        for buffers in by_dtype(self.model.get_buffer(name).data for name in self._buffers_to_send):
            flat = FlatVector([buffer.shape for buffer in buffers], buffers[0])
            torch._foreach_copy_(flat.views, buffers)
            collectives.broadcast(flat.vector, group=self.group, group_src=0)
            torch._foreach_copy_(buffers, flat.views)

    def _arrived(self, index: int, _: torch.Tensor) -> None:
        if not self._enabled:
            return
        if not self._in_backward:
            self._in_backward = True
            # Called when the whole backward pass is over; torch's DDP and FSDP do the same.
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)
        self.strategy.on_grad(index)

    def _backward_ends(self) -> None:
        self._in_backward = False
        self.strategy.on_backward_end()

    @property
    def module(self) -> nn.Module:
        return self.model

    @property
    def do_sync(self) -> bool:
        """Whether the next backward pass synchronises the gradients."""
        return self._enabled

    def disable_grad_sync(self) -> None:
        """Let backward passes only accumulate gradients."""
        self._enable(False)

    def enable_grad_sync(self) -> None:
        """Let backward passes synchronise again, including the accumulated gradients."""
        self._enable(True)

    def _enable(self, enabled: bool) -> None:
        self._enabled = enabled
        self.strategy.set_sync(enabled)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Disable the communication of passes in the block."""
        before = self._enabled
        self.disable_grad_sync()
        try:
            yield
        finally:
            self._enable(before)

    def sync_gradients(self) -> None:
        """Make all gradients the mean over all ranks, unless synchronisation is disabled."""
        if self._enabled:
            self.strategy.synchronise()

    def sync_parameters(self) -> None:
        """Make the parameters equal on all ranks, for evaluating or saving; collective."""
        self.strategy.sync_parameters()

    def unshard(self) -> None:
        """Gather whole parameters until the next step or forward pass with gradients; collective.

        Call it before reading parameters, or evaluating on one rank.
        """
        self.strategy.unshard()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.strategy.zero_grad()
        super().zero_grad(set_to_none)

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        """Return this rank's optimizer; sharded strategies pass this rank's shares as `parameters` to `make`."""
        return self.strategy.optimizer(make)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clip the gradients to a global norm of `max_norm`; return the norm before clipping."""
        return self.strategy.clip_grad_norm_(max_norm)

    def check_identical(self) -> None:
        """Raise DriftError on every rank if the ranks' parameters differ, buffers aside; collective."""
        self.unshard()
        if differs := first_mismatch(self.model, self.group, buffers=False):
            raise DriftError(f"{differs}; {ADVICE}")

    def compile(self, *arguments: Any, **keywords: Any) -> None:
        """Compile the model's passes with `torch.compile`; the plain model stays unchanged."""
        self.strategy.compile(lambda module: torch.compile(module, *arguments, **keywords))

    def state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        """Return the plain model's state; with sharded parameters a copy, and collective."""
        return self.strategy.state_of(self.model, *arguments, **keywords)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state into the plain model; collective like `state_dict`. Raises ValueError for assign=True."""
        if assign:
            raise ValueError("assign=True: the strategy needs the original parameters: leave it out")
        return self.strategy.load_into(self.model, state_dict, strict)

    def __deepcopy__(self, _: object) -> Any:
        """Raise TypeError, instead of calling the model's method."""
        return self.__reduce__()

    def __reduce__(self) -> Any:
        """Raise TypeError: a process group cannot be copied or saved."""
        raise TypeError(
            "a DataParallel cannot be copied or pickled, as its process group cannot: copy the plain model before it "
            "is wrapped, or, but for fsdp, call unshard() on every rank and copy parallel.module"
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)


def _check(model: nn.Module) -> None:
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError("the model has no parameter that requires a gradient: there is nothing to train")
    devices: dict[torch.device, str] = {}
    for name, tensor in named_tensors(model):
        devices.setdefault(tensor.device, name)
    if len(devices) > 1:
        where = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise ValueError(f"the model is on {len(devices)} devices ({where}): a rank trains on one; model.to(device)")
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise ValueError(f"module {name}: sparse=True gives sparse gradients, which cannot be synchronised here")


class TensorFingerprint(NamedTuple):
    """One tensor of a model. kind: shape and dtype."""

    name: str
    kind: str
    digest: str


def fingerprints(model: nn.Module, buffers: bool = True, values: bool = True) -> list[TensorFingerprint]:
    """Return the fingerprints of all parameters, then of all buffers. values: also hash the elements."""
    return [
        TensorFingerprint(name, f"{tuple(tensor.shape)} {tensor.dtype}", _digest(tensor) if values else "")
        for name, tensor in named_tensors(model)
        if buffers or name.startswith("parameter ")
    ]


def named_tensors(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Yield ("parameter 0.weight", tensor), then ("buffer running_mean", tensor); a tied parameter once."""
    for name, parameter in model.named_parameters():
        yield f"parameter {name}", parameter
    for name, buffer in model.named_buffers():
        yield f"buffer {name}", buffer


def fingerprint(model: nn.Module, buffers: bool = True) -> str:
    """Return a hash of the bits of all parameters and, unless excluded, buffers."""
    return _hash(fingerprints(model, buffers)).hex()


def _hash(tensors: list[TensorFingerprint]) -> bytes:
    return hashlib.sha256(repr([tuple(tensor) for tensor in tensors]).encode()).digest()


def first_mismatch(model: nn.Module, group: dist.ProcessGroup, buffers: bool = True, values: bool = True) -> str | None:
    """Describe the first tensor that differs between ranks, or return None; collective."""
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


def _described(index: int, on_ranks: tuple[TensorFingerprint, ...], model: nn.Module, group: dist.ProcessGroup) -> str:
    first = on_ranks[0]
    others = [rank for rank, tensor in enumerate(on_ranks) if tensor != first]
    ranks = f"rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
    if len({(tensor.name, tensor.kind) for tensor in on_ranks}) > 1:
        other = on_ranks[others[0]]
        return f"{first.name} of {first.kind} on rank 0 is {other.name} of {other.kind} on {ranks}"
    own = list(named_tensors(model))[index][1].detach()
    return f"{first.name} differs between rank 0 and {ranks}, by up to {_largest_difference(own, group):.3g}"


def _largest_difference(own: torch.Tensor, group: dist.ProcessGroup) -> float:
    """Return the largest difference of an element from rank 0; nan if a value is nan."""
    first = own.clone()
    with naming_failures(f"rank {group.rank()}: {COMPARING}"):
        dist.broadcast(first, group=group, group_src=0)
    here = (own.double() - first.double()).abs().max().item() if own.numel() else 0.0
    return float(max(gather_objects(here, group, COMPARING), key=lambda value: (math.isnan(value), value)))


def _digest(tensor: torch.Tensor) -> str:
    # A copy: memory that a NumPy array has seen cannot be given back, which sharded strategies do.
    data = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()
