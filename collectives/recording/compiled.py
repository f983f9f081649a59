"""`compiling`: torch.compile runs the program's compiled code as the kernels that a GPU would run, without data.

Dynamo captures the code, and AOTAutograd decides what is saved for the backward pass, as for inductor. In its place,
`fusion.plan` finds the kernels. Each is recorded as one operator, and only what it writes exists as a tensor.
"""

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache, partial, wraps
from itertools import product
from pathlib import Path
from types import CodeType
from typing import Any
from unittest.mock import patch

import torch
from msgspec.structs import replace
from torch import Tensor
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy
from torch._dynamo import config, convert_frame
from torch._dynamo.exc import Unsupported
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.types import ConvertFrameReturn
from torch._dynamo.variables import torch as dynamo_torch
from torch._dynamo.variables.optimizer import OptimizerVariable
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_map_only

from collectives.recording.fake_mode import CachingFakeMode
from collectives.recording.fusion import NAMESPACES, Unit, base_of, is_in_place, is_view, operation, plan, tensors_of
from collectives.recording.operators import OperatorWatch, has_formula
from collectives.recording.placement import CPU, as_on_cuda, device_of, methods_of_torch
from collectives.recording.pretended_gpu import CudaGraph
from collectives.recording.recorder import Recorder
from collectives.recording.replacements import Replacement, replaced, returning, run_within, warn, within
from collectives.recording.without_values import INTEGERS
from ringsim.traces import Operator

aten = torch.ops.aten
EAGER_BACKENDS = ("eager", "aot_eager")  # of torch.compile: they run the operators as they are
MAX_VERSIONS = 10_000  # of a function that is captured; each is for one set of shapes
_DYNAMO = "torch._dynamo."
_CAST = aten._to_copy.default
_LIKE_ANOTHER = aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.new_empty.default
_OPTIONS: dict[str, Any] = {  # of Dynamo
    "automatic_dynamic_shapes": False,
    "assume_static_by_default": True,
    "suppress_errors": True,
    "recompile_limit": MAX_VERSIONS,
    "accumulated_recompile_limit": MAX_VERSIONS,
}
# Tables of functions whose results Dynamo takes for constants.
_CONSTANTS: Any = dynamo_torch.constant_fold_functions, dynamo_torch.constant_fold_functions_need_guards
_RAISED = "raised exception "  # in Dynamo's message
_PACKAGE = __name__.rpartition(".")[0]
_OURS, _TORCH = str(Path(__file__).parent), str(Path(torch.__file__).parent)
# Products that inductor writes into memory that it has.
_INTO_MEMORY = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}


@contextmanager
def not_compiling(in_eager_mode: list[str]) -> Iterator[None]:
    """Make torch.compile only warn within the block, as a GPU's kernels would take other times here.

    in_eager_mode: gets the name of each backend that would fuse operators.
    """

    def stay_eager(backend: Any) -> Callable[[Any], Any]:
        in_eager_mode.append(str(backend))
        message = "torch.compile does nothing while a program is recorded with data: the step is that of eager mode"
        warn(message)
        return _as_it_is

    with _compiling_by(stay_eager):
        yield


@contextmanager
def compiling(recorder: Recorder, in_eager_mode: list[str]) -> Iterator[None]:
    """Let torch.compile capture functions, and run their kernels, within the block.

    in_eager_mode: gets the reasons why parts of the program are not captured.
    """
    optimize: Any = torch._dynamo.optimize

    @cache
    def backend() -> Any:
        for table in _CONSTANTS:
            # Some functions have been replaced.
            table.update({getattr(sys.modules[f.__module__ or "torch"], f.__name__, f): None for f in table})
        mode: Any = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        with _disable_current_modes():  # as modules may make tensors
            return _backend(lambda module, _: Kernels(module, recorder, in_eager_mode, mode))

    dynamo_torch.TorchInGraphFunctionVariable._get_handlers()  # a table of functions, of which some are replaced later
    with (
        config.patch(**_OPTIONS),
        patch.dict(_CONSTANTS[0]),
        patch.dict(_CONSTANTS[1]),
        replaced([*_of_dynamo(), _noting_failures(in_eager_mode)]),
        _compiling_by(lambda _: optimize(backend())),
    ):
        yield
    if in_eager_mode:
        warn(f"{in_eager_mode[0]}: recorded in eager mode; ringsim step prints a range")
    if getattr(sys.modules.get("torch._inductor.config"), "_micro_pipeline_tp", False):
        warn("asynchronous tensor parallelism is recorded as synchronous, which takes longer")


