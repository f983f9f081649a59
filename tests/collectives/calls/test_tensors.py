"""Tensors of unusual dtypes, layouts and views: right results, or refused before anything is sent."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.calls.tensor_checks import check_writable
from tests.collectives.replayed_calls import made
from tests.fuzz.calls import EXOTIC, IN_PLACE, NAMES, REDUCING, Call
from tests.ranks import RankPool, group_on
from tests.refusals import said_by


def refused(group: dist.ProcessGroup, dtype: str, backend: str) -> tuple[list[str], list[list[float]]]:
    """Return each call's message for a dtype that torch cannot add; an all_gather, a broadcast and a later sum."""
    group = group_on(backend, group.size())
    messages = [said_by(ValueError, made, Call(name, dtype=dtype), group, seed=1) for name in REDUCING]
    own = torch.tensor([group.rank() + 1.0, 2.0]).to(getattr(torch, dtype))
    gathered = torch.zeros(2 * group.size()).to(own.dtype)
    collectives.all_gather_into_tensor(gathered, own, group=group)
    collectives.broadcast(own, group_src=1, group=group)
    collectives.all_reduce(after := torch.ones(2), group=group)
    return messages, [gathered.to(torch.float32).tolist(), own.to(torch.float32).tolist(), after.tolist()]


@pytest.mark.parametrize("dtype", EXOTIC)
@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_what_torch_cannot_add_is_refused(ring_ranks: RankPool, dtype: str, backend: str) -> None:
    """With ValueError, before anything is sent; what only moves it still works, and so does the group."""
    for messages, results in ring_ranks.run(refused, dtype, backend, num_ranks=3):
        assert set(messages) == {
            f"op SUM: torch cannot do it on tensors of torch.{dtype}; convert them, or gather them as they are"
        }
        assert results == [[1.0, 2.0, 2.0, 2.0, 3.0, 2.0], [2.0, 2.0], [3.0, 3.0]]


def of_no_use() -> dict[str, torch.Tensor]:
    """Tensors whose elements cannot be sent, by what is said of them."""
    halves = torch.ones(4, dtype=torch.complex32)
    return {
        "the layout torch.sparse_coo": torch.eye(2).to_sparse(),
        "the layout torch.sparse_csr": torch.eye(2).to_sparse_csr(),
        "quantized": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
        "on meta": torch.ones(4, device="meta"),
        "torch cannot copy a conjugated negated tensor of torch.complex32": torch._neg_view(halves.conj()),
    }


def unsendable(group: dist.ProcessGroup) -> tuple[list[str], list[float]]:
    """Return the message of each call for each such tensor, the expected one, and a sum afterwards."""
    said = []
    for what, tensor in of_no_use().items():
        calls: list[Callable[[], object]] = [
            lambda tensor=tensor: collectives.all_reduce(tensor, group=group),
            lambda tensor=tensor: collectives.broadcast(tensor, group_src=0, group=group),
            lambda tensor=tensor: collectives.reduce(tensor, group_dst=0, group=group),
            lambda tensor=tensor: collectives.all_gather([torch.ones(4)] * group.size(), tensor, group=group),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=f"{what}|op SUM: torch cannot do it") as error:
                call()
            said.append(str(error.value))
    collectives.all_reduce(after := torch.ones(2), group=group)
    return said, after.tolist()


def test_what_cannot_be_sent_is_refused(ranks: RankPool) -> None:
    """Sparse, quantized, without memory, or a view that torch cannot resolve: one line, and the group goes on."""
    for said, after in ranks.run(unsendable, num_ranks=2):
        assert len(said) == 20
        assert not any("\n" in message for message in said)
        assert after == [2.0, 2.0]


DTYPES = ("float16", "float32", "bfloat16", "float64", "complex64", "complex128", "int8")
SEEN = ("strided", "negated", "conjugated", "conjugated and negated")


def with_views(group: dist.ProcessGroup, backend: str) -> list[Call]:
    """Calls on views of tensors that give other bits than the same call on plain copies of them."""
    on, wrong = group_on(backend, group.size()), []
    for name, dtype, op in itertools.product(NAMES, DTYPES, ("SUM", "AVG")):
        call = Call(name, (12,), dtype, op, values="random")
        plain = made(call, on, seed=1).digest()
        for layout in SEEN:
            viewed = replace(call, layout=layout, input_layout=layout if name not in IN_PLACE else "plain")
            if made(viewed, on, seed=1).digest() != plain:
                wrong.append(viewed)
    return wrong


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_views_give_what_their_values_give(ring_ranks: RankPool, backend: str) -> None:
    """Conjugated and negated ones, of inputs and of outputs, in every call, sums and means."""
    assert ring_ranks.run(with_views, backend, num_ranks=3) == [[]] * 3


