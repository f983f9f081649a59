"""`OperatorWatch`: tells the recorder the operators of a program, with their arithmetic and the memory they touch."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from collectives.calls import name_of
from collectives.recording.memory import MemoryWatch
from collectives.runtime import Recorder
from ringsim.traces import Operator

aten = torch.ops.aten

# They write their first argument without reading it.
_OVERWRITING = {"aten.copy_", "aten._foreach_copy_", "aten.fill_", "aten.zero_", "aten._foreach_zero_"}
# They touch no elements; operators whose results are views say so by their schemas.
_WITHOUT_WORK = {
    "aten._unsafe_view",
    "aten.empty",
    "aten.empty_like",
    "aten.empty_strided",
    "aten.lift_fresh",
    "aten.new_empty",
    "aten.new_empty_strided",
    "aten.record_stream",
    "aten.resize_",
    "aten.set_",
}
# On a GPU they are flash attention, which torch counts.
_COUNTED_LIKE = {
    aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: aten._scaled_dot_product_flash_attention_backward,
}


class _Kind(NamedTuple):
    """The facts about an operator that follow from its schema.

    written: the positions or names of its arguments that it writes. overwritten: those of them that it does not read.
    """

    name: str
    has_work: bool
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
    return _Kind(
        name,
        has_work=not is_view and name not in _WITHOUT_WORK and operator.namespace != "prim",
        written=frozenset(written),
        overwritten=frozenset(overwritten),
    )


class OperatorWatch(TorchDispatchMode):
    """While it is entered, the recorder is told of each operator of the program.

    Of tensors that are made of others, such as DTensors, it tells of these.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self.is_watching = False
        self.memory = MemoryWatch()

    def start(self) -> None:
        """Watch from now on, until `stop`, which may be called in another function."""
        self.is_watching = True
        self.memory = MemoryWatch()
        self.memory.start()
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Watch no longer."""
        self.is_watching = False
        self.memory.stop()
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(is_traceable_wrapper_subclass_type(type_) for type_ in types):
            return NotImplemented  # such a tensor comes first, and then we see the operators on its parts
        kwargs = kwargs or {}
        if func.namespace == "_c10d_functional":
            # Its kernel in C++ copies the tensors, which we shall see, and calls our process groups.
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
        kind = _kind_of(func)
        if self._recorder.is_stopped:
            return func(*args, **kwargs)
        if not kind.has_work:
            return self._run(func, args, kwargs)
        with self._recorder.stopped():
            arguments: dict[int | str, Any] = dict([*enumerate(args), *kwargs.items()])
            sources = _tensors(value for key, value in arguments.items() if key not in kind.overwritten)
        outcome = self._run(func, args, kwargs)
        with self._recorder.stopped():
            results = _tensors([outcome])
            written = _tensors(arguments[key] for key in kind.written if key in arguments)
            if tensors := [*sources, *(results or written)]:
                size_bytes = sum(tensor.nbytes for tensor in tensors)
                flops = _flops(func, args, kwargs, outcome)
                self._recorder.count(Operator(kind.name, _dtype_of(tensors), flops, size_bytes))
        return outcome

    def _run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator; its tensors are memory that is there."""
        if not self.memory.is_watching:
            return func(*args, **kwargs)
        with self._recorder.stopped():
            self.memory.read(_tensors([args, kwargs]))
        outcome = func(*args, **kwargs)
        with self._recorder.stopped():
            self.memory.made(_tensors([outcome]))
        return outcome


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """Return the tensors with a storage that are in values as operators have them."""
    leaves = tree_leaves(list(values))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.layout is torch.strided]


def _dtype_of(tensors: list[Tensor]) -> str:
    """Return the dtype in which is computed: that of the first tensor of fractions, or of the first at all."""
    of_fractions = [tensor for tensor in tensors if tensor.dtype.is_floating_point or tensor.dtype.is_complex]
    first = (of_fractions or tensors)[:1]
    return name_of(first[0].dtype) if first else "uint8"


def _flops(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], outcome: Any) -> int:
    packet = func._overloadpacket
    formula: Callable[..., int] | None = flop_registry.get(_COUNTED_LIKE.get(packet, packet))
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=outcome))
