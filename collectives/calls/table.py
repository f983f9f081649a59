"""`FUNCTIONS`: the table of collectives, from which functions, process groups, recordings and the benchmark follow.

Operands are checked before anything is sent: a mistake found later would break the group.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from msgspec import Struct

from collectives.runtime import lazily
from ringsim.schedule import Collective

SCATTERING = Collective.REDUCE_SCATTER, Collective.SCATTER, Collective.ALL_TO_ALL  # a rank gives a share to each


class Function(Struct, frozen=True, dict=True):
    """A function of `collectives` and torch.distributed; coalesced ones, except the all_reduce, are only methods.

    output, input: the arguments with the tensors that it writes and reads; the same if in place.
    methods: of torch's ProcessGroup, the newest name first.
    root: the argument src or dst; else empty.
    """

    name: str
    collective: Collective
    output: str
    input: str
    methods: str
    root: str = ""

    @lazily
    def is_in_place(self) -> bool:
        return self.output == self.input

    @lazily
    def is_coalesced(self) -> bool:
        return self.name != self.single

    @lazily
    def single(self) -> str:
        return self.name.removesuffix("_coalesced")

    def arguments(self, output: Any, given: Any) -> tuple[Any, ...]:
        if self.is_in_place:
            return (output,)
        return (given, output) if self.root == "dst" else (output, given)


_AR, _RS, _AG = Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER
_ALL = (
    Function("all_reduce", _AR, "tensor", "tensor", "allreduce"),
    Function("reduce_scatter_tensor", _RS, "output", "input", "reduce_scatter_single _reduce_scatter_base"),
    Function("all_gather_into_tensor", _AG, "output_tensor", "input_tensor", "all_gather_single _allgather_base"),
    Function("broadcast", Collective.BROADCAST, "tensor", "tensor", "broadcast", "src"),
    Function("reduce", Collective.REDUCE, "tensor", "tensor", "reduce", "dst"),
    Function("gather", Collective.GATHER, "gather_list", "tensor", "gather", "dst"),
    Function("scatter", Collective.SCATTER, "tensor", "scatter_list", "scatter", "src"),
    Function("all_to_all_single", Collective.ALL_TO_ALL, "output", "input", "all_to_all_single alltoall_base"),
    Function("reduce_scatter", _RS, "output", "input_list", "reduce_scatter"),
    Function("all_gather", _AG, "tensor_list", "tensor", "allgather"),
    Function("all_to_all", Collective.ALL_TO_ALL, "output_tensor_list", "input_tensor_list", "alltoall"),
    Function("barrier", _AR, "", "", "barrier"),  # which sums one number
    Function("all_reduce_coalesced", _AR, "tensors", "tensors", "allreduce_coalesced"),
    Function("all_gather_coalesced", _AG, "outputs", "inputs", "allgather_coalesced"),
    Function("all_gather_into_tensor_coalesced", _AG, "outputs", "inputs",
             "all_gather_single_coalesced allgather_into_tensor_coalesced"),
    Function("reduce_scatter_tensor_coalesced", _RS, "outputs", "inputs",
             "reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced"),
)  # fmt: skip
FUNCTIONS = {function.name: function for function in _ALL}
FIRST = {collective: next(one for one in _ALL if one.collective is collective) for collective in Collective}


def own_share(whole: torch.Tensor, rank: int, num_ranks: int, splits: tuple[int, ...] | None) -> torch.Tensor:
    """Return the share of `rank` in `whole`, which is contiguous. splits: as in `Executor.run`."""
    return (whole.view(-1).split(splits) if splits else whole.view(num_ranks, -1))[rank]


def check_tensor(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError if `tensor` cannot be sent: it is not dense, or torch cannot copy it."""
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} has the layout {tensor.layout}: must be dense; call to_dense() first")
    if tensor.is_quantized:
        raise ValueError(f"{name} is quantized ({tensor.dtype}): its scale would not be sent; send int_repr() instead")
    if tensor.is_nested:
        raise ValueError(f"{name} is a nested tensor: must be one dense tensor; send its values() instead")
    if not _can_be_copied(tensor.dtype, tensor.is_conj(), tensor.is_neg()):
        kinds = "conjugated " * tensor.is_conj() + "negated " * tensor.is_neg()
        raise ValueError(f"{name}: torch cannot copy a {kinds}tensor of {tensor.dtype}; convert it or send its bytes")


@lru_cache
def _can_be_copied(dtype: torch.dtype, conjugated: bool, negated: bool) -> bool:
    try:
        element = torch.empty(1, dtype=dtype)
        element = element.conj() if conjugated else element
        element = torch._neg_view(element) if negated else element
        torch.empty(1, dtype=dtype).copy_(element)
    except RuntimeError:  # NotImplementedError is one
        return False
    return True


