"""`DistributedDataParallel`: torch's, whose buckets of gradients lie in memory that the ranks of a host share."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode  # torch exports it nowhere else

from collectives.calls import empty
from collectives.integrations.last_bucket import mark_last_bucket
from collectives.runtime import CPU


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """torch's DistributedDataParallel, for the CPU, whose buckets the collectives use in place, without copying.

    It does what torch's does, with the same arguments, and is used with the backend "ring" or with `ddp_comm_hook`.
    torch's reducer allocates its buckets in C++, and asks no process group of CPU tensors for their memory; so here it
    allocates them in a mode in which that is a call of `empty`. Where ranks share no memory nothing is different.

    On the backend "ring" the last bucket is summed in the thread of the backward pass, which would only wait for it.

    gradient_as_bucket_view: as torch has it, but True by default: a gradient is then copied to its bucket, is summed
    there, and the optimizer reads it there.

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

    @contextmanager
    def allocating_buckets(self) -> Iterator[None]:
        """In the block buckets that the reducer makes lie in shared memory.

        It makes them when it is made, and once more, in the order in which gradients have come, in the second step.
        """
        with _BucketAllocation(self.process_group) as allocation:
            yield
        if allocation.last is not None:
            mark_last_bucket(allocation.last)

    def _ddp_init_helper(self, *arguments: Any, **keywords: Any) -> None:
        with self.allocating_buckets():
            super()._ddp_init_helper(*arguments, **keywords)  # type: ignore[no-untyped-call]

    def _pre_forward(self, *inputs: Any, **keywords: Any) -> Any:
        if self._has_rebuilt_buckets:
            return super()._pre_forward(*inputs, **keywords)  # type: ignore[no-untyped-call]
        with self.allocating_buckets():
            return super()._pre_forward(*inputs, **keywords)  # type: ignore[no-untyped-call]


class _BucketAllocation(TorchDispatchMode):
    """In the block an uninitialised vector of floating-point numbers on the CPU is one of `empty`."""

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
            self.last = empty(*arguments[0], dtype=keywords["dtype"], group=self._group)
            return self.last
        return function(*arguments, **keywords)


def _is_bucket(
    size: Sequence[int], *, dtype: torch.dtype | None = None, device: torch.device | None = None, **_: Any
) -> bool:
    return len(size) == 1 and dtype is not None and dtype.is_floating_point and (device or CPU) == CPU
