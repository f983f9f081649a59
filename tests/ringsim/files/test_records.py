"""A dataclass describes a file for its writer and its reader; what is wrong is named with place, value and rule."""

import json
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

import pytest

from ringsim.files import FileFormat, check, decode, encode, finite_or_none, parsed, values
from ringsim.files.values import Name
from tests.refusals import refused


class Colour(Enum):
    """Two of them."""

    RED = "red"
    GREEN = "green"


@dataclass(frozen=True)
class Layer:
    """A part."""

    width: Annotated[int, values.whole(1, 8)]
    start_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Model:
    """One field of each kind."""

    name: Name
    num_ranks: int
    colour: Colour
    layers: tuple[Layer, ...]
    skew_s: float | None = field(metadata={"key": "late_s"})
    costs: dict[str, float] = field(default_factory=dict)
    owner: str = field(default="nobody", metadata={"key": "about.owner"})
    notes: Any = None

    def __post_init__(self) -> None:
        if len(self.layers) > self.num_ranks:
            raise ValueError("layers: more than ranks")


MODEL = Model("m", 2, Colour.RED, (Layer(3, (0.5, 1.0)), Layer(8)), None, {"a": 1.5})
DATA = {"name": "m", "num_ranks": 2, "colour": "red", "layers": [{"width": 3, "start_s": [0.5, 1]}, {"width": 8}],
        "late_s": None, "costs": {"a": 1.5}}  # fmt: skip


def test_what_is_written_is_read() -> None:
    """Fields with defaults may be left out; a whole number is a number too; numbers of another record stay.

    A key may be that of an object within, which may be missing, null, or without it.
    """
    assert decode(Model, DATA) == MODEL
    assert decode(Layer, json.loads(json.dumps(encode(MODEL.layers[0])))) == MODEL.layers[0]
    assert (encode(MODEL)["late_s"], encode(MODEL)["colour"]) == (None, "red")
    check(MODEL)
    for about, owner in (({"owner": "me"}, "me"), ({}, "nobody"), (None, "nobody")):
        assert decode(Model, {**DATA, "about": about}, is_open=True).owner == owner
    with refused("about = 3: must be an object"):
        decode(Model, {**DATA, "about": 3}, is_open=True)


def layer(**changes: Any) -> dict[str, Any]:
    """DATA in which the second layer has other values."""
    return DATA | {"layers": [DATA["layers"][0], {"width": 8} | changes]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([1], "[1]: must be a table of keys and values"),
        (DATA | {"colour": "rde"}, 'colour = "rde": must be one of red, green; did you mean red?'),
        (DATA | {"name": ""}, 'name = "": must not be empty'),
        (DATA | {"name": "a\nb"}, 'name = "a\\nb": must be text of one line'),
        (DATA | {"num_ranks": 0}, "num_ranks = 0: must be a whole number from 1 to 131072"),
        (DATA | {"layers": 3}, "layers = 3: must be a list"),
        (DATA | {"late_s": -1}, "late_s = -1: must be seconds, at least 0"),
        (DATA | {"late_s": 2e9}, "late_s = 2000000000.0: must be seconds, at least 0 and at most 1e+09"),
        (DATA | {"costs": {"a b": math.inf}}, "costs.a b = Infinity: must be a finite number"),
        (DATA | {"costs": []}, "costs = []: must be an object"),
        (layer(width=9), "layers[1].width = 9: must be a whole number from 1 to 8"),
        (layer(width=[1] * 99), f"layers[1].width = {str([1] * 99)[:57]}...: must be a whole number from 1 to 8"),
        (DATA | {"costs": {"a": -(10**400)}}, "costs.a = -1000..."),
        (layer(start_s=[0, "x"]), 'layers[1].start_s[1] = "x": must be seconds, at least 0'),
        (layer(widht=9), "layers[1].widht: unknown key; did you mean width? known here are width, start_s"),
        ({key: value for key, value in DATA.items() if key != "late_s"}, "late_s is missing"),
        (DATA | {"layers": [{}]}, "layers[0]: width is missing"),
        (DATA | {"num_ranks": 1}, "layers: more than ranks"),
    ],
)
def test_the_first_that_is_wrong_is_named(data: Any, message: str) -> None:
    """With its place, its value and the rule."""
    with refused(message):
        decode(Model, data)


def test_what_python_made_is_checked() -> None:
    """By the same rules."""
    with refused("width = 0: must be a whole number from 1 to 8"):
        check(Layer(0))
    with refused("start_s: must have at least one entry"):
        check(Layer(1), not_empty=("start_s",))


def test_a_format_has_a_name_and_versions() -> None:
    """Others are refused."""
    form = FileFormat("layers", 3, older=(1, 2), made_by="make layers")
    written = form.write(Layer(1))
    assert written == {"format": "layers", "version": 3, "width": 1, "start_s": []}
    assert form.decode(Layer, written) == Layer(1)
    assert form.read(written | {"version": 1})[1] == 1
    for data in ([], {}, {"format": "other"}):
        with pytest.raises(ValueError, match="^not a layers file; `make layers` writes one$"):
            form.read(data)
    for version in (4, True, None, "3"):
        with refused(f"version {version!r} of layers: this ringsim reads versions up to 3"):
            form.read({"format": "layers", "version": version})


@pytest.mark.parametrize(
    ("parse", "value", "message"),
    [
        (values.whole(3), 2, "x = 2: must be a whole number, at least 3"),
        (values.whole(0), 2**61, f"x = {2**61}: must be a whole number from 0 to {2**60}"),
        (values.size, 0, f"x = 0: must be a whole number of bytes from 1 to {2**40}"),
        (values.rate, "3", 'x = "3": is not a rate: write it as 1.25GB/s or 10Gbit/s'),
        (values.time, 3, 'x = 3: must be text with a unit, such as "10us" or "1.5ms"'),
        (values.truth, 1, "x = 1: must be true or false"),
        (values.whole(), True, "x = true: must be a whole number, at least 0"),
        (values.number(), True, "x = true: must be a finite number"),
    ],
)
def test_values_have_rules(parse: values.Parser, value: Any, message: str) -> None:
    """Each kind of value in the project's files is refused with its own rule; true is no number."""
    with refused(message):
        parsed(parse, value, "x")


def test_what_is_not_finite_becomes_none() -> None:
    """In objects and lists too, and nothing else changes."""
    value = {"rate": math.inf, "times": (1.0, math.nan), "name": "x", "count": 3}
    assert finite_or_none(value) == {"rate": None, "times": [1.0, None], "name": "x", "count": 3}
