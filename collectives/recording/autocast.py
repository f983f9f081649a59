"""`autocast_of_gpus`: autocast on a CPU with the dtypes of a GPU, where other operators compute in float32.

torch's C++ has a kernel of autocast for each operator on its list (`autocast_mode.h`), also the kernels for CUDA in a
build for CPUs. These leave tensors of a CPU as they are, so that only their names are of use.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.library import _scoped_library, fallthrough_kernel
from torch.utils._pytree import tree_map_only

aten = torch.ops.aten
_LISTED = torch._C._dispatch_get_registrations_for_dispatch_key
_KEY = torch._C.DispatchKey.AutocastCPU
_HALVES = torch.float16, torch.bfloat16

# Operators on a GPU's list that compute in a half, or in the widest dtype of their arguments.
_OTHERS = re.compile(
    "convolution|attention|_cell|add(mv|r|cdiv|cmul)$|chain_matmul|einsum|mv$|linalg_multi_dot"
    "|atan2|bilinear$|cross$|v?dot$|grid_sampler|index_put|tensordot|scatter_add"
)
# Operators that convert as they compute, if they are given the dtype.
_CONVERTING = re.compile("(log_)?softmax|cumprod|cumsum|linalg_(vector|matrix)_norm|sum|norm")
# Operators on the list of a CPU that a GPU runs in any dtype, or by operators that are on its list.
_ANY = re.compile(r"cross_entropy_loss|(reflection|replication)_pad\dd|(avg|max|adaptive_avg|adaptive_max)_pool3d")
_FUSED = {"softmax": aten._softmax.default, "log_softmax": aten._log_softmax.default}  # on a GPU


@contextmanager
def autocast_of_gpus(is_fake: bool) -> Iterator[None]:
    """Let autocast on a CPU choose dtypes as on a GPU within the block."""
    on_gpu, on_cpu = ({name.removeprefix("aten::") for name in _LISTED(key)} for key in ("AutocastCUDA", _KEY.name))
    with _scoped_library("aten", "IMPL") as library:
        for name in on_gpu - on_cpu:
            packet = name.partition(".")[0]
            if not _OTHERS.search(packet):
                library.impl(name, _in_float32(packet, is_fake), _KEY.name)
        with warnings.catch_warnings(action="ignore"):  # torch warns of replaced kernels
            for name in filter(_ANY.fullmatch, on_cpu):
                library.impl(name, fallthrough_kernel, _KEY.name, allow_override=True)
        yield


def _in_float32(packet: str, is_fake: bool) -> Callable[..., Any]:
    operator = getattr(aten, packet)

    def compute(*args: Any, **options: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
            if not _CONVERTING.fullmatch(packet):
                return operator(*tree_map_only(Tensor, _as_float32, args), **options)
            if args[0].dtype not in _HALVES or options.get("dtype") or isinstance(args[-1], torch.dtype):
                return operator(*args, **options)
            if is_fake and packet in _FUSED:
                return _FUSED[packet](args[0], args[1], True)
            return operator(*args, **{**options, "dtype": torch.float32})

    return compute


def _as_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _HALVES else tensor
