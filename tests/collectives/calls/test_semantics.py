"""Any call, drawn at random: the bits of the replay, the values of torch's own, the same on all ranks."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from collectives.runtime.transport import Transport
from ringsim import Collective
from ringsim.registry.algorithms import ALGORITHMS
from tests.collectives.case import COLLECTIVE_OF, REDUCING, Case, expected, ours, theirs
from tests.collectives.travel import travelling
from tests.ranks import RankPool

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]
DTYPES = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]
ORDERED = ["SUM", "PRODUCT", "MIN", "MAX"]
LAYOUTS = ["plain", "offset", "strided", "transposed"]


def ops(dtype: torch.dtype) -> list[str]:
    """What torch.distributed can do with it."""
    if dtype.is_complex:
        return ["SUM", "AVG"]
    return [*ORDERED, "AVG"] if dtype.is_floating_point else [*ORDERED, "BAND", "BOR", "BXOR"]


@st.composite
def cases(draw: st.DrawFn, num_ranks: int, max_length: int) -> Case:
    """Any call of any collective."""
    name = draw(st.sampled_from(list(COLLECTIVE_OF)))
    collective, dtype = COLLECTIVE_OF[name], draw(st.sampled_from(DTYPES))
    real = collective in REDUCING and dtype.is_floating_point
    return Case(
        name=name,
        algorithm=draw(st.sampled_from([algorithm for of, algorithm in ALGORITHMS if of is collective])),
        op=draw(st.sampled_from(ops(dtype))) if collective in REDUCING else "SUM",
        dtype=dtype,
        length=draw(st.integers(0, 30) | st.integers(0, max_length)),
        layout=draw(st.sampled_from([*LAYOUTS, "conjugated"] if dtype.is_complex else LAYOUTS)),
        root=draw(st.integers(0, num_ranks - 1)) if name in {"broadcast", "reduce"} else 0,
        accumulate=draw(st.sampled_from([None, torch.float32, torch.float64])) if real else None,
        wire=draw(st.sampled_from([None, torch.bfloat16, torch.float16, torch.float32])) if real else None,
        asynchronous=draw(st.booleans()),
        seed=draw(st.integers(0, 10**6)),
    )


@st.composite
def batches(draw: st.DrawFn, max_length: int) -> tuple[int, list[Case]]:
    """A number of ranks, and many calls for them to do one after the other."""
    num_ranks = draw(st.integers(1, 5))
    return num_ranks, draw(st.lists(cases(num_ranks, max_length), min_size=10, max_size=60))


def carried_out(group: dist.ProcessGroup, transport: Transport, batch: list[Case]) -> list[tuple[bytes, bytes]]:
    """Our result and torch's, of each."""
    with travelling(group, transport):
        return [(ours(case, group), theirs(case, group)) for case in batch]


def assert_right(case: Case, results: list[tuple[bytes, bytes]]) -> None:
    """What every rank must hold. results: by rank, ours and torch's."""
    num_ranks = len(results)
    got = [own for own, _ in results]
    assert got == expected(case, num_ranks)
    if case.collective.value in {"all_reduce", "all_gather", "broadcast"} and case.algorithm != "direct":
        assert len(set(got)) == 1
    concerned = [case.root] if case.name == "reduce" else range(num_ranks)
    for rank in concerned:
        mine, other = (numbers(each, case.dtype) for each in results[rank])
        if rounds(case):
            assert np.all(np.abs(mine - other) <= allowed(case, rank, num_ranks)), rank
        else:
            assert np.array_equal(mine, other), rank


def rounds(case: Case) -> bool:
    """Whether the result depends on the order of the operations or the dtype that travels."""
    if not (case.dtype.is_floating_point or case.dtype.is_complex) or case.collective not in REDUCING:
        return False
    return case.op in {"SUM", "AVG", "PRODUCT"} or case.wire is not None or case.accumulate is not None


def numbers(content: bytes, dtype: torch.dtype) -> np.ndarray:
    """The elements, in a dtype that NumPy has."""
    tensor = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.zeros(0, dtype=dtype)
    return (tensor.double() if dtype.is_floating_point else tensor).numpy()


