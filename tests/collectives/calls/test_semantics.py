"""Any call, drawn at random: the bits of the replay, the values of torch's own, the same on all ranks."""

import itertools
import random
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from collectives.runtime import Transport
from collectives.runtime.chunks import rounding_of
from ringsim import Collective
from ringsim.registry import build, size_variant
from ringsim.schedule import rank_program
from tests.collectives.replayed_calls import ALIKE, NAMES, made, replayed
from tests.collectives.travel import travelling
from tests.fuzz import draws
from tests.fuzz.calls import REDUCING, Call
from tests.fuzz.draws import COMPLEX, FLOATS, algorithms
from tests.ranks import RankPool

INTEGERS = ("uint8", "int8", "int32", "int64")
DTYPES = (*FLOATS, *INTEGERS, "bool", *COMPLEX)
LAYOUTS = ("plain", "offset", "strided", "reversed dims", "parameter")
ROOTED = ("broadcast", "reduce")
Seeded = tuple[Call, int]  # with the seed of its data
Result = tuple[bytes, str, str]


def drawn(num_ranks: int, max_length: int) -> list[Seeded]:
    """Any calls that are replayed, and that torch can do."""
    rng = random.Random(num_ranks)
    calls = filter(is_judged, (draws.call(rng, max_length) for _ in itertools.count()))
    roots = ((each, each.root % num_ranks if each.name in ROOTED else 0) for each in itertools.islice(calls, 40))
    return [(replace(each, root=root, values="zeros"), seed) for seed, (each, root) in enumerate(roots)]


def is_judged(call: Call) -> bool:
    """Whether the bits of its result are known, and torch's own call has one of the same kind."""
    is_known = call.name in NAMES and call.dtype in DTYPES and call.algorithm not in ("", "auto")
    keeps_signs = {call.layout, call.input_layout} <= {*LAYOUTS, "conjugated", "in place"}
    return is_known and keeps_signs and not call.has_float8 and (call.op != "AVG" or call.dtype not in INTEGERS)


def carried_out(group: dist.ProcessGroup, transport: Transport, batch: list[Seeded]) -> list[Result]:
    """Our result of each, what is wrong with it, and what is wrong with torch's."""
    results = []
    with travelling(group, transport):
        for call, seed in batch:
            ours = made(call, group, seed)
            results.append((ours.digest(), ours.problem(), problem_of_torch(call, group, seed)))
    return results


def problem_of_torch(call: Call, group: dist.ProcessGroup, seed: int) -> str:
    """How far the result of torch's own call is from what it must be.

    Left out is what it does otherwise: it adds bools as bytes, and leaves anything in the others' tensors of a reduce.
    """
    problem = made(as_torch(call), group, seed).problem()
    is_left_out = call.dtype == "bool" or (call.name == "reduce" and group.rank() != call.root)
    return "" if is_left_out else problem


def as_torch(call: Call) -> Call:
    """The same by torch; from lists and into lists, as Gloo's tensor forms take other shapes."""
    plain = {"layout": "plain", "input_layout": "plain", "algorithm": "", "wire": ""}
    name = call.name.removesuffix("_tensor").removesuffix("_into")
    return replace(call, name=name, through="dist", asynchronous=False, **plain)


def check(ranks: RankPool, num_ranks: int, batch: list[Seeded], transport: Transport = Transport.POSTED) -> None:
    """Carry out the batch and judge each call."""
    by_rank = ranks.run(carried_out, transport, batch, num_ranks=num_ranks)
    for (call, seed), *results in zip(batch, *by_rank, strict=True):
        digests = [digest for digest, *_ in results]
        assert [problems for _, *problems in results] == [["", ""]] * num_ranks, call
        assert digests == replayed(call, seed, num_ranks), call
        if call.name in ALIKE and not call.algorithm.startswith("direct"):
            assert len(set(digests)) == 1, call


@pytest.mark.parametrize(
    ("transport", "max_length"),
    [*((each, 300) for each in Transport), pytest.param(Transport.POSTED, 50_000, marks=pytest.mark.slow)],
)
def test_any_call(ranks: RankPool, transport: Transport, max_length: int) -> None:
    """Bit for bit the replay, alike on all ranks, inputs and neighbours in memory untouched, torch's own values."""
    for num_ranks in range(1, 6):
        check(ranks, num_ranks, drawn(num_ranks, max_length), transport)


def systematic(num_ranks: int) -> list[Seeded]:
    """Every name, algorithm and op, and every dtype with one of them, which a draw may miss."""
    batch = []
    for index, (name, dtype) in enumerate((name, dtype) for name in NAMES for dtype in DTYPES):
        ops = [op for op in draws.ops(dtype) if op != "AVG" or dtype not in INTEGERS]
        for turn in range(max(len(algorithms(name)), len(ops))):
            layout = "conjugated" if dtype in COMPLEX and turn % 2 else LAYOUTS[(index + turn) % len(LAYOUTS)]
            call = Call(
                name=name,
                algorithm=algorithms(name)[(turn + index) % len(algorithms(name))],
                op=ops[turn % len(ops)] if name in REDUCING else "SUM",
                dtype=dtype,
                shape=(2, 7 + turn),
                layout=layout,
                input_layout=layout,
                root=(index + turn) % num_ranks if name in ROOTED else 0,
                values="zeros",
            )
            batch.append((call, index))
    return batch


@pytest.mark.parametrize("num_ranks", [1, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_every_dtype_and_op(ranks: RankPool, num_ranks: int) -> None:
    """All that torch.distributed supports on Gloo, once at least."""
    check(ranks, num_ranks, systematic(num_ranks))


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "double_binary_tree", "hierarchical"])
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5])
def test_rounding_leaves_all_ranks_alike(ranks: RankPool, algorithm: str, num_ranks: int) -> None:
    """Also where two ranks exchange sums: each adds what the other got, not what it holds more exactly itself."""
    call = Call(algorithm=algorithm, shape=(50,), wire="bfloat16", values="random")
    check(ranks, num_ranks, [(call, seed) for seed in (1, 2)])


def test_what_is_not_left_here_is_not_rounded_in_place() -> None:
    """In a reduce-scatter no rank is left with what it has sent."""
    schedule = build(Collective.REDUCE_SCATTER, "ring", 4)
    for rank in range(4):
        assert rounding_of(schedule, rank, rank_program(schedule, rank)) == ((False,) * 3, ())


@pytest.mark.parametrize("wire", ["", "bfloat16"])
def test_an_algorithm_that_depends_on_the_size_counts_bytes_as_they_travel(ranks: RankPool, wire: str) -> None:
    """Where the bytes of the tensor and those on the wire call for different numbers of chunks."""
    length, (narrow, wide) = 40_000, (torch.bfloat16.itemsize, torch.float64.itemsize)
    key = Collective.ALL_REDUCE, "nccl_tree", 2
    assert size_variant(*key, length * narrow) != size_variant(*key, length * wide)
    call = Call(algorithm="nccl_tree", shape=(length,), dtype="float64", wire=wire, values="random")
    check(ranks, 2, [(call, 1)])
