"""torch's DistributedDataParallel with buckets in shared memory; and a communication hook for any other."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.utils._python_dispatch import TorchDispatchMode  # torch exports it nowhere else
from torch.utils._pytree import tree_leaves

from collectives.calls import functions
from collectives.integrations.backend import mark_last_bucket
from collectives.runtime import CPU, Work


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """torch's DistributedDataParallel, for the CPU, whose buckets the collectives use in place, without copying.

    It takes the same arguments; use it with the backend "ring" or with `ddp_comm_hook`. Where ranks share no memory
    nothing changes. On the backend "ring" the last bucket is summed in the thread of the backward pass.

    gradient_as_bucket_view: as in torch, but True by default.

        >>> model = collectives.DistributedDataParallel(torch.nn.Linear(3, 1))
        >>> model.register_comm_hook(None, collectives.ddp_comm_hook)
        >>> model(torch.full((2, 3), float(rank))).sum().backward()
        >>> model.module.weight.grad
        tensor([[1., 1., 1.]])
    """

    def __init__(
        self, module: torch.nn.Module, *arguments: Any, gradient_as_bucket_view: bool = True, **options: Any
    ) -> None:
        options["gradient_as_bucket_view"] = gradient_as_bucket_view
        super().__init__(module, *arguments, **options)
        self._trained_dtypes = trained_dtypes(module.parameters())

    @contextmanager
    def allocating_buckets(self) -> Iterator[None]:
        """Put the buckets that the reducer makes in the block into shared memory.

        It makes them when constructed, and again in the second step, in the order of the gradients.
        """
        with _BucketAllocation(self.process_group) as allocation:
            yield
        if allocation.last is not None:
            mark_last_bucket(allocation.last)

    def _post_forward(self, output: Any) -> Any:
        output = super()._post_forward(output)  # type: ignore[no-untyped-call]
        for tensor in tree_leaves(output) if self.static_graph and torch.is_grad_enabled() else ():
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(_refuse_double_backward)
        return output

    def _ddp_init_helper(self, *arguments: Any, **keywords: Any) -> None:
        with self.allocating_buckets():
            super()._ddp_init_helper(*arguments, **keywords)  # type: ignore[no-untyped-call]

    def _pre_forward(self, *inputs: Any, **keywords: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            trained = [pair for pair in self.module.named_parameters() if pair[0] not in self.parameters_to_ignore]
            check_trained_dtypes(trained, self._trained_dtypes)
        with nullcontext() if self._has_rebuilt_buckets else self.allocating_buckets():
            return super()._pre_forward(*inputs, **keywords)  # type: ignore[no-untyped-call]


def _refuse_double_backward(_: torch.Tensor) -> None:
    if torch.is_grad_enabled():  # as in a backward pass with create_graph=True
        raise RuntimeError(
            "static_graph=True: torch would synchronise the first gradients before a backward pass with "
            "create_graph=True has made them; leave static_graph out"
        )


def trained_dtypes(parameters: Iterable[torch.nn.Parameter]) -> dict[int, torch.dtype]:
    """Return the dtypes of the trained parameters, by their identity, for `check_trained_dtypes`."""
    return {id(parameter): parameter.dtype for parameter in parameters if parameter.requires_grad}


def check_trained_dtypes(
    parameters: Iterable[tuple[str, torch.nn.Parameter]], before: Mapping[int, torch.dtype]
) -> None:
    """Raise RuntimeError for a new, thawed or converted parameter, which would not be synchronised.

    before: `trained_dtypes` when the model was wrapped.
    """
    for name, parameter in parameters:
        if parameter.requires_grad and before.get(id(parameter)) != parameter.dtype:
            is_known = id(parameter) in before
            change = f"has become {parameter.dtype}" if is_known else "is new or requires a gradient only"
            raise RuntimeError(
                f"{name} {change} since the model was wrapped, and would not be synchronised: change the model first, "
                "and wrap it again"
            )


class _BucketAllocation(TorchDispatchMode):
    """Allocates uninitialised floating-point vectors on the CPU by `empty` within the block.

    torch's reducer asks no process group for the memory of buckets on the CPU.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._group = group
        self.last: torch.Tensor | None = None  # the reducer makes buckets in the order in which it reduces them

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = keywords or {}
        if function is torch.ops.aten.empty.memory_format and _is_bucket(*arguments, **keywords):
            self.last = functions.empty(*arguments[0], dtype=keywords["dtype"], group=self._group)
            return self.last
        return function(*arguments, **keywords)


def _is_bucket(
    size: Sequence[int], *, dtype: torch.dtype | None = None, device: torch.device | None = None, **_: Any
) -> bool:
    return len(size) == 1 and dtype is not None and dtype.is_floating_point and (device or CPU) == CPU


@dataclass(frozen=True, slots=True)
class HookState:
    """The options of `ddp_comm_hook`, given to `register_comm_hook` with it.

    group: of the DistributedDataParallel; the default group if None.
    algorithm, wire: as in `all_reduce`. Each rank adds in the gradients' dtype.

        >>> collectives.HookState(wire=torch.bfloat16)
        HookState(group=None, algorithm='ring', wire=torch.bfloat16)
    """

    group: dist.ProcessGroup | None = None
    algorithm: str = "ring"
    wire: torch.dtype | None = None


def ddp_comm_hook(
    state: HookState | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch's stubs lack it
) -> torch.futures.Future[torch.Tensor]:
    """Make a bucket of gradients the mean over all ranks: `model.register_comm_hook(state, ddp_comm_hook)`.

    Returns at once. Buckets are reduced one after the other in the group's thread, the last one in the program's own,
    which waits anyway. If a bucket cannot be reduced, the backward pass raises a RuntimeError with the text of the
    CollectiveError.

    torch.distributed sums sparse gradients, whatever the options.

        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        >>> model.register_comm_hook(collectives.HookState(wire=torch.bfloat16), collectives.ddp_comm_hook)
    """
    state = state or HookState()
    gradients = bucket.buffer()
    if gradients.layout != torch.strided:
        return allreduce_hook(state.group, bucket)  # type: ignore[arg-type]  # which it takes None for
    async_op = gradients.is_cuda or not bucket.is_last()
    work = functions.all_reduce(
        gradients, dist.ReduceOp.AVG, state.group, async_op, algorithm=state.algorithm, wire=state.wire
    )
    return (work or Work.over([gradients])).future_of(lambda: gradients)
