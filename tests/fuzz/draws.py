"""Random calls."""

import math
import random
from dataclasses import replace

from ringsim.registry import ALGORITHMS
from tests.fuzz.calls import COALESCED, EXOTIC, GATHERS, IN_PLACE, NAMES, REDUCING, Call
from tests.fuzz.case import chance
from tests.fuzz.views import COMPLEX_ONLY, READ_ONLY, WRITABLE

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64", "bool")
COMPLEX = ("complex64", "complex128")
DTYPES = (*FLOATS, *FLOATS, *INTEGERS, *COMPLEX)
ORDERED = ("SUM", "PRODUCT", "MIN", "MAX")
BITWISE = ("BAND", "BOR", "BXOR")
GLOOS = ("float32", "float64", "int32", "int64")  # what Gloo's own collectives take, too
MANY = 2**11  # elements; most tensors are shorter
MOST = 300_000


def collective_of(name: str) -> str:
    """What a function does, as `ringsim.Collective` calls it."""
    return name.removesuffix("_coalesced").removesuffix("_tensor").removesuffix("_into")


def algorithms(name: str) -> list[str]:
    """The names of the algorithms of a function."""
    return [algorithm for collective, algorithm in ALGORITHMS if collective.value == collective_of(name)]


def ops(dtype: str) -> tuple[str, ...]:
    """The operations that a dtype has."""
    if dtype in COMPLEX:
        return ("SUM", "AVG")
    if dtype == "bool":
        return (*ORDERED, *BITWISE)
    return (*ORDERED, *BITWISE, "AVG") if dtype in INTEGERS or dtype.startswith("uint") else (*ORDERED, "AVG")


def call(random: random.Random, max_length: int = MOST) -> Call:
    """Any right call of one of our functions."""
    name = random.choice(NAMES)
    dtype = random.choice(EXOTIC if chance(random, 0.04) else DTYPES)
    layouts = (*WRITABLE, *COMPLEX_ONLY) if dtype in COMPLEX else WRITABLE
    drawn = Call(
        name=name,
        shape=shape(random, dtype, max_length),
        dtype=dtype,
        op=random.choice(ops(dtype)) if name in REDUCING else "SUM",
        algorithm=algorithm(random, name),
        layout=random.choice(["plain", random.choice(layouts)]),
        input_layout=random.choice(["plain", random.choice([*layouts, *READ_ONLY])]),
        root=random.randrange(8),
        count=random.randint(1, 4) if name in COALESCED else 1,
        asynchronous=chance(random, 0.4),
    )
    if name in IN_PLACE:
        drawn = replace(drawn, input_layout="plain")
    elif name in GATHERS and chance(random, 0.2):
        drawn = replace(drawn, input_layout="in place")
    return _with_values(random, _with_dtypes_on_the_way(random, drawn))


def _with_dtypes_on_the_way(random: random.Random, drawn: Call) -> Call:
    if drawn.name not in REDUCING or drawn.dtype not in FLOATS or not chance(random, 0.5):
        return drawn
    names = ("", *FLOATS, "float8_e5m2") if chance(random, 0.1) else ("", *FLOATS)
    return replace(drawn, wire=random.choice(names))


def _with_values(random: random.Random, drawn: Call) -> Call:
    if drawn.has_float8:
        return replace(drawn, values="random" if drawn.wire else "exact")
    plain = not drawn.wire and drawn.op in ("SUM", "MIN", "MAX")
    choices = ["exact", "random", "special"] if plain and drawn.dtype in FLOATS else ["exact", "random"]
    return replace(drawn, values=random.choice(choices))


def algorithm(random: random.Random, name: str) -> str:
    """One of the function's, perhaps in segments; "" is the default. "auto" probes, which takes a second."""
    if name == "barrier" or not chance(random, 0.8):
        return ""
    if chance(random, 0.02):
        return "auto"
    segments = f"/{random.randint(1, 6)}" if chance(random, 0.3) else ""
    return random.choice(algorithms(name)) + segments


def shape(random: random.Random, dtype: str, max_length: int = MOST) -> tuple[int, ...]:
    """Of short tensors, of those as long as eager messages may be, and of long ones; up to four dimensions, or none."""
    kind = random.randrange(100)
    if kind < 6:
        return ()
    if kind < 60:
        length = random.choice([0, 1, 2, 3, 4, 5, 7, 8, 13, 97, random.randrange(MANY)])
    elif kind < 85:
        length = max(0, 2 ** random.randint(12, 20) // Call(dtype=dtype).torch_dtype.itemsize + random.randint(-1, 1))
    else:
        length = random.randrange(max_length)
    length = min(length, max_length)
    dims = []
    while len(dims) < 3 and chance(random, 0.4):
        dims.append(random.choice([1, 2, 3, 5]))
    return (*dims, length // math.prod(dims))
