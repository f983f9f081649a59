"""The GPU that `pretended_cuda` shows: what torch.cuda and its neighbours answer, as of an idle H100, or refuse.

What needs no code is in `pretended_gpu.toml`.
"""

import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn
from uuid import UUID

import torch
from torch import Tensor
from torch._C._distributed_c10d import FakeProcessGroup
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import distributed_c10d
from torch.nn.modules._functions import SyncBatchNorm
from torch.utils._python_dispatch import _disable_current_modes

from collectives.recording.operands import OnPlainTensors
from collectives.recording.placement import tensors_in
from collectives.recording.replacements import Replacement, fixing, is_installed, returning
from ringsim.gpus import load_gpu

_device = torch.device
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
# A recent GPU: programs choose dtypes and kernels by its capability, and sizes by its memory.
NAME, VERSION, GPU = "NVIDIA H100 80GB HBM3 (pretended by ringsim trace)", "12.8", load_gpu("h100")
NCCL_VERSION = 2, 27, 5  # hooks of DDP that send bfloat16 ask for NCCL 2.10
_PROPERTIES: Any = object.__new__(torch.cuda._CudaDeviceProperties)  # a constant for Dynamo
vars(_PROPERTIES).update(_TABLE["properties"], name=NAME, total_memory=GPU.memory_bytes, uuid=UUID(int=0))
_PROPERTIES.multi_processor_count = GPU.multiprocessors
_MEMORY = GPU.memory_bytes, GPU.memory_bytes  # free, and in all

_MODULES: list[ModuleType] = [resolve_name(module) for module in _TABLE["modules"]]


def _is_capturing() -> bool:
    """Let SyncBatchNorm keep ranks without images; otherwise it would read the counts of all ranks."""
    return bool(sys._getframe(1).f_globals.get("__name__") == SyncBatchNorm.__module__)


class NeedsGpuError(AttributeError, RuntimeError):
    """A call that needs a real GPU; for `hasattr`, an attribute that torch lacks."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} needs a real GPU; ringsim trace only pretends to have one: leave it out there")


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise NeedsGpuError(name)

    return refuse


_BY_CPP = "this call"  # torch's initialization of CUDA
_OF_CUDA = _BY_CPP, "_broadcast", "_c", "_C", "_dump", "_gather", "_host", "_n", "_scatter"  # names of torch._C


def _refuse_missing(name: str = _BY_CPP) -> None:
    """Refuse what torch's C++ has for CUDA only, under the name of the calling function of torch.cuda."""
    caller = sys._getframe(1)
    module = caller.f_globals.get("__name__", "")
    if name == _BY_CPP and not module.startswith("torch.cuda") and active_fake_mode() is not None:
        return  # torch's C++ makes a tensor without data
    if name.startswith(_OF_CUDA):
        raise NeedsGpuError(f"{module}.{caller.f_code.co_name}" if module.startswith("torch.") else name)
    raise AttributeError(f"module 'torch._C' has no attribute {name!r}")


class _Event(torch.cpu.Event):
    """A stream's event, which has happened once it is recorded."""

    cuda_event = event_id = 0
    ipc_handle = from_ipc_handle = _refusing("torch.cuda.Event.ipc_handle")

    def __init__(self, *_: object, **__: object) -> None:
        self._recorded_s = 0.0
        self.device = _device("cuda", torch.cuda.current_device())

    def record(self, stream: Any = None) -> None:
        super().record(stream)
        self._recorded_s = time.perf_counter()

    def elapsed_time(self, end_event: "_Event") -> float:
        return (end_event._recorded_s - self._recorded_s) * 1e3


def _make_stream(stream: Any, *given: Any, priority: int = 0, **_: Any) -> None:
    stream.priority = given[1] if len(given) > 1 else priority


def _enter_stream(stream: Any) -> Any:
    stream._context = torch.cpu.stream(stream)
    stream._context.__enter__()
    return stream


