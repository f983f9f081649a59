"""Collectives beyond right results (`test_semantics` has these): places in memory, views, modes, means of integers."""

import inspect
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.runtime import group_state
from tests.collectives.replayed_calls import made
from tests.collectives.runtime.test_executor import data
from tests.fuzz.calls import IN_PLACE, NAMES, Call
from tests.ranks import RankPool, group_on


def scattered_into_its_input(group: dist.ProcessGroup, algorithm: str, offset: int) -> torch.Tensor:
    """Our share, which is written over a part of the input: over ours, moved along by `offset` elements."""
    whole = data(group.rank(), 5 * group.size() + 1, torch.float64)
    share = whole[5 * group.rank() + offset :][:5]
    collectives.reduce_scatter_tensor(share, whole[:-1], group=group, algorithm=algorithm)
    return share


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
@pytest.mark.parametrize("offset", [0, 1])
def test_the_output_may_be_a_part_of_the_input(ranks: RankPool, algorithm: str, offset: int) -> None:
    """Where it is another than this rank's own, the sum is formed elsewhere: that part may still have to be read."""
    expected = torch.stack([data(rank, 16, torch.float64)[:15] for rank in range(3)]).sum(0)
    shares = ranks.run(scattered_into_its_input, algorithm, offset, num_ranks=3)
    torch.testing.assert_close(torch.cat(shares), expected)


def test_threads_that_ask_at_once_get_the_same_part() -> None:
    """Of a group, each having waited for the others."""
    start, group = Barrier(8), Mock()

    def slow(_: object) -> object:
        time.sleep(0.01)  # not to wait for anything, but to take long
        return object()

    def ask(_: int) -> object:
        start.wait()
        return group_state.state_of(group).part(slow)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, range(8)))) == 1


def gathered_from_the_result(group: dist.ProcessGroup) -> list[list[float]]:
    """Return all_gathers whose input lies in the output: in its place, with another stride, elsewhere, interleaved."""
    n, rank, results = group.size(), group.rank(), []
    for shape, stride, start in (((4,), 1, 4 * rank), ((1, 4), 1, 4 * rank), ((4,), 1, 1), ((4,), 2, 0)):
        whole = torch.zeros(4 * max(n, 2))
        place = whole.as_strided(shape, (stride,) * len(shape), start)
        place.copy_(torch.arange(4.0) + 10 * rank)
        collectives.all_gather_into_tensor(whole[: 4 * n], place, group)
        results.append(whole[: 4 * n].tolist())
    return results


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_an_input_in_the_output(ranks: RankPool, num_ranks: int) -> None:
    """It may be its own place there, as FSDP has it, or any other part; its values are read before they are lost."""
    expected = [element + 10.0 * rank for rank in range(num_ranks) for element in range(4)]
    assert ranks.run(gathered_from_the_result, num_ranks=num_ranks) == [[expected] * 4] * num_ranks


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
            wrong += [viewed] if made(viewed, on, seed=1).digest() != plain else []
    return wrong


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_views_give_what_their_values_give(ring_ranks: RankPool, backend: str) -> None:
    """Conjugated and negated ones, of inputs and of outputs, in every call, sums and means."""
    assert ring_ranks.run(with_views, backend, num_ranks=3) == [[]] * 3


def integer_means(group: dist.ProcessGroup, backend: str) -> dict[str, list[float]]:
    """AVG of integers of either sign, by every way of asking for it, and what is said of one of bools."""
    on, results = group_on(backend, group.size()), {}
    for name, low in (("int64", -7), ("int32", -7), ("int8", -7), ("uint8", 0)):
        whole = torch.tensor([low, 8] * group.size(), dtype=getattr(torch, name)) + group.rank()
        collectives.all_reduce(reduced := whole.clone(), dist.ReduceOp.AVG, on)
        collectives.reduce_scatter_tensor(share := torch.zeros_like(whole[:2]), whole, dist.ReduceOp.AVG, on)
        results[name] = [*reduced[:2].tolist(), *share.tolist()]
    least = torch._neg_view(torch.tensor([-128, 8], dtype=torch.int8) * (not group.rank()))  # -128 is its own negative
    collectives.all_reduce(least, dist.ReduceOp.AVG, on)
    results["negated"] = least.tolist()
    if backend == "ring":
        dist.all_reduce(counter := torch.tensor(group.rank()), dist.ReduceOp.AVG, on)  # as Lightning's sync_dist does
        results["counter"] = [counter.item()]
    with pytest.raises(ValueError, match="op AVG: needs numbers"):
        collectives.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG, on)
    return results


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_an_average_of_integers_is_truncated(ring_ranks: RankPool, backend: str) -> None:
    """Towards zero, as NCCL does it: of -7, -6, -5 and -4 the mean is -5.5, which gives -5."""
    means = {"int64": [-5, 9] * 2, "int32": [-5, 9] * 2, "int8": [-5, 9] * 2, "uint8": [1, 9] * 2}
    expected = means | {"negated": [-32, -2]} | ({"counter": [1]} if backend == "ring" else {})
    assert ring_ranks.run(integer_means, backend) == [expected] * 4


def all_calls(group: dist.ProcessGroup, length: int) -> list[float]:
    """The first element of what each kind of call leaves."""
    ones, half = torch.ones(length), torch.ones(length, dtype=torch.bfloat16)
    share, whole = torch.empty(length // 3), torch.empty(length)
    collectives.all_reduce(ones, group=group)
    collectives.all_reduce(half, group=group)
    collectives.all_reduce(turned := torch.ones(3, length // 3).t(), group=group, wire=torch.bfloat16)
    collectives.reduce_scatter_tensor(share, torch.ones(length), group=group)
    collectives.all_gather_into_tensor(whole, share, group=group)
    return [ones[0].item(), half[0].item(), turned[0, 0].item(), share[0].item(), whole[-1].item()]


def in_both_modes(_: dist.ProcessGroup, transport: str) -> list[list[float]]:
    """Return the results of calls of a new group in inference mode, outside of it, and in it again."""
    collectives.use_transport(transport, group := dist.new_group())
    results = []
    for inference in (True, False, True):
        with torch.inference_mode(inference):
            results += [all_calls(group, length) for length in (9, 600_000)]  # of which a chunk is too long to be eager
    with torch.inference_mode():
        made = torch.ones(9)
        collectives.all_reduce(made, group=group, async_op=True).wait()
    collectives.all_reduce(made, group=group)
    collectives.all_reduce(later := torch.ones(9), group=group)
    return [*results, [made[0].item(), later[0].item()]]


@pytest.mark.parametrize("transport", ["gloo", "auto"])
def test_modes_take_turns(trio: RankPool, transport: str) -> None:
    """An evaluation in inference mode may be the first to call, and training follows, also on tensors made in it."""
    assert trio.run(in_both_modes, transport) == [[*[[3.0] * 5] * 6, [9.0, 3.0]]] * 3


def test_the_arguments_are_those_of_torch() -> None:
    """In its order, for each function that both have, by the names of torch 2.13 too; ours are given by name."""
    for name in set(collectives.__all__) & {*vars(dist)} - {"Work", "barrier"}:  # a barrier has no devices to choose
        ours = inspect.signature(getattr(collectives, name)).parameters
        given = [argument.name for argument in ours.values() if argument.kind is not argument.KEYWORD_ONLY]
        assert given == list(inspect.signature(getattr(dist, name)).parameters), name
    assert collectives.all_gather_single is collectives.all_gather_into_tensor
    assert collectives.reduce_scatter_single is collectives.reduce_scatter_tensor
