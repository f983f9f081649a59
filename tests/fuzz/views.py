"""Tensors with given values that lie in memory in any way that PyTorch allows."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist

import collectives

UNTOUCHED = 77

# Of a tensor that is written to; and, of one that is only read, with one element in many places.
WRITABLE = ("plain", "offset", "strided", "reversed dims", "padded", "negated", "parameter")
COMPLEX_ONLY = ("conjugated", "conjugated and negated")
READ_ONLY = ("expanded",)
# Without a sign (torch copies a negated uint8 into int64 as a negative number; only fractions have such views: `imag`).
_UNSIGNED = (torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
CANNOT_BE_NEGATED = (*_UNSIGNED, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass
class View:
    """A tensor, and the memory around it, which is nobody's business.

    around: where in `memory`, flat, nothing belongs to the tensor; `before` is what lies there.
    """

    tensor: torch.Tensor
    memory: torch.Tensor
    around: torch.Tensor

    def __post_init__(self) -> None:
        self._before = self._bytes_around()

    def is_memory_around_untouched(self) -> bool:
        """Whether all is as it was beside the tensor."""
        return self._bytes_around() == self._before

    def _bytes_around(self) -> bytes:
        by_element = self.memory.view(torch.uint8).view(len(self.memory), -1)
        return by_element[self.around].numpy().tobytes()


def bits(tensor: torch.Tensor) -> bytes:
    """The elements as they are, in order, so that -0 is not 0."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""


new_memory: Callable[..., torch.Tensor] = torch.empty  # where tensors are laid out


@contextmanager
def in_shared_memory(group: dist.ProcessGroup) -> Iterator[None]:
    """Tensors that are laid out in the block lie in memory that the ranks of `group` on a host share."""
    with mock.patch(f"{__name__}.new_memory", partial(collectives.empty, group=group)):
        yield


def laid_out(values: torch.Tensor, layout: str) -> View:
    """`values`, contiguous, in that layout."""
    shape, dtype = values.shape, values.dtype
    strides, offset, length = _strides(list(shape), layout)
    memory = new_memory(length, dtype=dtype).copy_(torch.full((length,), UNTOUCHED))
    around = torch.ones(length, dtype=torch.bool)
    around.as_strided(shape, strides, offset).fill_(False)
    tensor = memory.as_strided(shape, strides, offset)
    if layout.startswith("conjugated"):
        tensor = tensor.conj()
    if layout.endswith("negated") and dtype not in CANNOT_BE_NEGATED:
        tensor = torch._neg_view(tensor)
    tensor.copy_(values)
    if layout == "parameter" and (dtype.is_floating_point or dtype.is_complex):
        tensor = torch.nn.Parameter(tensor)
    return View(tensor, memory, around)


def _strides(shape: list[int], layout: str) -> tuple[list[int], int, int]:
    """Strides, offset and length of the memory. A dimension of one element may have any stride."""
    order = range(len(shape)) if layout == "reversed dims" else reversed(range(len(shape)))
    step, offset = {"strided": (2, 1), "padded": (1, 2), "offset": (1, 1)}.get(layout, (1, 0))
    strides = [0] * len(shape)
    for dim in order:
        strides[dim] = step if shape[dim] != 1 or layout != "strided" else 7
        step *= max(shape[dim], 1) + (1 if layout == "padded" else 0)
    reach = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if math.prod(shape) else 0
    return strides, offset, offset + max(reach, 0) + 3