def stand_in(name: str, make: Callable[..., Any], has: Callable[[Any], bool], **attributes: Any) -> type:
    """Return a class, usable in annotations, whose instances are made and recognised by functions."""

    class Meta(type):
        def __call__(cls, *args: Any, **options: Any) -> Any:
            return make(*args, **options)

        def __instancecheck__(cls, instance: object) -> bool:
            return has(instance)

    return Meta(name, (), attributes)


def _address_of_stream(stream: Any) -> int:
    return 0 if stream is torch.cpu._default_cpu_stream else id(stream)


# What CUDA streams have and torch's placeholders for a CPU lack.
_OF_STREAMS: dict[str, Any] = {
    "__init__": _make_stream,
    "__enter__": _enter_stream,
    "__exit__": lambda stream, *error: stream._context.__exit__(*error),
    **dict.fromkeys(("cuda_stream", "native_handle", "stream_id"), property(_address_of_stream)),
    "device": property(lambda _: _device("cuda", torch.cuda.current_device())),
    "device_index": property(lambda _: torch.cuda.current_device()),
    "device_type": 1,
    "priority": 0,
    "priority_range": staticmethod(returning((0, -3))),  # torch's, of CUDA's 0 to -5
}


class _MemPool:
    """A torch.cuda.MemPool, which has no memory."""

    id, allocator = (0, 1), None
    __init__, use_count, snapshot = returning(None), returning(1), returning([])


class CudaGraph(OnPlainTensors):
    """A torch.cuda.CUDAGraph; a replay runs the captured operators again."""

    is_capturing = False  # one of them
    _latest: "list[tuple[Any, Any, Any, Any]]"  # captured by the latest one

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._captured: list[tuple[Any, Any, Any, Any]] = []  # operators, their arguments, and what they returned

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        outcome = func(*args, **kwargs)
        self._captured.append((func, args, kwargs, outcome))
        return outcome

    @staticmethod
    def note(launch: Callable[..., None], *args: Any, **options: Any) -> None:
        """Capture a kernel that no operator launches, if a graph is being captured."""
        if CudaGraph.is_capturing:
            CudaGraph._latest.append((launch, args, options, None))

    def capture_begin(self, *_: object, **__: object) -> None:
        self._captured.clear()
        CudaGraph.is_capturing, CudaGraph._latest = True, self._captured
        self.__enter__()  # type: ignore[no-untyped-call]

    def capture_end(self) -> None:
        CudaGraph.is_capturing = False
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, outcome in self._captured:
                again = func(*args, **kwargs)
                for old, new in zip(tensors_in(outcome), tensors_in(again), strict=True):
                    if new is not old and not isinstance(new, FakeTensor):
                        with _disable_current_modes():
                            old.detach().copy_(new)

    instantiate = reset = enable_debug_mode = debug_dump = returning(None)
    pool = returning((0, 1))
    raw_cuda_graph = raw_cuda_graph_exec = _refusing("torch.cuda.CUDAGraph.raw_cuda_graph")


def _tensor_type(name: str, dtype: torch.dtype) -> type:
    def make(*given: Any, **_: Any) -> Tensor:
        if len(given) == 1 and not isinstance(given[0], int | torch.Size):
            return torch.as_tensor(given[0], dtype=dtype, device="cuda")
        return torch.empty(*(given or (0,)), dtype=dtype, device="cuda")

    def has(thing: object) -> bool:
        return isinstance(thing, Tensor) and thing.dtype is dtype

    return stand_in(name, make, has, dtype=dtype, is_cuda=True, __module__="torch.cuda")


_TENSOR_TYPES: dict[str, Any] = {
    name: _tensor_type(name, kind.dtype) for name, kind in vars(torch.cuda).items() if name.endswith("Tensor")
}
_DTYPES: dict[Any, torch.dtype] = {
    **{f"torch.cuda.{name}": kind.dtype for name, kind in _TENSOR_TYPES.items()},
    **{kind: kind.dtype for kind in _TENSOR_TYPES.values()},
}
_TYPE, _SET_DEFAULT_TYPE = Tensor.type, torch.set_default_tensor_type


