"""`BenchmarkCase`: what all implementations are asked to do alike: one collective of one size."""

from dataclasses import dataclass

import torch
from torch.distributed import ReduceOp

from ringsim.schedule import OWNED, Collective

DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
}
OPS = {
    "sum": ReduceOp.SUM,
    "avg": ReduceOp.AVG,
    "prod": ReduceOp.PRODUCT,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
    "band": ReduceOp.BAND,
    "bor": ReduceOp.BOR,
    "bxor": ReduceOp.BXOR,
}
NO_OP = "none"


@dataclass(frozen=True, slots=True)
class BenchmarkCase:
    """One collective of one size among `num_ranks` ranks.

    num_elements: of the whole tensor: of the input of reduce_scatter, of the output of all_gather.
    dtype, op: names, of DTYPES and OPS; op is NO_OP where nothing is reduced.
    """

    collective: Collective
    num_elements: int
    dtype: str
    op: str
    num_ranks: int
    in_place: bool

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` itself."""
        return torch_dtype(self.dtype)

    @property
    def size_bytes(self) -> int:
        """Of the whole tensor."""
        return self.num_elements * self.torch_dtype.itemsize

    @property
    def share(self) -> int:
        """Elements of a rank's equal share."""
        return self.num_elements // self.num_ranks

    @property
    def num_sent(self) -> int:
        """Elements that a rank contributes."""
        return self.share if self.collective is Collective.ALL_GATHER else self.num_elements

    def __str__(self) -> str:
        """For messages."""
        place = "in place" if self.in_place else "out of place"
        return f"{self.collective.value} of {self.size_bytes} bytes, {self.dtype}, {place}"


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of that name, one of DTYPES."""
    dtype = DTYPES[name]
    assert isinstance(dtype, torch.dtype)
    return dtype


def elements_of(collective: Collective, size_bytes: int, dtype: str, num_ranks: int) -> int:
    """As many elements as fit into `size_bytes`, in equal shares where every rank gets one.

    Raises ValueError if none fits.
    """
    multiple = num_ranks if collective in OWNED else 1
    least_bytes = multiple * torch_dtype(dtype).itemsize
    if size_bytes < least_bytes:
        raise ValueError(
            f"size {size_bytes} B: {collective.value} of {dtype} on {num_ranks} ranks needs at least {least_bytes}; "
            "begin (-b) with that"
        )
    return size_bytes // least_bytes * multiple
