"""`StepProfile`: the times of a training step of one process, including when each gradient is ready.

`load_layers` makes one from a TOML file of layers, sizes and times (docs/reference/files.md).
"""

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec

from ringsim.files import FileFormat, JsonFile, Record, decode, naming_place, parse_toml, parsed, read_text, values
from ringsim.units import MAX_VALUE, parse_size, whole_number

ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "complex64": 8, "complex128": 16}
MAX_ELEMENTS = MAX_VALUE // 8
MAX_PARAMETERS = 100_000
MAX_SIDES = 16  # of a shape
_Dtype = Annotated[str, values.one_of(*ELEMENT_BYTES)]
_Seconds = Annotated[float, values.number(0, MAX_VALUE, "a finite number of seconds")]


class Parameter(Record, frozen=True):
    """A parameter with a gradient, ready `ready_s` after the start of the backward pass.

    Raises ValueError for a dtype that has no gradients.
    """

    name: values.Text
    elements: Annotated[int, values.whole(0, MAX_ELEMENTS)]
    ready_s: _Seconds
    dtype: _Dtype = "float32"
    device: values.Text = "cpu"

    def __post_init__(self) -> None:
        parsed(_Dtype, self.dtype, "dtype")  # of a model, whose parameters may have any

    @property
    def size_bytes(self) -> int:
        return self.elements * ELEMENT_BYTES[self.dtype]


class StepProfile(JsonFile, frozen=True):
    """One training step without communication; the parameters are in order of registration.

    optimizer_s: of the optimizer's step and all else after the backward pass.
    buffer_bytes: which DDP broadcasts before each forward pass.

    Raises ValueError for too many parameters or bytes, and for a gradient ready after the backward pass.
    """

    parameters: Annotated[tuple[Parameter, ...], values.AT_LEAST_ONE]
    forward_s: _Seconds
    backward_s: _Seconds
    optimizer_s: _Seconds
    buffer_bytes: values.Whole = 0
    provenance: dict[str, Any] = msgspec.field(default_factory=dict)

    FORMAT: ClassVar = FileFormat("ringsim-step-profile", 1, made_by="trainers compare --profile")

    def __post_init__(self) -> None:
        if len(self.parameters) > MAX_PARAMETERS:
            raise ValueError(f"parameters: {len(self.parameters)} of them: must be at most {MAX_PARAMETERS}")
        if self.gradient_bytes > MAX_VALUE:
            raise ValueError(f"gradients of all parameters: {self.gradient_bytes} bytes: must be at most {MAX_VALUE}")
        for parameter in self.parameters:
            if parameter.ready_s > self.backward_s:
                raise ValueError(
                    f"{parameter.name}: ready_s {parameter.ready_s:g}: must not be after the backward pass, "
                    f"which takes {self.backward_s:g} s"
                )

    @property
    def step_s(self) -> float:
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def gradient_bytes(self) -> int:
        return sum(parameter.size_bytes for parameter in self.parameters)

    def order_of_readiness(self) -> list[int]:
        """Return the parameters' indices by readiness; the last registered of equals is first."""
        return sorted(range(len(self.parameters)), key=lambda index: (self.parameters[index].ready_s, -index))


def _size(value: Any) -> int:
    try:
        return parse_size(value)
    except (TypeError, ValueError):
        raise ValueError('must be text with a unit, such as "64KiB"') from None


def _shapes(value: Any) -> tuple[int, ...]:
    """Return the elements of each parameter, from shapes such as "768x3072"."""
    if not isinstance(value, list) or not value:
        raise ValueError('must be a list of shapes, such as ["768x3072", "3072"]')
    return tuple(_elements(item) for item in value)


def _elements(shape: Any) -> int:
    sides = str(shape).split("x")
    if None in map(whole_number, sides) or len(sides) > MAX_SIDES:
        raise ValueError('must be a list of shapes, such as ["768x3072", "3072"]')
    elements = math.prod(map(int, sides))
    if not 1 <= elements <= MAX_ELEMENTS:
        raise ValueError(f"{shape} is {elements} elements: must be from 1 to {MAX_ELEMENTS}")
    return elements


class _Layer(Record, frozen=True):
    """A layer of the file, repeated `repeat` times in sequence."""

    parameters: values.By[tuple[int, ...], _shapes]
    forward: values.Time
    backward: values.Time
    name: values.Text = ""
    repeat: values.Count = 1
    dtype: _Dtype | None = None


class _Model(Record, frozen=True):
    """The whole file."""

    optimizer: values.Time
    layer: Annotated[tuple[_Layer, ...], values.AT_LEAST_ONE]
    source: str = ""
    buffers: values.By[int, _size] = 0
    dtype: _Dtype = "float32"


def load_layers(path: Path) -> StepProfile:
    """Return the step of a TOML file. Raises OSError for an unreadable file, ValueError for an invalid one."""
    text = read_text(path)
    with naming_place(path):
        return _profile(decode(_Model, parse_toml(text)), str(path))


def _profile(model: _Model, file: str) -> StepProfile:
    """Return the step: layers are registered in file order, and the backward pass is in reverse.

    A layer's gradients become ready at the end of its part of the backward pass.
    """
    if sum(len(layer.parameters) * layer.repeat for layer in model.layer) > MAX_PARAMETERS:
        raise ValueError(f"layer: more than {MAX_PARAMETERS} parameters in all")
    one_by_one = [
        (layer, (layer.name or f"layer{number}") + (str(copy) if layer.repeat > 1 else ""))
        for number, layer in enumerate(model.layer)
        for copy in range(layer.repeat)
    ]
    backward_s = sum(layer.backward for layer, _ in one_by_one)
    left_s = backward_s
    parameters: list[Parameter] = []
    for layer, name in one_by_one:
        for index, elements in enumerate(layer.parameters):
            parameters.append(Parameter(f"{name}.{index}", elements, max(left_s, 0.0), layer.dtype or model.dtype))
        left_s -= layer.backward
    return StepProfile(
        tuple(parameters),
        forward_s=sum(layer.forward for layer, _ in one_by_one),
        backward_s=backward_s,
        optimizer_s=model.optimizer,
        buffer_bytes=model.buffers,
        provenance={"file": file, "source": model.source},
    )
