"""`OperatorWatch`: tells the recorder the operators of a program, with their arithmetic and memory traffic."""

import re
from collections.abc import Callable, Iterable
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tag, Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from collectives.calls import name_of
from collectives.recording.memory import MemoryWatch
from collectives.recording.recorder import Recorder
from ringsim.traces import Operator

aten = torch.ops.aten

# Operators that write their first argument without reading it.
_OVERWRITING = {"aten.copy_", "aten._foreach_copy_", "aten.fill_", "aten.zero_", "aten._foreach_zero_"}
# Operators that touch no elements; the schemas tell which operators return views.
_EMPTY = {"aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty", "aten.new_empty_strided"}
_WITHOUT_WORK = _EMPTY | {"aten._unsafe_view", "aten.lift_fresh", "aten.record_stream", "aten.resize_", "aten.set_"}


def _product_flops(left: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
    num_products = left.shape[0] if left.dim() == right.dim() == 3 else 1
    return int(2 * num_products * left.shape[-2] * left.shape[-1] * right.shape[-1])


def _convolution_backward_flops(gradient: Tensor, image: Tensor, weight: Tensor, *options: Any, **_: Any) -> int:
    """Return the operations of the requested gradients; each gradient costs as many as the convolution.

    torch's own formula ignores groups of channels.
    """
    is_transposed, is_asked_for = options[4], options[7]
    positions = prod((image if is_transposed else gradient).shape[2:])
    return int(2 * image.shape[0] * positions * weight.numel() * sum(is_asked_for[:2]))


_COUNTED_LIKE = {
    aten.addmm: (aten.addmm_, aten._addmm_activation),
    aten.baddbmm: (aten.baddbmm_, aten.addbmm, aten.addbmm_),
    # On a GPU they are flash attention.
    aten._scaled_dot_product_flash_attention: (aten._scaled_dot_product_flash_attention_for_cpu,),
    aten._scaled_dot_product_flash_attention_backward: (aten._scaled_dot_product_flash_attention_for_cpu_backward,),
}
_PRODUCTS = aten._int_mm, aten._grouped_mm, aten._scaled_grouped_mm, aten._scaled_grouped_mm_v2, aten._scaled_mm_v2
_FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    **{name: flop_registry[like] for like, names in _COUNTED_LIKE.items() for name in names},
    **dict.fromkeys(_PRODUCTS, _product_flops),
    aten.convolution_backward: _convolution_backward_flops,
}
# Operators whose work grows with their bytes need no formula: those with a tag or a decomposition, and these.
_TAGS = {Tag.pointwise, Tag.reduction, Tag.view_copy, Tag.inplace_view}
_BY_BYTES = re.compile(
    "foreach|fused_(ada|sgd|gru_cell|lstm_cell|moving)|amp_|assert|check|pool|upsample|norm|grid_sampler|pad|index|gather"
    "|scatter|copy|clone|sort|topk|kthvalue|median|mode|cummax|cummin|cumsum|unique|nonzero|embedding|quantize|hist|bincount"
    "|searchsorted|put_?$|masked|repeat_interleave|segment_reduce|margin_loss|shrink|glu|softmax|full|stack|minmax|relu"
    "|coalesce|sparse_(coo|mask|sum)|resize|scalar|^_?is_|nested|addr|pin_memory|grad$|rescale"
)
_IS_PRODUCT = re.compile("mm|conv|rnn|attention")  # also where torch decomposes it
_BY_BYTES_ELSEWHERE = {"fsdp", "prims", "rngprims", "profiler", "c10d", "_dtensor"}  # torch's own namespaces
_TF32_DTYPES = {"float32", "complex64"}


class _Kind(NamedTuple):
    """The properties of an operator that follow from its schema.

    written: positions or names of the arguments that it writes. overwritten: written without being read.
    formula: of its operations. is_counted: as in `Operator`.
    is_made_of_others: torch runs it as other operators, but dispatches it first in inference mode.
    """

    name: str
    has_work: bool
    formula: Callable[..., int] | None
    is_counted: bool
    is_made_of_others: bool
    written: frozenset[int | str]
    overwritten: frozenset[int | str]


@cache
def _kind_of(operator: OpOverload) -> _Kind:
    name = str(operator._overloadpacket)
    shared: dict[int | str, Any] = {
        argument.name if argument.kwarg_only else position: argument
        for position, argument in enumerate(operator._schema.arguments)
        if argument.alias_info is not None
    }
    written = {key for key, argument in shared.items() if argument.alias_info.is_write}
    overwritten = {key for key in written if shared[key].is_out or name in _OVERWRITING}
    is_view = bool(shared) and not written
    formula = _FORMULAS.get(operator._overloadpacket)
    is_prim = operator.namespace == "prim"
    return _Kind(
        name,
        has_work=not is_view and name not in _WITHOUT_WORK and not is_prim,
        formula=formula,
        is_counted=formula is not None or _works_by_bytes(operator),
        is_made_of_others=formula is None
        and not is_prim
        and torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"),
        written=frozenset(written),
        overwritten=frozenset(overwritten),
    )


