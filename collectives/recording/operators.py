"""`OperatorWatch`: tells the recorder the operators of a program, with their arithmetic and memory traffic."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from math import prod
from types import SimpleNamespace
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tag, Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import flop_registry

from collectives.calls import name_of
from collectives.recording.attention import FORMULAS
from collectives.recording.memory import MemoryWatch, parts_of
from collectives.recording.operands import DEVICE, OnPlainTensors, named, written
from collectives.recording.placement import PINNED, device_of, place, tensors_in
from collectives.recording.pretended_gpu import CudaGraph
from collectives.recording.recorder import Recorder
from collectives.recording.replacements import Replacement, is_installed
from ringsim.traces import Attention, Operator, Product

aten = torch.ops.aten
_READING = aten._local_scalar_dense.default  # by `item`
_UNSEEN = torch._C.DisableTorchFunction  # else a mode would run for each attribute that is read

# Operators that write their first argument without reading it.
_OVERWRITING = {"aten.copy_", "aten._foreach_copy_", "aten.fill_", "aten.zero_", "aten._foreach_zero_"}
# Operators that touch no elements; the schemas tell which operators return views.
_EMPTY = {"aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty", "aten.new_empty_strided"}
_WITHOUT_WORK = _EMPTY | {
    f"aten.{name}" for name in ("_unsafe_view", "lift_fresh", "record_stream", "resize_", "set_", "is_coalesced")
}


def _product_flops(left: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
    num_products = left.shape[0] if left.dim() == right.dim() == 3 else 1
    return int(2 * num_products * left.shape[-2] * left.shape[-1] * right.shape[-1])


def _sum_flops(_: Tensor, left: Tensor, right: Tensor, *__: Any, **___: Any) -> int:
    """Return the operations of a product that is added to the first tensor, perhaps of another dtype."""
    return _product_flops(left, right)


def _convolution_backward_flops(gradient: Tensor, image: Tensor, weight: Tensor, *options: Any, **_: Any) -> int:
    """Return the operations of the requested gradients, each as many as the convolution's.

    torch's own formula ignores groups of channels.
    """
    is_transposed, is_asked_for = options[4], options[7]
    positions = prod((image if is_transposed else gradient).shape[2:])
    return int(2 * image.shape[0] * positions * weight.numel() * sum(is_asked_for[:2]))


def _distances_flops(left: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
    """Return the operations of the distances of all rows, by a product of matrices or one by one."""
    return int(2 * left.numel() * right.shape[-2])


def _recurrent_flops(inputs: Tensor, of_inputs: Tensor, of_hidden: Tensor, *_: Any, **__: Any) -> int:
    return int(2 * prod(inputs.shape[:-1]) * (of_inputs.numel() + of_hidden.numel()))


def _quantized_flops(left: Tensor, *_: Any, out_val: Tensor, **__: Any) -> int:
    return int(2 * left.shape[-1] * out_val.numel())


_PRODUCTS = aten._int_mm, aten._grouped_mm, aten._scaled_grouped_mm, aten._scaled_grouped_mm_v2, aten._scaled_mm_v2
_ADDING = *(aten.addmm, aten.addmm_, aten._addmm_activation), *(aten.baddbmm, aten.baddbmm_, aten.addbmm, aten.addbmm_)
_FORMULAS: dict[Any, Callable[..., int | None]] = {
    **flop_registry,
    **dict.fromkeys(_PRODUCTS, _product_flops),
    **dict.fromkeys(_ADDING, _sum_flops),
    aten.convolution_backward: _convolution_backward_flops,
    aten._euclidean_dist: _distances_flops,
    aten._cdist_forward: _distances_flops,
    aten._cdist_backward: lambda _, *arguments, **__: 2 * _distances_flops(*arguments),
    aten.mkldnn_rnn_layer: _recurrent_flops,
    aten.mkldnn_rnn_layer_backward: lambda *arguments, **_: 2 * _recurrent_flops(*arguments),
    **FORMULAS,
}
# Products of bitsandbytes, one of whose operands is quantized.
_OF_BITSANDBYTES = "gemm_4bit", "gemv_4bit", "int8_linear_matmul", "int8_scaled_mm"
_QUANTIZED = {f"bitsandbytes.{name}": _quantized_flops for name in _OF_BITSANDBYTES}
_OPERAND: dict[Any, int] = {_sum_flops: 1, _quantized_flops: 0}  # whose dtype is that of the product
# Operators whose work grows with their bytes need no formula: those with a tag or a decomposition, and these.
_TAGS = {Tag.pointwise, Tag.reduction, Tag.view_copy, Tag.inplace_view}
_BY_BYTES = re.compile(
    "foreach|fused_(ada|sgd|gru_cell|lstm_cell|moving)|amp_|assert|check|pool|upsample|norm|grid_sampler|pad|index|gather"
    "|scatter|copy|clone|sort|topk|kthvalue|median|mode|cummax|cummin|cumsum|unique|nonzero|embedding|quantize|hist|bincount"
    "|searchsorted|put_?$|masked|repeat_interleave|segment_reduce|margin_loss|shrink|glu|softmax|full|stack|minmax|relu"
    "|coalesce|sparse_(coo|mask|sum)|resize|scalar|^_?is_|nested|addr|pin_memory|grad$|rescale"
)
_IS_PRODUCT = re.compile("mm|conv|rnn|attention")  # also where torch decomposes it
_LARGE = 2**20  # bytes of tensors on the CPU that matter
_BY_BYTES_ELSEWHERE = {"fsdp", "prims", "rngprims", "profiler", "c10d", "_dtensor"}  # torch's own namespaces
_TF32_DTYPES = {"float32", "complex64"}
# Names of arguments, of the operators whose sizes are known.
_LEFT, _RIGHT = ("mat1", "batch1", "self"), ("mat2", "batch2", "mat_b")
_OFFSETS, _KEYS = ("cum_seq_q", "cu_seq_q", "cu_seqlens_q"), ("max_k", "max_seqlen_k")
_KNOWN = "aten.", "ringsim.", "torch_attn."  # operators with these names of arguments

# Operators that touch only the elements, or the rows, of a table that their index names.
_OF_ELEMENTS = "gather take put_ scatter_ scatter_add_ scatter_reduce_ nll_loss_forward nll_loss_backward"
_OF_ROWS = (
    "embedding _embedding_bag _embedding_bag_forward_only index _unsafe_index index_select index_add_ index_copy_ "
    "index_fill_ index_put_ _index_put_impl_"
)
_BY_ELEMENTS, _BY_ROWS = ({f"aten.{name}" for name in names.split()} for names in (_OF_ELEMENTS, _OF_ROWS))

# Operators that touch only the elements of a tensor that another one, which is sparse, has.
_BY_SPARSE = {"aten.add_", "aten.sub_", "aten.sparse_mask"}


class _Kind:
    """The properties of an operator that follow from its schema."""

    def __init__(self, operator: OpOverload) -> None:
        packet, is_prim = operator._overloadpacket, operator.namespace == "prim"
        self.name = str(packet)
        # A module of torch may add formulas when it is loaded.
        self.formula: Callable[..., int | None] | None = (
            _FORMULAS.get(packet) or flop_registry.get(packet) or _QUANTIZED.get(self.name)
        )
        self.is_counted = self.formula is not None or _works_by_bytes(operator)
        self.has_work = not operator.is_view and self.name not in _WITHOUT_WORK and not is_prim
        # torch runs it as other operators, but dispatches it first in inference mode.
        is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
        self.is_made_of_others = is_composite and self.formula is None and not is_prim
        # Arguments that it writes without reading them.
        outputs = {argument.name for argument in operator._schema.arguments if argument.is_out}
        self.overwritten = {"self"} if self.name in _OVERWRITING else outputs


_kind_of = cache(_Kind)


def has_formula(operator: OpOverload) -> bool:
    """Whether an operator is counted by a formula, which may read its arguments, such as the lengths of sequences."""
    return _kind_of(operator).formula is not None


def _works_by_bytes(operator: OpOverload) -> bool:
    if operator.namespace != "aten":
        return operator.namespace in _BY_BYTES_ELSEWHERE
    name, tags = operator._schema.name.removeprefix("aten::"), operator.tags
    if not _TAGS.isdisjoint(tags) or not any("Tensor" in str(argument.type) for argument in operator._schema.arguments):
        return True
    is_simple = operator in decomposition_table or Tag.nondeterministic_seeded in tags or bool(_BY_BYTES.search(name))
    return is_simple and not _IS_PRODUCT.search(name)


class OperatorWatch(OnPlainTensors):
    """Tells the recorder each operator of the program.

    heeds: which kinds of operators; at first those with a formula, as products and attention, which takes little time.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self.heeds: Callable[[_Kind], bool] = lambda kind: kind.formula is not None
        self.is_watching = False
        self.memory = MemoryWatch(recorder)

    def start(self) -> None:
        self.is_watching = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def watch_memory(self) -> None:
        self.memory = MemoryWatch(self._recorder)
        self.memory.start()

    def stop(self) -> None:
        self.is_watching = False
        self.memory.stop()
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def run(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        if func is _READING and not self._are_on_host([args[0]]):
            self._recorder.synchronize()
        if func is DEVICE or self._recorder.is_stopped:
            return func(*args, **kwargs)
        if func.namespace == "_c10d_functional":
            # Its kernel in C++ copies the tensors, which is watched, and calls our process groups.
            with self:
                outcome = func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
            for made, source in zip(tensors_in(outcome), tensors_in(args), strict=False):
                place(made, device_of(source))
            return outcome
        kind = _kind_of(func)
        if kind.is_made_of_others:
            with self:
                return func.decompose(*args, **kwargs)
        if not (kind.has_work and self.heeds(kind)):
            return self._run(func, args, kwargs)
        with self._recorder.stopped(), _UNSEEN():
            given = named(func, args, kwargs)
            sources = _strided(*(value for name, value in given.items() if name not in kind.overwritten))
        outcome = self._run(func, args, kwargs)
        with self._recorder.stopped(), _UNSEEN():
            results, changed = _strided(outcome), _strided(*(given[name] for name in written(func)))
            is_counted = kind.is_counted and (kind.formula is None or len(tensors_in(args)) == len(_strided(args)))
            if (tensors := [*sources, *(results or changed)]) or not is_counted:
                size_bytes = _traffic(kind.name, given, tensors)
                made = changed[0] if outcome is None and changed else outcome
                flops = kind.formula(*args, **kwargs, out_val=made) if is_counted and kind.formula else 0
                is_counted = is_counted and flops is not None  # it may depend on unknown numbers
                sizes = _sizes_of(kind.name, given, int(flops)) if flops else {}
                operand = _OPERAND.get(kind.formula)
                dtype = dtype_of(tensors if operand is None else _strided(args[operand : operand + 1]))
                if flops and dtype in _TF32_DTYPES and _multiplies_in_tf32(kind.name):
                    dtype = "tf32"
                operator = Operator(kind.name, dtype, int(flops or 0), size_bytes, is_counted=is_counted, **sizes)
                self.count(operator, tensors)
        return outcome

    def count(self, operator: Operator, tensors: list[Tensor]) -> None:
        """Count an operator or a kernel of compiled code. tensors: what it reads and writes."""
        if self._are_on_host(tensors):
            if operator.size_bytes <= _LARGE:  # it takes no kernel, such as Adam's reading of its steps
                return
            if any(isinstance(tensor, FakeTensor) for tensor in tensors):  # a data loader's have data
                operator = replace(operator, name=f"{operator.name} on the CPU", is_counted=False)
        elif _is_transfer(operator.name, tensors):
            operator = replace(operator, is_transfer=True)
        self._recorder.count(operator)

    def _are_on_host(self, tensors: list[Tensor]) -> bool:
        """Whether a program with tensors on a GPU computes on the CPU, as an offloaded optimizer does."""
        on_cpu = bool(tensors) and all(device_of(tensor).type == "cpu" for tensor in tensors)
        return on_cpu and self.memory.is_on_gpu

    def _run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.memory.is_watching:
            return func(*args, **kwargs)
        with self._recorder.stopped(), _UNSEEN():
            self.memory.read(_strided(args, kwargs))
        outcome = func(*args, **kwargs)
        with self._recorder.stopped(), _UNSEEN():
            self.memory.made(_strided(outcome))
        return outcome


def _is_transfer(name: str, tensors: list[Tensor]) -> bool:
    """Whether an operator copies between CPU and GPU.

    Of a copy into a tensor, one of the two must be pinned: buckets that DistributedDataParallel makes in C++ are on the
    GPU, and seem to be on the CPU.
    """
    is_copy = name.endswith("copy_") and any(hasattr(tensor.untyped_storage(), PINNED) for tensor in tensors)
    return (is_copy or name == "aten._to_copy") and len({device_of(tensor).type for tensor in tensors}) > 1


def kernels_of_triton(recorder: Recorder, overwrite: Callable[[list[Tensor]], None]) -> Iterator[Replacement]:
    """Yield replacements that record each launch of a Triton kernel, whose operations are not counted.

    overwrite: is told the tensors that the kernel may have written.
    """
    if not is_installed("triton"):
        return
    runtime, compiler = import_module("triton.runtime"), import_module("triton.backends.compiler")

    def launch(kernel: Any, *args: Any, grid: Any = None, warmup: bool = False, **options: Any) -> None:  # noqa: ARG001
        while not isinstance(kernel, runtime.JITFunction):
            kernel = kernel.fn
        tensors = _strided(args, options)
        with recorder.stopped():
            size_bytes = sum(tensor.nbytes for tensor in tensors)
            operator = Operator(f"triton.{kernel.__name__}", dtype_of(tensors), 0, size_bytes, is_counted=False)
            overwrite(tensors)
        recorder.count(operator)
        CudaGraph.note(launch, kernel, *args, **options)

    yield from ((f"triton.runtime.{kind}.run", launch) for kind in ("Autotuner", "Heuristics", "JITFunction"))
    target = compiler.GPUTarget("cuda", 90, 32)  # of an H100, for which torch.compile finds what a kernel writes
    active = SimpleNamespace(get_current_target=lambda: target, get_current_device=lambda: 0)
    yield "triton.runtime:driver._active", active


def _strided(*values: Any) -> list[Tensor]:
    parts = (part for tensor in tensors_in(*values) for part in parts_of(tensor))
    return [part for part in parts if part.layout is torch.strided]


def dtype_of(tensors: list[Tensor]) -> str:
    """Return the name of the dtype of a computation."""
    of_fractions = [tensor for tensor in tensors if tensor.dtype.is_floating_point or tensor.dtype.is_complex]
    first = (of_fractions or tensors)[:1]
    return name_of(first[0].dtype) if first else "uint8"


def _multiplies_in_tf32(name: str) -> bool:
    """Whether the settings let a GPU multiply float32 in TF32, torch's default in convolutions."""
    backends: Any = torch.backends
    by_cudnn = "conv" in name and backends.cudnn.enabled
    return bool((backends.cudnn.conv if by_cudnn else backends.cuda.matmul).fp32_precision == "tf32")


def _traffic(name: str, given: dict[str, Any], tensors: list[Tensor]) -> int:
    """Return the bytes that an operator reads and writes.

    given: its arguments by torch's names. tensors: what it reads and writes.
    """
    other = _first(given, ("other", "mask")) if name in _BY_SPARSE else None
    if isinstance(other, Tensor) and other.layout is torch.sparse_coo:
        touched = other._values().nbytes
        return sum(min(tensor.nbytes, touched) if tensor is given["self"] else tensor.nbytes for tensor in tensors)
    if name not in _BY_ELEMENTS | _BY_ROWS:
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
    row = table.numel() // max(1, prod(table.shape[dim] for dim in dims)) if name in _BY_ROWS else 1
    return int(min(table.nbytes, num_indices * row * table.itemsize))


def _sizes_of(name: str, given: dict[str, Any], flops: int) -> dict[str, Any]:
    """Return the known fields `product` or `attention` of an `Operator`.

    given: its arguments by torch's names. flops: of the call.
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
    return next((given[name] for name in names if given.get(name) is not None), None)


def _product(left: Tensor, right: Tensor) -> Product:
    """Return the product; of experts, which have some rows of a matrix each, as if equally many."""
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    count = max((tensor.shape[0] for tensor in (left, right) if tensor.dim() == 3), default=1)
    return Product(m // count if left.dim() < right.dim() else m, n, k, count)


def _convolution(given: dict[str, Any], flops: int) -> Product | None:
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