def _to_type(tensor: Tensor, dtype: Any = None, *rest: Any, **options: Any) -> Any:
    if dtype in _DTYPES:
        return tensor.to("cuda", _DTYPES[dtype])
    outcome = _TYPE(tensor, dtype, *rest, **options)
    # A mode for functions calls this function again, so that the name may already be that of the GPU's type.
    return f"torch.cuda.{outcome.rpartition('.')[2]}" if dtype is None and tensor.is_cuda else outcome


def _set_default_type(given: Any) -> None:
    if given not in _DTYPES:
        return _SET_DEFAULT_TYPE(given)
    torch.set_default_dtype(_DTYPES[given])
    return torch.set_default_device("cuda")


class _NcclOptions(FakeProcessGroup.Options):
    """ProcessGroupNCCL.Options, which change nothing."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__()  # type: ignore[call-arg]
        self.is_high_priority_stream, self.config = is_high_priority_stream, SimpleNamespace()
        self.split_from, self.split_color = None, 0


# The backends of all recorded groups are its instances.
_NCCL = stand_in(
    "ProcessGroupNCCL",
    _refusing("ProcessGroupNCCL()"),
    lambda backend: isinstance(backend, FakeProcessGroup),
    Options=_NcclOptions,
    NCCLConfig=SimpleNamespace,
)
_OF_C10D = "torch._C._distributed_c10d", "torch.distributed.distributed_c10d", "torch.distributed"
_BACKEND = f"{_OF_C10D[0]}.FakeProcessGroup"
EXTENDED = "torch.cpu.Stream", "torch._C", _BACKEND, *_OF_C10D  # which get what a CPU's torch lacks


def _answers(num_devices: int) -> dict[str, Any]:
    current, is_initialized = [0], [False]

    def initialize() -> None:
        is_initialized[0] = True

    def current_device(*_: object) -> int:
        initialize()
        return current[0]

    def set_device(device: Any) -> None:
        initialize()
        index = torch.cuda._utils._get_device_index(device, optional=True)
        current[0] = index if index >= 0 else current[0]

    def set_stream(stream: Any) -> None:
        torch.cpu._current_stream = stream

    names = {name for module in _MODULES for name, value in vars(module).items() if isfunction(value)}
    returned = {
        **{name: None for name in names if name.startswith(tuple(_TABLE["nothing"]))},
        **{name: 0 for name in names if name.startswith(tuple(_TABLE["zero"]))},
        **dict.fromkeys(_TABLE["none"]),
        **{name: defaultdict(int) for name in _TABLE["counters"]},
        **_TABLE["answers"],
        "current_accelerator": _device("cuda"),
        "cudart": SimpleNamespace(
            cudaMemGetInfo=returning(_MEMORY), **{name: returning(0) for name in _TABLE["cudart"]}
        ),
        "device_count": num_devices,
        "get_device_name": NAME,
        "get_device_capability": (_PROPERTIES.major, _PROPERTIES.minor),
        "get_device_properties": _PROPERTIES,
        "get_memory_info": _MEMORY,
        "graph_pool_handle": (0, 1),
        "mem_get_info": _MEMORY,
        "memory_summary": NAME,
    }
    return {
        **{name: returning(value) for name, value in returned.items()},
        **_TENSOR_TYPES,
        **dict.fromkeys(_TABLE["current"], current_device),
        **{name: partial(set_device) for name in ("set_device", "set_device_index", "set_device_idx")},
        "device_index": lambda _: nullcontext(),
        "init": initialize,
        "is_initialized": lambda: is_initialized[0],
        "default_generators": (torch.default_generator,) * num_devices,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * num_devices,
        "is_current_stream_capturing": _is_capturing,
        **{name: getattr(torch.cpu, name) for name in ("Stream", "StreamContext", "stream", "current_stream")},
        "ExternalStream": type("ExternalStream", (torch.cpu.Stream,), {}),
        "get_stream_from_external": lambda *_, **__: torch.cpu.Stream(),
        "default_stream": lambda *_, **__: torch.cpu._default_cpu_stream,
        "set_stream": set_stream,
        "Event": _Event,
        **dict.fromkeys(("CUDAGraph", "Graph"), CudaGraph),
        "make_graphed_callables": lambda callables, *_, **__: callables,
        "MemPool": _MemPool,
        "use_mem_pool": lambda *_, **__: nullcontext(),
        "_lazy_init": _refuse_missing,
    }


def _adam_of_deepspeed(_: int, __: Tensor, lists: list[list[Tensor]], *numbers: float) -> None:
    """Update parameters by torch's fused Adam. lists: gradients, parameters, and both moments."""
    lr, beta1, beta2, eps, step, is_adamw, _bias_corrected, weight_decay = numbers
    gradients, parameters, *moments = lists
    steps = [torch.full((), float(step), device=gradients[0].device)] * len(gradients)
    options = {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": weight_decay, "eps": eps}
    update: Any = torch._fused_adamw_ if is_adamw else torch._fused_adam_
    update(parameters, gradients, *moments, [], steps, **options, amsgrad=False, maximize=False)


class _CpuAdam:
    """DeepSpeed's Adam for parameters that it offloads to the CPU, one after the other."""

    def __init__(self) -> None:
        self._is_adamw: dict[int, bool] = {}  # by the optimizer's number

    def create_adam(self, number: int, *given: Any) -> None:
        self._is_adamw[number] = given[-2]  # before whether to log

    def adam_update(self, number: int, step: int, *given: Any) -> None:
        *numbers, weight_decay, bias_corrected, parameter, gradient, first, second = given
        lists = [[tensor] for tensor in (gradient, parameter, first, second)]
        _adam_of_deepspeed(0, parameter, lists, *numbers, step, self._is_adamw[number], bias_corrected, weight_decay)

    destroy_adam = returning(None)


def kernels_of_deepspeed() -> Iterator[Replacement]:
    """Yield the replacement for the kernels that DeepSpeed's default optimizers compile."""
    if is_installed("deepspeed"):
        load = import_module("torch.utils.cpp_extension").load
        known = {"fused_adam": SimpleNamespace(multi_tensor_adam=_adam_of_deepspeed), "cpu_adam": _CpuAdam()}
        yield "torch.utils.cpp_extension.load", lambda name, *args, **kw: known.get(name) or load(name, *args, **kw)


def devices(num_devices: int) -> Iterator[Replacement]:
    """Yield the replacements that show `num_devices` GPUs."""
    answers = _answers(num_devices)
    for module in _MODULES:
        yield from ((f"{module.__name__}.{name}", answers[name]) for name in answers.keys() & vars(module).keys())
    yield from ((f"torch.cpu.Stream.{name}", value) for name, value in _OF_STREAMS.items())
    yield "torch.Stream", torch.cpu.Stream
    yield "torch.Event", _Event
    yield "torch._C._cuda_getCurrentRawStream", lambda _: _address_of_stream(torch.cpu.current_stream())
    yield "torch.version.cuda", VERSION
    yield "torch.cuda.nccl.version", returning(NCCL_VERSION)
    yield "torch.Tensor.type", _to_type
    yield "torch.set_default_tensor_type", _set_default_type
    yield from kernels_of_deepspeed()
    # Of the CPU: for each operator, torch would warn that there is no event of CUDA.
    yield fixing("torch.autograd.profiler.profile.__init__", use_cpu=True, use_cuda=False, use_device=None)
    yield from ((f"{module}.ProcessGroupNCCL", _NCCL) for module in _OF_C10D)
    yield "torch.distributed.distributed_c10d.default_pg_nccl_timeout", distributed_c10d.default_pg_timeout
    yield f"{_BACKEND}.uid", 0
    yield f"{_BACKEND}.mem_allocator", property(_refusing("ProcessGroupNCCL.mem_allocator"))
    yield from ((f"{module}.__getattr__", _refuse_missing) for module in ("torch._C", _OF_C10D[0]))
    for functions in _TABLE["elsewhere"]:
        answers = {**dict.fromkeys(functions.get("nothing", ())), **functions.get("answers", {})}
        yield from ((f"{functions['owner']}.{name}", returning(answer)) for name, answer in answers.items())
        for name in functions.get("refused", ()):
            yield f"{functions['owner']}.{name}", _refusing(functions["refused_as"].format(name))