def _of_dynamo() -> Iterator[Replacement]:
    """Yield the replacements with which Dynamo captures within our modes, which it leaves meanwhile."""
    modes: list[Any] = []  # of the program
    capture, call_method = convert_frame.CatchErrorsWrapper.__call__, OptimizerVariable.call_method
    match_constant = GuardBuilder.CONSTANT_MATCH

    def capture_program(wrapper: Any, frame: Any, *state: Any) -> Any:
        if frame.f_code.co_filename.startswith(_OURS):
            return ConvertFrameReturn(frame_exec_strategy=_FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
        modes[:] = _get_current_dispatch_mode_stack()
        # Dynamo itself leaves the modes, but not for DistributedDataParallel.
        with _disable_current_modes(), methods_of_torch():
            return capture(wrapper, frame, *state)

    def call_optimizer(variable: Any, tx: Any, name: str, *arguments: Any) -> Any:
        """Let an optimizer make its state, which Dynamo does not capture, without data."""
        if name != "_init_group":
            return call_method(variable, tx, name, *arguments)
        initialize = variable.value._init_group

        def within_modes(*args: Any, **options: Any) -> Any:
            with ExitStack() as stack:
                for mode in modes:
                    stack.enter_context(mode)
                return initialize(*args, **options)

        with patch.dict(vars(variable.value), {name: within_modes}):
            return call_method(variable, tx, name, *arguments)

    @wraps(match_constant)
    def match_but_for_rates(builder: Any, guard: Any, *rest: Any) -> None:
        """Guard a constant, but no learning rate: inductor's kernels take each as an argument."""
        if not guard.name.endswith("['lr']"):
            match_constant(builder, guard, *rest)

    # Each set of shapes is captured.
    for module, name in product(("torch._dynamo", f"{_DYNAMO}decorators"), ("mark_dynamic", "maybe_mark_dynamic")):
        yield f"{module}.{name}", returning(None)
    yield f"{_DYNAMO}convert_frame.log.warning", returning(None)
    streams = f"{_DYNAMO}variables.streams.SymbolicStreamState"
    yield f"{streams}.__init__", lambda state: setattr(state, "cur_stream_stack", deque())
    yield f"{_DYNAMO}guards.GuardBuilder.TORCH_FUNCTION_STATE", returning(None)  # it has other modes while it captures
    yield f"{_DYNAMO}guards.GuardBuilder.CONSTANT_MATCH", match_but_for_rates
    yield f"{_DYNAMO}convert_frame.CatchErrorsWrapper.__call__", capture_program
    yield f"{_DYNAMO}variables.optimizer.OptimizerVariable.call_method", call_optimizer
    # Dynamo leaves all modes while it captures, but would not begin in one.
    yield "torch.utils._python_dispatch.TorchDispatchMode.ignore_compile_internals", classmethod(returning(True))
    yield "torch.fx.experimental.proxy_tensor.CONSTANT_NUMEL_LIMIT", -1  # constants would be computed on a GPU


def _noting_failures(in_eager_mode: list[str]) -> Replacement:
    describe = vars(convert_frame)["format_error_msg"]

    def note(error: Exception, code: CodeType, *rest: Any) -> str:
        is_own = not code.co_filename.startswith(_TORCH)
        is_raised = _RAISED in str(error)  # by the program, which raises nothing in eager mode
        if not isinstance(error, Unsupported) or is_raised or (is_own and _OURS in str(error)):  # else nobody could
            reason = str(error).partition(_RAISED)[2] if is_raised else str(error)
            in_eager_mode.append(f"torch.compile cannot capture {code.co_name}: {reason}".partition("\n")[0])
        return str(describe(error, code, *rest))

    return f"{_DYNAMO}convert_frame.format_error_msg", note


def _compiling_by(choose: Callable[[Any], Callable[[Any], Any]]) -> AbstractContextManager[object]:
    """Replace torch.compile. choose: returns, for a backend that fuses operators, what compiles by it."""

    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def compile_(model: Any = None, *, backend: Any = "inductor", disable: bool = False, **_: Any) -> Any:
        wrap = _as_it_is if disable or backend in EAGER_BACKENDS else choose(backend)
        return wrap if model is None else wrap(model)

    optimize = "torch._dynamo.optimize", lambda backend="inductor", **_: compile_(backend=backend)
    return replaced([("torch.compile", compile_), optimize])


def _as_it_is(model: Any) -> Any:
    return model


@contextmanager
def noting_scripts(in_eager_mode: list[str]) -> Iterator[None]:
    """Note calls of TorchScript within the block: its operators are watched, though a GPU would fuse them."""

    def note() -> AbstractContextManager[None]:
        in_eager_mode.append("TorchScript")
        return nullcontext()

    with replaced(run_within(note, "torch._C.ScriptFunction.__call__", "torch._C.ScriptMethod.__call__")):
        yield


def _backend(make_kernels: Callable[..., Any]) -> Any:
    from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415  they take seconds to import
    from torch._functorch import partitioners  # noqa: PLC0415
    from torch._inductor import lowering  # noqa: F401, PLC0415  a decomposition of pooling asks for it
    from torch._inductor.decomposition import select_decomp_table  # noqa: PLC0415

    decompositions = select_decomp_table()

    def within_device(tensor: Tensor, *, device: Any = None, **options: Any) -> Any:
        """Cast a tensor. The CPU without index means in torch's C++ where it takes the tensor to be."""
        if device not in (None, CPU, tensor.device):
            return NotImplemented
        if options.get("dtype") in (None, tensor.dtype) and not options.get("memory_format"):
            return aten.alias(tensor)
        return decompositions[_CAST](tensor, **options)

    def in_place_of(tensor: Tensor, *args: Any, device: Any = None, make: Any, **options: Any) -> Tensor:
        """Make a tensor where another one is, in C++ the CPU, as in the backward pass of an index."""
        return make(tensor, *args, device=tensor.device if device == CPU else device, **options)  # type: ignore[no-any-return]

    like_another = {made: partial(in_place_of, make=decompositions[made]) for made in _LIKE_ANOTHER}
    # Random numbers that are drawn again need no state of a generator, where there are none.
    same_numbers = "functionalize_rng_ops", lambda _, forward, backward, __: (forward, backward)
    compile_ = aot_autograd(
        fw_compiler=make_kernels,
        decompositions={**decompositions, **like_another, **_for_lists(), _CAST: within_device},
        partition_fn=within(
            lambda: patch.object(partitioners, *same_numbers), partitioners.min_cut_rematerialization_partition
        ),
        keep_inference_input_mutations=True,
    )
    return as_on_cuda(compile_)


def _for_lists() -> dict[OpOverload, Callable[..., Any]]:
    """Return decompositions, which torch has in C++, of operators on lists into operators on tensors."""
    names = [name for name in dir(torch._C._VariableFunctions) if name.startswith("_foreach_") and name[-1] != "_"]
    operators = [
        getattr(getattr(aten, name), overload) for name in names for overload in getattr(aten, name).overloads()
    ]
    explicit = torch._C.DispatchKey.CompositeExplicitAutograd
    return {
        operator: partial(operator._op_dk, explicit)
        for operator in operators
        if torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeExplicitAutograd")
        and "out" not in operator._overloadname
    }


class Kernels:
    """The kernels of a graph, which run on tensors without data.

    A run empties its list of inputs, so that a tensor is freed after its last use. Where operators are only counted, as
    in the first steps, they are those of the first run, and only what has effects is run again.
    """

    def __init__(
        self, module: GraphModule, recorder: Recorder, in_eager_mode: list[str], mode: CachingFakeMode
    ) -> None:
        self._module, self._recorder, self._in_eager_mode, self._mode = module, recorder, in_eager_mode, mode
        self._boxed_call = True  # AOTAutograd looks for it
        self._inputs = module.graph.find_nodes(op="placeholder")
        (self._outputs,) = module.graph.find_nodes(op="output")
        self._units: list[Unit] | None = None
        self._counted: dict[Callable[..., bool] | None, dict[Unit, list[Operator]]] = {}  # by `_GraphRun.heeds`
        try:
            self._units = plan(module.graph)
            self._needed = {unit for unit in self._units if _has_effects(unit)}
            self._ends = self._last_uses(self._units)
        except Exception as error:
            self._stay_eager(error)

    def __call__(self, inputs: list[Any]) -> Any:
        if self._units is None:
            return Interpreter(self._module).boxed_run(inputs)
        run = _GraphRun(self._module, self._recorder, self._mode, dict(zip(self._inputs, inputs, strict=True)))
        inputs.clear()
        outer, self._recorder.in_graph = self._recorder.in_graph, True
        try:
            run.forget(self._ends[None])
            counted = self._counted.get(run.heeds)
            if counted is None and run.is_seen:
                self._run_all(run, self._units)
            else:
                self._run_needed(run, counted or {})
            return map_arg(self._outputs.args[0], run.value)
        except Exception as error:  # the inputs, of which only the shapes matter, are gone
            self._stay_eager(error)
            return self([run.new(node.meta["val"]) for node in self._inputs])
        finally:
            self._recorder.in_graph = outer

    def _run_all(self, run: "_GraphRun", units: list[Unit]) -> None:
        counted: dict[Unit, list[Operator]] = {}
        for unit in units:
            with self._recorder.noting(counted.setdefault(unit, [])):
                run.do(unit)
            run.forget(self._ends[unit])
        if run.heeds:
            self._counted[run.heeds] = {unit: noted for unit, noted in counted.items() if unit not in self._needed}

    def _run_needed(self, run: "_GraphRun", counted: dict[Unit, list[Operator]]) -> None:
        for unit in self._units or ():
            for operator in counted.get(unit, ()):
                self._recorder.count(operator)
            if unit in self._needed:
                run.do(unit)

    def _stay_eager(self, error: Exception) -> None:
        self._units = None
        self._in_eager_mode.append(f"{type(error).__name__}: {error}".splitlines()[0])

    def _last_uses(self, units: list[Unit]) -> dict[Unit | None, list[Node]]:
        """Return the nodes whose values end with each unit; None: before the first."""
        last: dict[Node, Unit | None] = dict.fromkeys(self._inputs)
        for unit in units:
            last.update((node, unit) for node in [*unit.reads, *unit.writes])
        for source in self._outputs.all_input_nodes:
            last.pop(base_of(source), None)
        ends = defaultdict[Unit | None, list[Node]](list)
        for node, last_unit in last.items():
            ends[last_unit].append(node)
        return ends


def _has_effects(unit: Unit) -> bool:
    """Whether a unit does more than write unknown numbers: where it writes to inputs, or its work depends on data."""
    target: Any = unit.nodes[0].target
    is_plain = isinstance(target, OpOverload) and target.namespace in NAMESPACES and not target._schema.is_mutable
    known = unit.writes
    if is_plain and has_formula(target):  # of the lengths of sequences, in attention
        known = [*unit.writes, *unit.reads]
    has_data = any(_may_have_data(tensor) for node in known for tensor in tensors_of(node))
    return not (unit.space or is_plain) or is_in_place(unit.nodes[0]) or has_data


def _may_have_data(like: Tensor) -> bool:
    return like.dtype in INTEGERS or (like.dim() == 0 and device_of(like) == CPU)


class _UnknownError(Exception):
    """A number depends on unknown ones."""


class _GraphRun:
    """One run of a graph's kernels.

    values: what is in memory. Views, and values in registers, are computed where they are read.
    is_seen: whether the step is watched, or modes of the program, such as a policy for checkpoints, see its operators;
    otherwise only what is needed is computed.
    heeds: what a watch heeds that only counts operators; None: nothing watches, or more is to be seen.
    """

    def __init__(self, module: GraphModule, recorder: Recorder, mode: CachingFakeMode, values: dict[Node, Any]) -> None:
        self._module, self._recorder, self._mode, self._values = module, recorder, mode, values
        modes = _get_current_dispatch_mode_stack()
        self._watch = next((mode for mode in modes if isinstance(mode, OperatorWatch)), None)
        self._has_others = any(not type(mode).__module__.startswith(_PACKAGE) for mode in modes)
        counting = None if recorder.is_stopped else self._watch
        self.is_seen = self._has_others or counting is not None
        sees_more = self._has_others or CudaGraph.is_capturing or (counting and counting.memory.is_watching)
        self.heeds = counting.heeds if counting and not sees_more else None

    def do(self, unit: Unit) -> None:
        if unit.operator is not None and not self._recorder.is_stopped:  # as in a worker of a data loader
            if self._watch:
                self._watch.count(unit.operator, unit.tensors)
            else:
                self._recorder.count(unit.operator)
            CudaGraph.note(self._recorder.count, replace(unit.operator, in_graph=True))
        for node in unit.writes:
            if operation(node) == "copy_" and unit.space is not None:
                self._copy_known(*node.args[:2])
            elif unit.operator is not None and (unit.space or node is unit.nodes[0]):
                self._values[node] = self._known(node)
            else:
                self._values[node] = self._compute(node, self.value)

    def forget(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self._values.pop(node, None)

    def value(self, node: Node) -> Any:
        """Return a node's value; of a kernel that was left out, new tensors."""
        if node in self._values:
            return self._values[node]
        if is_view(node) or node.op == "get_attr":
            return self._compute(node, self.value)
        self._values[node] = self.new(node.meta["val"])
        return self._values[node]

    def new(self, like: Any) -> Any:
        if not isinstance(like, Tensor):
            return tree_map_only(Tensor, self.new, like)
        made = self._mode.new(like, *([*map(int, sizes)] for sizes in (like.shape, like.stride())))
        if self._watch:
            self._watch.memory.made([made])
        return made

    def _compute(self, node: Node, value: Callable[[Node], Any]) -> Any:
        if node.op == "get_attr":
            return getattr(self._module, str(node.target))
        target: Any = node.target
        args, kwargs = map_arg(node.args, value), map_arg(node.kwargs, value)
        if not isinstance(target, OpOverload) or target.namespace not in NAMESPACES:
            return target(*args, **kwargs)  # which may run functions of the program
        with torch._C.DisableTorchFunction():
            if is_in_place(node):
                getattr(getattr(aten, f"{operation(node)}_"), target._overloadname)(*args, **kwargs)
                return args
            if self._has_others and target in _INTO_MEMORY:  # as inductor does
                return target.overloadpacket.out(*args, **kwargs, out=self.new(node.meta["val"]))
            return target(*args, **kwargs)

    def _known(self, node: Node) -> Any:
        like = node.meta["val"]
        if isinstance(like, Tensor) and _may_have_data(like):
            with self._recorder.stopped(), suppress(_UnknownError):
                return self._numbers(node, {})
        return self.new(like)

    def _numbers(self, node: Node, computed: dict[Node, Any]) -> Any:
        value = self._values.get(node, computed.get(node))
        if value is None:
            computed[node] = value = self._compute(node, partial(self._numbers, computed=computed))
        if isinstance(value, FakeTensor):
            raise _UnknownError
        return value

    def _copy_known(self, target: Any, source: Any) -> None:
        """Copy numbers into an input that has data; the contents of other inputs are unknown."""
        written = self.value(target)
        if not isinstance(written, FakeTensor):
            with self._recorder.stopped():
                aten.copy_(written, self._known(source))