def allowed(case: Case, rank: int, num_ranks: int) -> np.ndarray:
    """How far two orders of additions, each with its roundings, may lie apart: for each element, from its summands."""
    whole = (
        torch.stack([torch.cat(case.parts(each, num_ranks)) for each in range(num_ranks)]).to(torch.complex128).abs()
    )
    mine = whole.view(num_ranks, num_ranks, -1)[:, rank] if case.collective is Collective.REDUCE_SCATTER else whole
    scale = mine.prod(0) if case.op == "PRODUCT" else mine.amax(0) if case.op in {"MIN", "MAX"} else mine.sum(0)
    rounded_to = [torch.finfo(each) for each in (case.dtype, case.wire, case.accumulate) if each is not None]
    coarsest, tiniest = max(each.eps for each in rounded_to), max(each.smallest_normal for each in rounded_to)
    return (2 * (num_ranks + 1) * (coarsest * scale + tiniest)).numpy()


def check(ranks: RankPool, num_ranks: int, batch: list[Case], transport: Transport = Transport.POSTED) -> None:
    """Carry out the batch and judge each case."""
    by_rank = ranks.run(carried_out, transport, batch, num_ranks=num_ranks)
    for case, *results in zip(batch, *by_rank, strict=True):
        assert_right(case, results)


# Not shrunk: the assertion names one case, which is small, and to run thousands more takes longer than to read it.
COMMON = {
    "phases": (Phase.explicit, Phase.reuse, Phase.generate),
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@pytest.mark.parametrize("transport", list(Transport))
@settings(max_examples=10, **COMMON)
@given(batches(max_length=300))
def test_any_call(ranks: RankPool, transport: Transport, batch: tuple[int, list[Case]]) -> None:
    """Bit for bit the replay, alike on all ranks, inputs and neighbours in memory untouched, torch's own values."""
    check(ranks, *batch, transport)


@pytest.mark.slow
@settings(max_examples=600, **COMMON)
@given(batches(max_length=50_000))
def test_any_call_at_length(ranks: RankPool, batch: tuple[int, list[Case]]) -> None:
    """The same, more of it, with longer tensors."""
    check(ranks, *batch)


def systematic(num_ranks: int) -> list[Case]:
    """Every name, algorithm and op, and every dtype with one of them, which a draw may miss."""
    found = []
    for index, (name, dtype) in enumerate((n, d) for n in COLLECTIVE_OF for d in DTYPES):
        collective = COLLECTIVE_OF[name]
        algorithms = [algorithm for of, algorithm in ALGORITHMS if of is collective]
        for turn in range(max(len(algorithms), len(ops(dtype)))):
            op = ops(dtype)[turn % len(ops(dtype))] if collective in REDUCING else "SUM"
            root = (index + turn) % num_ranks if name in {"broadcast", "reduce"} else 0
            algorithm = algorithms[(turn + index) % len(algorithms)]
            layout = "conjugated" if dtype.is_complex and turn % 2 else LAYOUTS[(index + turn) % len(LAYOUTS)]
            found.append(Case(name, algorithm, op, dtype, 13 + turn, layout, root, None, None, False, index))
    return found


@pytest.mark.parametrize("num_ranks", [1, 3, 4])
def test_every_dtype_and_op(ranks: RankPool, num_ranks: int) -> None:
    """All that torch.distributed supports on Gloo, once at least."""
    check(ranks, num_ranks, systematic(num_ranks))


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "double_binary_tree", "hierarchical"])
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5])
def test_rounding_leaves_all_ranks_alike(ranks: RankPool, algorithm: str, num_ranks: int) -> None:
    """Also where two ranks exchange sums: each adds what the other got, not what it holds more exactly itself."""
    pairs = [(torch.bfloat16, torch.float32, None), (torch.float32, None, torch.bfloat16)]
    check(
        ranks,
        num_ranks,
        [
            Case("all_reduce", algorithm, "SUM", d, 50, "plain", 0, a, w, False, seed)
            for d, a, w in pairs
            for seed in (1, 2)
        ],
    )
