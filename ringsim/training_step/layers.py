"""`read_layers`: a `StepProfile` from a TOML file of layers, sizes and times (docs/reference/files.md)."""

import math
from pathlib import Path
from typing import Any

from ringsim.files import Key, Table, naming_place, parse_toml, read_text, values
from ringsim.training_step.profile import ELEMENT_BYTES, MAX_ELEMENTS, MAX_PARAMETERS, Parameter, StepProfile
from ringsim.units import parse_size, whole_number

MAX_SIDES = 16  # of a shape


def _size(value: Any) -> int:
    try:
        return parse_size(value)
    except (TypeError, ValueError):
        raise ValueError('must be text with a unit, such as "64KiB"') from None


def _shapes(value: Any) -> tuple[int, ...]:
    """Return the elements of each parameter, from shapes such as "768x3072" or numbers."""
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


_LAYER = Table(
    {
        "name": Key("name", values.text),
        "parameters": Key("shapes", _shapes, required=True),
        "forward": Key("forward_s", values.time, required=True),
        "backward": Key("backward_s", values.time, required=True),
        "repeat": Key("repeat", values.count),
        "dtype": Key("dtype", values.one_of(*ELEMENT_BYTES)),
    }
)
_MODEL = Table(
    {
        "source": Key("source", values.any_text),
        "optimizer": Key("optimizer_s", values.time, required=True),
        "buffers": Key("buffer_bytes", _size),
        "dtype": Key("dtype", values.one_of(*ELEMENT_BYTES)),
        "layer": Key("layers", _LAYER, required=True, many=True),
    }
)


def load_layers(path: Path) -> StepProfile:
    """Return the step that the TOML file describes.

    Raises OSError if it cannot be read, ValueError with file, place, value and rule for what is wrong with it.
    """
    return read_layers(read_text(path), str(path))


def read_layers(text: str, file: str) -> StepProfile:
    """Return the step that the text of a TOML file describes; `file` is its name in error messages."""
    with naming_place(file):
        return _profile(_MODEL.read(parse_toml(text), ""), file)


def _profile(model: dict[str, Any], file: str) -> StepProfile:
    """Return the step: layers are registered in the order of the file, and the backward pass begins with the last one.

    The gradients of a layer become ready together when its part of the backward pass is over.
    """
    if sum(len(layer["shapes"]) * layer.get("repeat", 1) for layer in model["layers"]) > MAX_PARAMETERS:
        raise ValueError(f"layer: more than {MAX_PARAMETERS} parameters in all")
    layers = [_repeated(layer, number) for number, layer in enumerate(model["layers"])]
    one_by_one = [layer for copies in layers for layer in copies]
    backward_s = sum(layer["backward_s"] for layer in one_by_one)
    left_s = backward_s
    parameters: list[Parameter] = []
    for layer in one_by_one:
        for index, elements in enumerate(layer["shapes"]):
            dtype = layer.get("dtype", model.get("dtype", "float32"))
            parameters.append(Parameter(f"{layer['name']}.{index}", elements, max(left_s, 0.0), dtype))
        left_s -= layer["backward_s"]
    return StepProfile(
        tuple(parameters),
        forward_s=sum(layer["forward_s"] for layer in one_by_one),
        backward_s=backward_s,
        optimizer_s=model["optimizer_s"],
        buffer_bytes=model.get("buffer_bytes", 0),
        provenance={"file": file, "source": model.get("source", "")},
    )


def _repeated(layer: dict[str, Any], number: int) -> list[dict[str, Any]]:
    name, repeat = layer.get("name", f"layer{number}"), layer.get("repeat", 1)
    return [layer | {"name": name if repeat == 1 else f"{name}{copy}"} for copy in range(repeat)]