def integer_means(group: dist.ProcessGroup, backend: str) -> dict[str, list[float]]:
    """AVG of integers of either sign, by every way of asking for it, and what is said of one of bools."""
    on = group_on(backend, group.size())
    n, results = group.size(), {}
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8):
        low = 0 if dtype is torch.uint8 else -7
        whole = torch.tensor([low, 8] * n, dtype=dtype) + group.rank()
        collectives.all_reduce(reduced := whole.clone(), dist.ReduceOp.AVG, on)
        collectives.reduce_scatter_tensor(share := torch.zeros(2, dtype=dtype), whole, dist.ReduceOp.AVG, on)
        results[str(dtype)] = [*reduced[:2].tolist(), *share.tolist()]
    if backend == "ring":
        dist.all_reduce(counter := torch.tensor(group.rank()), dist.ReduceOp.AVG, on)  # as Lightning's sync_dist does
        results["counter"] = [counter.item()]
    with pytest.raises(ValueError, match="op AVG: needs numbers"):
        collectives.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG, on)
    return results


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_an_average_of_integers_is_truncated(ring_ranks: RankPool, backend: str) -> None:
    """Towards zero, as NCCL does it: of -7, -6, -5 and -4 the mean is -5.5, which gives -5."""
    for results in ring_ranks.run(integer_means, backend, num_ranks=4):
        assert results.pop("counter", [1]) == [1]
        assert results.pop("torch.uint8") == [1, 9, 1, 9]
        assert set(map(tuple, results.values())) == {(-5, 9, -5, 9)}


@pytest.mark.parametrize(
    ("shape", "strides", "overlaps"),
    [
        ((3,), (0,), True),
        ((2, 2), (1, 1), True),
        ((8,), (2,), False),
        ((3, 4), (1, 3), False),
        ((3, 4), (1, 2), True),
        ((2, 3), (3, 2), False),  # 0 2 4 and 3 5 7
        ((2, 3), (4, 2), True),
        ((1, 3), (0, 1), False),
        ((0, 3), (0, 0), False),
    ],
)
def test_results_need_a_place_for_each_element(
    shape: tuple[int, ...], strides: tuple[int, ...], overlaps: bool
) -> None:
    """Strides that let two elements lie at one place are refused, and no others."""
    tensor = torch.zeros(30).as_strided(shape, strides)
    if overlaps:
        with pytest.raises(ValueError, match="elements share memory"):
            check_writable("tensor", tensor)
    else:
        check_writable("tensor", tensor)


LONG = 600_000  # elements, of which a chunk is too long to be eager


def all_calls(group: dist.ProcessGroup, length: int) -> list[float]:
    """The first element of what each kind of call leaves."""
    ones, half = torch.ones(length), torch.ones(length, dtype=torch.bfloat16)
    share, whole = torch.empty(length // 2), torch.empty(length)
    collectives.all_reduce(ones, group=group)
    collectives.all_reduce(half, group=group)
    collectives.all_reduce(turned := torch.ones(2, length // 2).t(), group=group, wire=torch.bfloat16)
    collectives.reduce_scatter_tensor(share, torch.ones(length), group=group)
    collectives.all_gather_into_tensor(whole, share, group=group)
    return [ones[0].item(), half[0].item(), turned[0, 0].item(), share[0].item(), whole[-1].item()]


def in_both_modes(group: dist.ProcessGroup, transport: str) -> list[list[float]]:
    """Return the results of calls in inference mode, outside of it, and in it again."""
    collectives.use_transport(transport, group)
    results = []
    for inference in (True, False, True):
        with torch.inference_mode(inference):
            results += [all_calls(group, length) for length in (8, LONG)]
    return results


@pytest.mark.parametrize("transport", ["gloo", "auto"])
def test_modes_take_turns(transport: str) -> None:
    """An evaluation in inference mode may be the first to call, and training follows."""
    with RankPool(2) as pool:
        for results in pool.run(in_both_modes, transport, num_ranks=2):
            assert results == [[2.0] * 5] * 6
