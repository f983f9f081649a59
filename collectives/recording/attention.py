"""`attention_of_gpus`: the kernels of attention that torch chooses on a GPU, for tensors without data."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from math import isqrt, prod
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor, Shard
from torch.library import Library, _scoped_library, register_autograd
from torch.nn.attention import (
    SDPBackend,
    varlen,  # noqa: F401  defines the operators of sequences
)
from torch.nn.attention import flex_attention as flex
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import flop_registry

from collectives.recording.operands import named
from collectives.recording.placement import place, tensors_in
from collectives.recording.replacements import by_names
from collectives.recording.without_values import is_unknown

aten = torch.ops.aten
_ATTENTION: OpOverload = aten.scaled_dot_product_attention.default
_TENSORS = "query", "key", "value"
HALVES = torch.float16, torch.bfloat16
_LARGEST_HEAD = 256  # of flash attention
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_MAKE_MASK = flex.create_block_mask
MAX_PAIRS = 2**28  # of queries and keys for which a mask of FlexAttention is computed
_SAMPLES = 16  # of the queries, and of the keys, of a block of a larger mask
_IS_UNKNOWN = "_is_unknown"  # attribute of a mask that keeps more than the program's
_MONOTONOUS = aten.bitwise_and.Tensor, aten.logical_and.default, aten.bitwise_or.Tensor, aten.logical_or.default


def attend(*args: Any, **options: Any) -> Any:
    """Compute `scaled_dot_product_attention` by the kernel that a GPU would choose."""
    given = named(_ATTENTION, args, options)
    query, key, value = tensors = tuple(given[name] for name in _TENSORS)
    mask, head = given["attn_mask"], query.shape[-1]
    dropout, is_causal = given["dropout_p"], given["is_causal"]
    scale = head**-0.5 if given["scale"] is None else given["scale"]
    kernel = _chosen(query, key, value, mask, is_causal, given["enable_gqa"])
    if kernel is None:
        raise RuntimeError("No available kernel. Aborting execution.")  # as torch says
    if kernel == SDPBackend.FLASH_ATTENTION:
        padded = [nn.functional.pad(tensor, (0, -head % 8)) if head % 8 else tensor for tensor in tensors]
        attended = aten._scaled_dot_product_flash_attention(*padded, dropout, is_causal, scale=scale)[0]
        return attended[..., :head] if head % 8 else attended
    if kernel == SDPBackend.MATH:
        also = {"scale": given["scale"], "enable_gqa": given["enable_gqa"]}
        return aten._scaled_dot_product_attention_math(*tensors, mask, dropout, is_causal, None, **also)[0]
    efficient, cudnn = aten._scaled_dot_product_efficient_attention, aten._scaled_dot_product_cudnn_attention
    function = efficient if kernel == SDPBackend.EFFICIENT_ATTENTION else cudnn
    is_learning = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return function(*tensors, _bias(query, key, mask), is_learning, dropout, is_causal, scale=scale)[0]


def _chosen(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, enable_gqa: bool
) -> SDPBackend | None:
    """Return the first kernel that is enabled and takes the arguments.

    The order, unless the program sets one, and the conditions are torch's (`sdp_utils.cpp`) on an H100.
    """
    enabled: Any = torch.backends.cuda
    tensors, widths = (query, key, value), (query.shape[-1], value.shape[-1])
    is_dense = all(tensor.dim() == 4 for tensor in tensors)
    is_half = is_dense and all(tensor.dtype in HALVES for tensor in tensors)
    has_equal_heads = is_dense and query.shape[1] == key.shape[1] == value.shape[1]
    is_square = not is_causal or query.shape[-2] == key.shape[-2]
    is_narrow = max(widths) <= _LARGEST_HEAD
    has_equal_widths = key.shape[-1] == value.shape[-1] == query.shape[-1]
    is_plain = has_equal_widths and is_square and mask is None and (has_equal_heads or enable_gqa)
    is_float = is_half or query.dtype == torch.float32
    are_of_eights = not any(width % 8 for width in widths)
    takes = {
        SDPBackend.FLASH_ATTENTION: enabled.flash_sdp_enabled() and is_half and is_narrow and is_plain,
        SDPBackend.EFFICIENT_ATTENTION: enabled.mem_efficient_sdp_enabled() and is_float and has_equal_heads,
        SDPBackend.MATH: enabled.math_sdp_enabled(),
        SDPBackend.CUDNN_ATTENTION: enabled.cudnn_sdp_enabled() and is_half and is_narrow and are_of_eights,
    }
    order = map(SDPBackend, torch._C._get_sdp_priority_order())
    return next((kernel for kernel in order if takes.get(kernel)), None)


def _bias(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor | None:
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -torch.inf)
    return mask.expand(*query.shape[:2], query.shape[2], key.shape[2])


# FlexAttention is one kernel forward and one backward, with the work of the blocks that its mask keeps.
_INPUTS = "Tensor query, Tensor key, Tensor value"
_MASK = "Tensor? partial, Tensor? full, int rows, int columns"  # the numbers of blocks in each row, and their sides
_KERNELS: dict[str, Callable[..., Any]] = {
    f"flex_attention({_INPUTS}, {_MASK}, Tensor? score) -> (Tensor, Tensor)": lambda query, _, value, *__: (
        query.new_empty(*query.shape[:-1], value.shape[-1]),
        query.new_empty(query.shape[:-1], dtype=torch.float32),
    ),
    f"flex_attention_backward(Tensor gradient, {_INPUTS}, {_MASK}, Tensor out, Tensor logsumexp)"
    " -> (Tensor, Tensor, Tensor)": lambda _, *tensors: tuple(map(torch.empty_like, tensors[:3])),
}
_LIBRARY = Library("ringsim", "DEF")
for _schema, _kernel in _KERNELS.items():
    _LIBRARY.define(_schema)
    _LIBRARY.impl(_schema.partition("(")[0], _kernel, "Meta")


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.sides, ctx.learns_scores = inputs[5:7], inputs[7] is not None


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> Any:
    *inputs, out, logsumexp = ctx.saved_tensors
    made = torch.ops.ringsim.flex_attention_backward(gradient, *inputs, *ctx.sides, out, logsumexp)
    return *made, None, None, None, None, gradient.new_zeros(()) if ctx.learns_scores else None


register_autograd("ringsim::flex_attention", _backward, setup_context=_save, lib=_LIBRARY)  # which Dynamo captures


def _flops(
    pairs: Callable[[dict[str, Any]], int | None], operator: OpOverload, *args: Any, **options: Any
) -> int | None:
    """Count a kernel's products for its pairs of queries and keys; backward it recomputes the scores."""
    given = named(operator, args, options)
    is_backward = not given.keys().isdisjoint(("grad_out", "grad_out_", "gradient"))
    num_of_scores, num_of_values = (3, 2) if is_backward else (1, 1)
    widths = num_of_scores * given["query"].shape[-1] + num_of_values * given["value"].shape[-1]
    num_pairs = pairs(given)
    return None if num_pairs is None else int(2 * num_pairs * widths)


