"""Sizes from which the time of a kernel follows: `sizes_of` products and attention, the `traffic` of operators."""

from math import prod
from typing import Any

import torch
from torch import Tensor

from ringsim.traces import Attention, Product

_LEFT, _RIGHT = ("mat1", "batch1", "self"), ("mat2", "batch2", "mat_b")
_OFFSETS, _KEYS = ("cum_seq_q", "cu_seq_q", "cu_seqlens_q"), ("max_k", "max_seqlen_k")
_KNOWN = "aten.", "ringsim.", "torch_attn."  # operators with these names of arguments

_OF_ELEMENTS = "gather take put_ scatter_ scatter_add_ scatter_reduce_ nll_loss_forward nll_loss_backward"
_OF_ROWS = (
    "embedding _embedding_bag _embedding_bag_forward_only index _unsafe_index index_select index_add_ index_copy_ "
    "index_fill_ index_put_ _index_put_impl_"
)
# Operators that touch only the elements or rows of a table that their index names.
_LOOKUPS = {f"aten.{name}" for name in f"{_OF_ELEMENTS} {_OF_ROWS}".split()}


def traffic(name: str, given: dict[str, Any], tensors: list[Tensor]) -> int:
    """Return the bytes that an operator reads and writes.

    given: all of its arguments by the names in torch's schema. tensors: what it reads and writes.
    """
    if name not in _LOOKUPS:
        return sum(tensor.nbytes for tensor in tensors)
    table = given["weight" if "embedding" in name else "self"]
    return sum(_looked_up_bytes(name, given, table) if tensor is table else tensor.nbytes for tensor in tensors)


def _looked_up_bytes(name: str, given: dict[str, Any], table: Tensor) -> int:
    index = _first(given, ("indices", "index", "target"))
    indices = index if isinstance(index, (list, tuple)) else [index]
    if any(part is not None and part.dtype in (torch.bool, torch.uint8) for part in indices):  # a mask
        return table.nbytes
    num_indices = prod(torch.broadcast_shapes(*(part.shape for part in indices if part is not None)))
    dims = [dim for dim, part in enumerate(indices, given.get("dim", 0)) if part is not None]
    is_of_rows = name.removeprefix("aten.") in _OF_ROWS.split()
    row = table.numel() // max(1, prod(table.shape[dim] for dim in dims)) if is_of_rows else 1
    return int(min(table.nbytes, num_indices * row * table.itemsize))


def sizes_of(name: str, given: dict[str, Any], flops: int) -> dict[str, Any]:
    """Return the fields `product` or `attention` of an `Operator`, as far as they are known.

    name: of the operator. given: all of its arguments by the names in torch's schema. flops: of the call.
    """
    if not name.startswith(_KNOWN):
        return {}
    if "query" in given:
        attention = _attention(given, is_by_heads="scaled_dot_product" in name or "flex" in name)
        return {"attention": attention} if min(attention.batch, attention.queries, attention.keys) else {}
    if "weight" in given:
        product = _convolution(given, flops)
    else:
        left, right = _first(given, _LEFT), _first(given, _RIGHT)
        product = None if right is None else _product(left, right)
    return {"product": product} if product and min(product.m, product.n, product.k, product.count) else {}


def _first(given: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Return the first of these arguments that is given."""
    return next((given[name] for name in names if given.get(name) is not None), None)


def _product(left: Tensor, right: Tensor) -> Product:
    """Return the product; of experts, each of which has some rows of a matrix, as if these were equally many."""
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    count = max((tensor.shape[0] for tensor in (left, right) if tensor.dim() == 3), default=1)
    return Product(m // count if left.dim() < right.dim() else m, n, k, count)


def _convolution(given: dict[str, Any], flops: int) -> Product | None:
    """Return the implicit product of a convolution, which its backward pass makes for each gradient asked for."""
    weight = given["weight"]
    channels, *window = weight.shape
    if not window or given.get("groups", 1) != 1:  # groups of channels have other kernels
        return None
    num_products = sum(given.get("output_mask", [True])[:2])
    rows = flops // (2 * weight.numel() * max(1, num_products))
    return Product(rows, channels, weight.numel() // channels)


def _attention(given: dict[str, Any], is_by_heads: bool) -> Attention:
    """Return the sizes. is_by_heads: the heads come before the rows of a head."""
    query, key = given["query"], given["key"]
    if (offsets := _first(given, _OFFSETS)) is not None:  # sequences one after the other
        batch = max(1, len(offsets) - 1)
        rows = max(1, query.shape[0] // batch)  # in the mean: kernels skip what no sequence has
        return Attention(batch, query.shape[-2], rows, _first(given, _KEYS) or key.shape[0], query.shape[-1])
    heads, rows = (1, 2) if is_by_heads else (2, 1)
    return Attention(query.shape[0], query.shape[heads], query.shape[rows], key.shape[rows], query.shape[-1])
