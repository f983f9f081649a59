"""A dataclass describes a file for its writer and its reader; what is wrong is named with place, value and rule."""

import json
import math
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from syrupy.assertion import SnapshotAssertion

from ringsim.files import FileFormat, OpenRecord, Record, decode, encode, finite_or_none, values
from ringsim.files.values import Name
from tests.refusals import said_by


class Colour(Enum):
    """Two of them."""

    RED = "red"
    GREEN = "green"


class Layer(Record, frozen=True):
    """A part."""

    width: Annotated[int, values.whole(1, 8)]
    start_s: tuple[values.Seconds, ...] = ()


class Model(Record, frozen=True):
    """One field of each kind."""

    name: Name
    num_ranks: values.NumRanks
    colour: Colour
    layers: tuple[Layer, ...]
    skew_s: values.Seconds | None = msgspec.field(name="late_s")
    costs: dict[str, values.Number] = msgspec.field(default_factory=dict)
    start: values.Time = 0.0
    unit: Annotated[str, values.one_of("s", "ms")] = "s"
    notes: Any = None

    def __post_init__(self) -> None:
        if len(self.layers) > self.num_ranks:
            raise ValueError("layers: more than ranks")


class Batch(OpenRecord, frozen=True):
    """May be beside others."""

    size: values.Size


MODEL = Model("m", 2, Colour.RED, (Layer(3, (0.5, 1.0)), Layer(8)), None, {"a": 1.5})
DATA = {"name": "m", "num_ranks": 2, "colour": "red", "layers": [{"width": 3, "start_s": [0.5, 1]}, {"width": 8}],
        "late_s": None, "costs": {"a": 1.5}}  # fmt: skip


def test_what_is_written_is_read() -> None:
    """Fields with defaults may be left out; a whole number is a number too; an open record passes over other keys."""
    assert decode(Model, DATA) == MODEL
    assert decode(Layer, json.loads(json.dumps(encode(MODEL.layers[0])))) == MODEL.layers[0]
    assert (encode(MODEL)["late_s"], encode(MODEL)["colour"]) == (None, "red")
    assert decode(Model, {**DATA, "start": "10us", "unit": "ms"}).start == 1e-5
    assert json.dumps(encode({"torch": type("Version", (str,), {})("2.6")})) == '{"torch": "2.6"}'
    assert decode(Batch, {"size": 2, "other": [3], "\ud800": ["\ud800", {"\ud800": 3.0}]}) == Batch(2)


def test_what_a_file_cannot_hold_is_not_written() -> None:
    """A number of a class of numpy's would be read as another one; its own float is a float."""
    assert encode({"time": np.float64(0.5)}) == {"time": 0.5}
    for value in (np.int64(4), np.bool_(True), Path("a")):
        assert said_by(TypeError, encode, {"value": value}).endswith(f"a file cannot hold a {type(value).__name__}")


def layer(**changes: Any) -> dict[str, Any]:
    """Layers of which the second one has other values."""
    return {"layers": [DATA["layers"][0], {"width": 8} | changes]}


WRONG: list[dict[str, Any]] = [
    {"colour": "rde"}, {"name": ""}, {"name": "a\nb"}, {"num_ranks": 0}, {"num_ranks": 1}, {"late_s": -1},
    {"late_s": 2e9}, {"costs": {"a b": math.inf}}, {"costs": []}, {"costs": {"a": -(10**400)}}, {"layers": 3},
    {"layers": [{}]}, layer(width=9), layer(width=[1] * 99), layer(start_s=[0, "x"]), layer(widht=9),
    {"start": 3}, {"start": "3"}, {"start": {}}, {"unit": "sm"}, {"unit": 3}, {"unit": "s\n"}, {"costs": {"a": None}},
    {"x.y": 1}, {"a\nb` - at `$.layers[0]": 1}, {"a` - at `$.x[2]": 1}, {"a` - at `$.name": 1},
    {"` - at `$.num_ranks": 1}, {"layers": [{"` - at `$.name": 1}]},
    {"num_ranks": "\ud800"}, {"\ud800": 1}, {"colour": "\ud800"},
    {"costs": {"\ud800": "\ud800"}}, {"layers": None}, {"layers": {}}, {"colour": []}, {"notes": [], "name": {}},
]  # fmt: skip


def test_the_first_that_is_wrong_is_named(snapshot: SnapshotAssertion) -> None:
    """With its place, its value and the rule."""
    without = {key: value for key, value in DATA.items() if key != "late_s"}
    said = [said_by(ValueError, decode, Model, data) for data in ([1], without, *(DATA | wrong for wrong in WRONG))]
    assert not [message for message in said if "\n" in message]
    assert said == snapshot


def test_the_value_may_be_nested_deeply() -> None:
    """More deeply than it can be shown."""
    nested: Any = []
    for _ in range(2000):
        nested = [nested]
    assert said_by(ValueError, decode, Model, DATA | {"num_ranks": nested}).startswith("num_ranks = [...]: must be a ")
    assert said_by(ValueError, decode, Layer, {"width": {"a": nested}}).startswith("width = {...}: must be a ")


def test_a_format_has_a_name_and_versions(snapshot: SnapshotAssertion) -> None:
    """Others are refused."""
    form = FileFormat("layers", 3, older=(1, 2), made_by="make layers")
    written = form.write(Layer(1))
    assert written == {"format": "layers", "version": 3, "width": 1, "start_s": ()}
    assert decode(Layer, form.read(written)[0]) == Layer(1)
    assert form.read(written | {"version": 1})[1] == 1
    others = [[], {}, {"format": "other"}, *(written | {"version": version} for version in (4, True, None, "3"))]
    assert [said_by(ValueError, form.read, data) for data in others] == snapshot


def test_what_is_not_finite_becomes_none() -> None:
    """In objects and lists too, and nothing else changes."""
    value = {"rate": math.inf, "times": (1.0, math.nan), "name": "x", "count": 3}
    assert finite_or_none(value) == {"rate": None, "times": [1.0, None], "name": "x", "count": 3}