def _pairs_of_squares(given: dict[str, Any]) -> int:
    query, num_keys = given["query"], given["key"].shape[-2]
    num_pairs = _pairs(query.shape[-2], num_keys, 0, None, 0) if given["is_causal"] else query.shape[-2] * num_keys
    return int(query.shape[:-2].numel() * num_pairs)


def _pairs_of_sequences(given: dict[str, Any]) -> int:
    """Return the pairs of packed sequences, or of a batch, whose dimensions are in another order."""
    query, key = given["query"], given["key"]
    offsets = [given.get(f"cum_seq_{side}", given.get(f"cu_seq_{side}")) for side in "qk"]
    if offsets[0] is None:
        queries, keys = ([tensor.shape[1]] * len(tensor) for tensor in (query, key))
    else:
        queries = _lengths(offsets[0], len(query), given["max_q"])
        keys = queries if offsets[1] is None else _lengths(offsets[1], len(key), given["max_k"])
    left, right = given.get("window_size") or (given.get(f"window_size_{side}") for side in ("left", "right"))
    right = 0 if given.get("is_causal") else right
    lengths = zip(queries, keys, strict=False)
    return int(query.shape[-2]) * sum(_pairs(*both, both[1] - both[0], left, right) for both in lengths)


def _lengths(offsets: Tensor, total: int, longest: int) -> list[int]:
    """Return the lengths of packed sequences; if they are unknown, as many as possible have the length `longest`."""
    if is_unknown(offsets):
        return [*[longest] * (total // longest), total % longest]
    with _disable_current_modes():
        lengths: list[int] = offsets.diff().tolist()
        return lengths


def _pairs(queries: int, keys: int, first: int, left: int | None, right: int | None) -> int:
    """Return how many keys all queries see, from the place `first` on; None or -1: an unbounded window."""
    own = np.arange(queries) + first
    begin = np.clip(own - left, 0, keys) if left is not None and left >= 0 else 0
    end = np.clip(own + right + 1, 0, keys) if right is not None and right >= 0 else np.full(queries, keys)
    return int(np.maximum(end - begin, 0).sum())


def _pairs_of_blocks(given: dict[str, Any]) -> int | None:
    query, key, rows, columns = (given[name] for name in ("query", "key", "rows", "columns"))
    lengths = query.shape[-2], key.shape[-2]
    counts = [count for count in (given["partial"], given["full"]) if count is not None]
    if any(type(count) is not Tensor for count in counts):
        return None
    with _disable_current_modes():
        num_blocks = sum(int(count.clamp(min=0).sum()) for count in counts)
    num_masks, num_heads = counts[0].shape[:2].numel(), query.shape[:-2].numel()
    kept: int = num_blocks * min(rows, lengths[0]) * min(columns, lengths[1]) * num_heads // num_masks
    return min(int(query.shape[:-1].numel() * lengths[1]), kept)


_VARLEN = torch.ops.torch_attn._varlen_attn, torch.ops.torch_attn._varlen_attn_backward
_OF_FLEX = torch.ops.ringsim.flex_attention, torch.ops.ringsim.flex_attention_backward
_OF_CPU = "_scaled_dot_product_flash_attention_for_cpu"  # on a GPU it is flash attention
_SQUARES = (
    *(packet for packet in flop_registry if "scaled_dot_product" in str(packet)),
    *(getattr(aten, f"{_OF_CPU}{suffix}") for suffix in ("", "_backward")),
)
_PAIRS = {
    **dict.fromkeys(_SQUARES, _pairs_of_squares),
    **dict.fromkeys((aten._flash_attention_forward, aten._flash_attention_backward, *_VARLEN), _pairs_of_sequences),
    **dict.fromkeys(_OF_FLEX, _pairs_of_blocks),
}
FORMULAS = {packet: partial(_flops, pairs, packet.default) for packet, pairs in _PAIRS.items()}


def _attend_flexibly(query: Tensor, key: Tensor, value: Tensor, score_mod: Any, mask: tuple[Any, ...], *__: Any) -> Any:
    """Stand in for the operator of FlexAttention: output, logsumexp and the largest scores.

    `score_mod` is called once, so that parameters in it, such as a bias, get gradients.
    """
    _, _, partial, _, full, *_, rows, columns, _ = mask
    score = score_mod(query.new_zeros(()), *[query.new_zeros((), dtype=torch.int32)] * 4)
    learned = score if score.requires_grad else None
    out, logsumexp = torch.ops.ringsim.flex_attention(query, key, value, partial, full, rows, columns, learned)
    return out, logsumexp, logsumexp.detach()


def _make_mask(given: dict[str, Any]) -> Any:
    """Make a block mask with data; for many pairs, from a sample of each block, with its ends."""
    device = torch.device(given["device"] or torch.accelerator.current_accelerator() or "cpu")

    def keeps(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Any:
        with _KeepingUnknown():  # type: ignore[no-untyped-call]
            return given["mask_mod"](b, h, q, k)

    known = {**given, "mask_mod": keeps, "device": "cpu", "_compile": False}
    size, lengths = given["BLOCK_SIZE"], (given["Q_LEN"], given["KV_LEN"])
    sides = (size, size) if isinstance(size, int) else size
    num_blocks = [-(-length // side) for length, side in zip(lengths, sides, strict=True)]
    num_masks = (given["B"] or 1) * (given["H"] or 1)
    with suppress(Exception), _disable_current_modes():
        if num_masks * prod(lengths) <= MAX_PAIRS:
            mask = _MAKE_MASK(**known)
        else:
            num_samples = min(_SAMPLES, isqrt(MAX_PAIRS // (num_masks * prod(num_blocks))))
            mask = _sampled(known, num_blocks, num_samples, sides)
        for tensor in tensors_in(mask.as_tuple()):
            place(tensor, device)
        return mask
    return _MAKE_MASK(**given)


def _sampled(given: dict[str, Any], num_blocks: list[int], num_samples: int, sides: tuple[int, int]) -> Any:
    """Make a mask from pairs at irregular distances, which no regular pattern escapes."""
    lengths = given["Q_LEN"], given["KV_LEN"]
    steps = torch.linspace(0, 1, num_samples)
    places = (steps**1.5 * (sides[0] - 1)).long(), (steps * (sides[1] - 1)).long()

    def at(index: Tensor, axis: int) -> Tensor:
        within = places[axis][index % num_samples]
        return (index // num_samples * sides[axis] + within).clamp(max=lengths[axis] - 1)

    def keeps(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Any:
        return given["mask_mod"](b, h, at(q, 0), at(k, 1))

    num_queries, num_keys = (num_samples * number for number in num_blocks)
    asked = {"mask_mod": keeps, "Q_LEN": num_queries, "KV_LEN": num_keys, "BLOCK_SIZE": num_samples}
    mask = _MAKE_MASK(**{**given, **asked})
    blocks = mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices
    return flex.BlockMask.from_kv_blocks(*blocks, sides, given["mask_mod"], lengths)


class _KeepingUnknown(TorchDispatchMode):
    """Lets a mask keep what depends on tensors without data."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outcome = func(*args, **(kwargs or {}))
        is_unknown = any(isinstance(given, FakeTensor) or hasattr(given, _IS_UNKNOWN) for given in tensors_in(args))
        if not isinstance(outcome, Tensor) or not is_unknown:
            return outcome
        if not isinstance(outcome, FakeTensor) and outcome.dtype is not torch.bool:
            raise NotImplementedError(func)
        if outcome.dtype is torch.bool:
            if isinstance(outcome, FakeTensor) or not (func.is_view or func in _MONOTONOUS):
                outcome = torch.ones((), dtype=torch.bool).expand(outcome.shape)
            setattr(outcome, _IS_UNKNOWN, True)
        return outcome


def attend_on_cpu(*args: Any, **options: Any) -> Any:
    """Compute `scaled_dot_product_attention` with data, by the kernels of a CPU.

    Dropout is left out: a GPU's kernels contain it, while a CPU would compute and store all scores.
    """
    given = named(_ATTENTION, args, options) | {"dropout_p": 0.0}
    query = given["query"]
    if not isinstance(query, DTensor):
        return _ATTENTION._op_dk(_COMPOSITE, **given)
    if any(isinstance(placement, Shard) and placement.dim > 1 for placement in query.placements):
        raise RuntimeError("attention on parts of a sequence needs kernels of a GPU: record with --fake")
    parts = {name: part.to_local() if isinstance(part, DTensor) else part for name, part in given.items()}
    return DTensor.from_local(attend_on_cpu(**parts), query.device_mesh, query.placements)


@contextmanager
def attention_of_gpus(is_fake: bool) -> Iterator[None]:
    """Replace attention within the block; without data by the kernels of a GPU."""
    function = attend if is_fake else attend_on_cpu
    flexible: Any = {
        "flex_attention_hop": _attend_flexibly,
        "create_block_mask": torch._dynamo.disable(by_names(_MAKE_MASK, _make_mask)),
    }
    flexible["_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"] = True
    with (
        _scoped_library("aten", "IMPL") as library,
        patch.multiple(flex, **flexible) if is_fake else nullcontext(),
        patch.dict(_ATTENTION.py_kernels, {_COMPOSITE: function}),  # in inference mode
    ):
        for key in ("AutogradCPU", "CPU"):
            library.impl("scaled_dot_product_attention", function, key)
        yield