def check_writable(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError if `tensor` can hold no result: `check_tensor` does, or its elements share memory."""
    check_tensor(name, tensor)
    if not tensor.is_contiguous() and _overlaps(tensor):
        raise ValueError(
            f"{name} of shape {tuple(tensor.shape)} and strides {tensor.stride()}: elements share memory; "
            "give a tensor that is not expanded, such as its clone"
        )


def _overlaps(tensor: torch.Tensor) -> bool:
    strides = sorted((step, size) for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    reach = 0  # how far the dimensions of smaller strides go
    for step, size in strides:
        if step <= reach:
            break
        reach += step * (size - 1)
    else:
        return False
    # Interleaved strides, such as (3, 2) of the shape (2, 3), need not overlap: compare all offsets.
    offsets = torch.zeros(1, dtype=torch.int64)
    for step, size in strides:
        offsets = (offsets[:, None] + step * torch.arange(size)).flatten()
    return len(offsets.unique()) < len(offsets)


def check_share(small_name: str, small: torch.Tensor, large_name: str, large: torch.Tensor, num_ranks: int) -> None:
    """Raise ValueError unless `large` is `num_ranks` times as long as `small`, and of the same dtype and device."""
    if small.numel() * num_ranks != large.numel():
        raise ValueError(
            f"{large_name} has {large.numel()} elements and {small_name} {small.numel()}: "
            f"{large_name} must have {num_ranks} times as many, once per rank"
        )
    check_alike(large_name, large, small_name, small)


def check_alike(name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    """Raise ValueError unless both are of one dtype and on one device."""
    if tensor.dtype != other.dtype:
        raise ValueError(f"{name} is {tensor.dtype} and {other_name} {other.dtype}: both must be the same")
    if tensor.device != other.device:
        raise ValueError(f"{name} is on {tensor.device} and {other_name} on {other.device}: must be on the same")


def check_as_many(name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    """Raise ValueError unless both have the same number of elements."""
    if tensor.numel() != other.numel():
        lengths = f"{name} has {tensor.numel()} elements and {other_name} {other.numel()}"
        raise ValueError(f"{lengths}: both must have the same number of elements")


def listed_sizes(sizes: Sequence[int] | np.ndarray | None) -> list[int]:
    """Return the split sizes of a call, none for None; torch also takes an array, as Megatron-LM's experts give."""
    return [] if sizes is None else np.asarray(sizes).tolist()


def block_lengths(name: str, tensor: torch.Tensor, sizes: list[int], num_ranks: int) -> list[int]:
    """Return the number of elements of each rank's block of `tensor`.

    sizes: rows of each block; none: equally many. Raises ValueError unless the blocks cover all rows.
    """
    num_rows = tensor.size(0) if tensor.dim() else 1
    row = tensor.numel() // num_rows if num_rows else 0
    if not sizes:
        if num_rows % num_ranks:
            raise ValueError(
                f"{name} has {num_rows} rows: must be a multiple of the {num_ranks} ranks; or give {name}_split_sizes"
            )
        return [tensor.numel() // num_ranks] * num_ranks
    if len(sizes) != num_ranks or min(sizes) < 0 or sum(sizes) != num_rows or any(size % 1 for size in sizes):
        raise ValueError(
            f"{name}_split_sizes {list(sizes)}: must be {num_ranks} whole numbers from 0 whose sum is the "
            f"{num_rows} rows of {name}"
        )
    return [size * row for size in sizes]


def check_number(list_name: str, tensors: Sequence[torch.Tensor], num_ranks: int) -> None:
    """Raise ValueError unless there is one tensor per rank."""
    if len(tensors) != num_ranks:
        raise ValueError(f"{list_name} has {len(tensors)} tensors: must have one for each of {num_ranks} ranks")


def check_shares(
    name: str,
    tensor: torch.Tensor,
    list_name: str,
    tensors: Sequence[torch.Tensor],
    num_ranks: int,
    rank: int | None = None,
) -> tuple[int, ...] | None:
    """Return the elements of each rank's listed tensor; None if they are equal.

    rank: only this rank's tensor must match `tensor` in length; None: all must.

    Raises ValueError for another length, number, dtype or device.
    """
    check_number(list_name, tensors, num_ranks)
    for index, listed in enumerate(tensors):
        check_alike(f"{list_name}[{index}]", listed, name, tensor)
        if rank in (None, index):
            check_as_many(f"{list_name}[{index}]", listed, name, tensor)
    lengths = tuple(listed.numel() for listed in tensors)
    return lengths if len(set(lengths)) > 1 else None