def _works_by_bytes(operator: OpOverload) -> bool:
    if operator.namespace != "aten":
        return operator.namespace in _BY_BYTES_ELSEWHERE
    name, tags = operator._schema.name.removeprefix("aten::"), operator.tags
    if not _TAGS.isdisjoint(tags) or not any("Tensor" in str(argument.type) for argument in operator._schema.arguments):
        return True
    is_simple = operator in decomposition_table or Tag.nondeterministic_seeded in tags or bool(_BY_BYTES.search(name))
    return is_simple and not _IS_PRODUCT.search(name)


class OperatorWatch(TorchDispatchMode):
    """Tells the recorder each operator of the program; for tensors such as DTensors, the operators on their parts."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self.is_watching = False
        self.memory = MemoryWatch()

    def start(self) -> None:
        self.is_watching = True
        self.memory = MemoryWatch()
        self.memory.start()
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        self.is_watching = False
        self.memory.stop()
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(is_traceable_wrapper_subclass_type(type_) for type_ in types):
            return NotImplemented  # then torch dispatches the operators on its parts
        kwargs = kwargs or {}
        if func.namespace == "_c10d_functional":
            # Its kernel in C++ copies the tensors, which is watched, and calls our process groups.
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
        kind = _kind_of(func)
        if self._recorder.is_stopped:
            return func(*args, **kwargs)
        if kind.is_made_of_others:
            with self:
                return func.decompose(*args, **kwargs)
        if not kind.has_work:
            return self._run(func, args, kwargs)
        with self._recorder.stopped():
            arguments: dict[int | str, Any] = dict([*enumerate(args), *kwargs.items()])
            sources = _tensors(value for key, value in arguments.items() if key not in kind.overwritten)
        outcome = self._run(func, args, kwargs)
        with self._recorder.stopped():
            results = _tensors([outcome])
            written = _tensors(arguments[key] for key in kind.written if key in arguments)
            is_counted = kind.is_counted and not (kind.formula and _are_sparse(args))
            if (tensors := [*sources, *(results or written)]) or not is_counted:
                size_bytes = sum(tensor.nbytes for tensor in tensors)
                flops = _flops(kind.formula, func, args, kwargs, outcome) if is_counted and kind.formula else 0
                dtype = _dtype_of(tensors)
                if flops and dtype in _TF32_DTYPES and _multiplies_in_tf32(kind.name):
                    dtype = "tf32"
                self._recorder.count(Operator(kind.name, dtype, flops, size_bytes, is_counted=is_counted))
        return outcome

    def _run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.memory.is_watching:
            return func(*args, **kwargs)
        with self._recorder.stopped():
            self.memory.read(_tensors([args, kwargs]))
        outcome = func(*args, **kwargs)
        with self._recorder.stopped():
            self.memory.made(_tensors([outcome]))
        return outcome


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    leaves = tree_leaves(list(values))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.layout is torch.strided]


def _are_sparse(arguments: Any) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.layout is not torch.strided for leaf in tree_leaves(arguments))


def _dtype_of(tensors: list[Tensor]) -> str:
    of_fractions = [tensor for tensor in tensors if tensor.dtype.is_floating_point or tensor.dtype.is_complex]
    first = (of_fractions or tensors)[:1]
    return name_of(first[0].dtype) if first else "uint8"


def _multiplies_in_tf32(name: str) -> bool:
    """Whether the program's settings let a GPU multiply float32 in TF32, torch's default in convolutions."""
    backends: Any = torch.backends
    by_cudnn = "conv" in name and backends.cudnn.enabled
    return bool((backends.cudnn.conv if by_cudnn else backends.cuda.matmul).fp32_precision == "tf32")


def _flops(
    formula: Callable[..., int], func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], outcome: Any
) -> int:
    """Return the operations of a call; in attention a causal mask's part is left out."""
    flops = int(formula(*args, **kwargs, out_val=outcome))
    given = {**dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)), **kwargs}
    if not given.get("is_causal") or "scaled_dot_product" not in func._schema.name:
        return flops
    queries, keys = given["query"].shape[-2], given["key"].shape[-2]
    both = min(queries, keys)
    return int(flops * (both * (both + 1) // 2 + (queries - both) * keys) // (queries * keys))
