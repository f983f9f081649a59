"""Calls that do not fit are refused before anything is sent, on every rank, in one line; the group goes on."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.calls.table import check_writable
from ringsim import ALGORITHMS, Collective
from tests.collectives.replayed_calls import made
from tests.fuzz.calls import EXOTIC, REDUCING, Call
from tests.ranks import RankPool, group_on
from tests.refusals import said_by

Group = dist.ProcessGroup
KNOWN = ", ".join(name for collective, name in ALGORITHMS if collective is Collective.ALL_REDUCE)
SHARED = "and strides (0,): elements share memory; give a tensor that is not expanded, such as its clone"
REFUSALS = [
    "op BAND: needs integers or bool, not torch.float32",
    "op AVG: needs numbers, not torch.bool; use BAND or BOR",
    f"algorithm 'spiral': all_reduce has {KNOWN}; or give your own as FILE.py:FUNCTION or FILE.xml",
    f"tensor of shape (3,) {SHARED}",
    "the tensor is on meta: must be on the CPU or on a CUDA device",
    "tensor has the layout torch.sparse_coo: must be dense; call to_dense() first",
    "tensor is quantized (torch.qint8): its scale would not be sent; send int_repr() instead",
    "wire torch.bfloat16: only for floating-point tensors, in a floating-point dtype; got torch.int32",
    f"tensor of shape (3,) {SHARED}",
    "tensor: torch cannot copy a conjugated negated tensor of torch.complex32; convert it or send its bytes",
    "input has 5 elements and output 2: input must have 2 times as many, once per rank",
    f"output of shape (3,) {SHARED}",
    "output_tensor is torch.float32 and input_tensor torch.float64: both must be the same",
    "tensor_list has 1 tensors: must have one for each of 2 ranks",
    f"tensor_list[1] of shape (2,) {SHARED}",
    "input has 3 rows: must be a multiple of the 2 ranks; or give input_split_sizes",
    "output has 4 elements and input 6: both must have the same number of elements",
    "input_split_sizes [1, 1]: must be 2 whole numbers from 0 whose sum is the 3 rows of input",
    "output_split_sizes [5, -1]: must be 2 whole numbers from 0 whose sum is the 4 rows of output",
    "input_split_sizes [1.5, 1.5]: must be 2 whole numbers from 0 whose sum is the 3 rows of input",
    "output is torch.float32 and input torch.float64: both must be the same",
    "input_tensor_list has 1 tensors: must have one for each of 2 ranks",
    "input_tensor_list[1] is torch.int32 and input_tensor_list[0] torch.float32: both must be the same",
    "gather_list has 2 tensors on rank 1: only rank 0 of the group has one",
    "group_src 5: must be in 0..1",
    "src 9: must be a rank of the group, one of [0, 1]",
    "op None: must be one of SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR",
    "tensor is a list: must be one tensor",
    "tensor is a NoneType: must be one tensor",
    "input is a list: must be one tensor",
    "tensor_list is a Tensor: must be a list of tensors",
    "input_list[1] is a int: must be one tensor",
    "output_tensor_list has 0 tensors: must have one for each of 2 ranks",
    "algorithm 7: must be a name, such as FILE.py:FUNCTION, of at most 256 bytes",
    f"algorithm 'no_such': all_reduce has {KNOWN}; or give your own as FILE.py:FUNCTION or FILE.xml",
    f"collective 'allgather': must be one of {', '.join(each.value for each in Collective)}",
    "network 3: must be a ringsim.Network, or a preset or FILE.toml",
]


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


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_misuse_is_refused(ring_ranks: RankPool, backend: str) -> None:
    """The message names the argument, the value and the rule."""
    (first, after), (second, _) = ring_ranks.run(refusals, backend, num_ranks=2)
    assert second == REFUSALS
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
