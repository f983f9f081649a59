"""Calls that do not fit are refused before anything is sent, on every rank, in one line; the group goes on."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from syrupy.assertion import SnapshotAssertion

import collectives
from collectives.calls.table import check_writable
from ringsim import ALGORITHMS, Collective
from tests.collectives.replayed_calls import made
from tests.fuzz.calls import EXOTIC, REDUCING, Call
from tests.ranks import RankPool, group_on
from tests.refusals import said_by

Group = dist.ProcessGroup
KNOWN = ", ".join(name for collective, name in ALGORITHMS if collective is Collective.ALL_REDUCE)
COLLECTIVES = ", ".join(each.value for each in Collective)


def refusals(_: Group, backend: str) -> tuple[list[str], list[float]]:
    """Return the messages, and the sum of a call after them, whose algorithm is chosen for a preset of a network."""
    group = group_on(backend, 2)
    one, two, three, four, expanded = (*(torch.zeros(n) for n in range(1, 5)), torch.zeros(1).expand(3))
    all_reduce = partial(partial, collectives.all_reduce, group=group)
    calls: list[Callable[[], object]] = [
        all_reduce(three, op=dist.ReduceOp.BAND),
        all_reduce(three.bool(), op=dist.ReduceOp.AVG),
        all_reduce(three, algorithm="spiral"),
        all_reduce(expanded),
        all_reduce(three.to("meta")),
        all_reduce(torch.eye(2).to_sparse()),
        all_reduce(torch.quantize_per_tensor(four, 0.1, 0, torch.qint8)),
        all_reduce(three.int(), wire=torch.bfloat16),
        lambda: collectives.broadcast(expanded, group_src=0, group=group),
        lambda: collectives.broadcast(torch._neg_view(four.to(torch.complex32).conj()), group_src=0, group=group),
        lambda: collectives.reduce_scatter_tensor(two, torch.zeros(5), group=group),
        lambda: collectives.reduce_scatter_tensor(expanded, torch.zeros(6), group=group),
        lambda: collectives.all_gather_into_tensor(four, two.double(), group),
        lambda: collectives.all_gather([two], two, group),
        lambda: collectives.all_gather([two, one.expand(2)], two, group),
        lambda: collectives.all_to_all_single(three, three.clone(), group=group),
        lambda: collectives.all_to_all_single(four, torch.zeros(6), group=group),
        lambda: collectives.all_to_all_single(four, three, [2, 2], [1, 1], group),
        lambda: collectives.all_to_all_single(four, three, [5, -1], [1, 2], group),
        lambda: collectives.all_to_all_single(four, three, [2, 2], [1.5, 1.5], group),  # type: ignore[list-item]
        lambda: collectives.all_to_all_single(four, four.double(), group=group),
        lambda: collectives.all_to_all([two, two.clone()], [two], group),
        lambda: collectives.all_to_all([two, two.clone()], [two, two.int()], group),
        lambda: collectives.gather(three, [two, two], group=group),  # to the first rank
        lambda: collectives.scatter(three, group=group, group_src=5),
        lambda: collectives.broadcast(three, src=9, group=group),
        all_reduce(three, op=None),
        all_reduce([three, two]),
        all_reduce(None),
        lambda: collectives.reduce_scatter_tensor(two, [two, two], group=group),  # type: ignore[arg-type]
        lambda: collectives.all_gather(four, two, group),  # type: ignore[arg-type]
        lambda: collectives.reduce_scatter(two, [two, 2], group=group),  # type: ignore[list-item]
        lambda: collectives.all_to_all([], [], group),
        lambda: collectives.add_candidate(7, group=group),  # type: ignore[arg-type]
        lambda: collectives.add_candidate("no_such", group=group),
        lambda: collectives.add_candidate("ring", "allgather", group),
        lambda: collectives.use_network(3, group),  # type: ignore[arg-type]
    ]
    said = [said_by(ValueError, call) for call in calls]
    collectives.use_network("gbe", group)
    collectives.all_reduce(after := torch.ones(2), group=group, algorithm="auto")
    return said, after.tolist()


def test_misuse_is_refused(ring_ranks: RankPool, snapshot: SnapshotAssertion) -> None:
    """The message names the argument, the value and the rule; on either backend, the same."""
    on_gloo, on_ring = (ring_ranks.run(refusals, backend, num_ranks=2) for backend in ("gloo", "ring"))
    (first, after), (second, _) = on_gloo
    assert on_ring == on_gloo
    assert [said.replace(KNOWN, "KNOWN").replace(COLLECTIVES, "COLLECTIVES") for said in second] == snapshot
    assert after == [2.0, 2.0]
    at_root = "gather_list[0] has 2 elements and tensor 3: both must have the same number of elements"
    assert set(first) - set(second) == {at_root}


def exotic(group: Group, dtype: str, backend: str) -> tuple[list[str], list[list[float]]]:
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
    """Collectives that only move the dtype still work, and the group remains usable."""
    for messages, results in ring_ranks.run(exotic, dtype, backend, num_ranks=3):
        assert set(messages) == {
            f"op SUM: torch cannot do it on tensors of torch.{dtype}; convert them, or gather them as they are"
        }
        assert results == [[1.0, 2.0, 2.0, 2.0, 3.0, 2.0], [2.0, 2.0], [3.0, 3.0]]


OVERLAPPING = [((3,), (0,)), ((2, 2), (1, 1)), ((3, 4), (1, 2)), ((2, 3), (4, 2))]  # shapes and strides
# Of (2, 3): 0 2 4 and 3 5 7.
APART = [((8,), (2,)), ((3, 4), (1, 3)), ((2, 3), (3, 2)), ((1, 3), (0, 1)), ((0, 3), (0, 0))]


def test_results_need_a_place_for_each_element() -> None:
    """Strides that let two elements lie at one place are refused, and no others."""
    for shape, strides in OVERLAPPING:
        tensor = torch.zeros(30).as_strided(shape, strides)
        assert "elements share memory" in said_by(ValueError, check_writable, "tensor", tensor), (shape, strides)
    for shape, strides in APART:
        check_writable("tensor", torch.zeros(30).as_strided(shape, strides))


def disagreeing(group: Group) -> tuple[str, str, float]:
    """Return the errors of exchanges in which rank 0 sends too much, or alone gives sizes, and a sum after them."""
    is_first = group.rank() == 0
    sent, splits = [1, 1, 4 if is_first else 1], ([1, 1, 1], [1, 1, 1]) if is_first else (None, None)
    exchange, empty = partial(said_by, collectives.MismatchError, collectives.all_to_all_single), torch.empty(3)
    blocks = exchange(empty, torch.zeros(sum(sent)), [1, 1, 1], sent, group)
    sizes = exchange(empty.short(), torch.zeros(3).short(), *splits, group)  # new to the group
    collectives.all_reduce(after := torch.ones(1), group=group)
    return blocks, sizes, after.item()


def test_blocks_that_do_not_agree_are_named_on_all_ranks(ranks: RankPool) -> None:
    """Both ranks, or what each rank has called; and the group goes on."""
    (blocks, sizes, after), *others = ranks.run(disagreeing, num_ranks=3)
    assert blocks == (
        "the ranks do not agree on the blocks of all_to_all: rank 0 sends 4 elements to rank 2, which expects 1; the "
        "sizes of a rank's output must be those of the others' inputs"
    )
    assert sizes.startswith("the ranks do not agree on what to do: rank 0: all_to_all of elements of torch.int16")
    assert "ranks 1, 2: all_to_all of 3 elements" in sizes
    assert [(blocks, sizes, after), *others] == [(blocks, sizes, 3.0)] * 3
