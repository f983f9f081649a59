"""all_to_all, gather, scatter and uneven shares: the results of torch on Gloo, uneven blocks, refusals and faults."""

import random
import signal
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import collectives
from ringsim import Collective
from ringsim.registry.algorithms import ALGORITHMS
from tests.collectives.shared_groups import kept_group
from tests.ranks import RankPool, group_on
from tests.refusals import said_by

ALL_TO_ALL = [name for collective, name in ALGORITHMS if collective is Collective.ALL_TO_ALL]
TRANSPORTS = ["gloo", "auto"]  # auto: through shared memory, as all ranks are on one host
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8]


def numbers(seed: int, length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return random whole numbers that have a place in every dtype."""
    return torch.randint(0, 100, (length,), generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_lengths(seed: int, num_ranks: int) -> list[list[int]]:
    """Return how many rows each rank sends to each other one: many none, some more than an eager message takes."""
    rng = random.Random(seed)
    return [[rng.choice([0, 0, 1, 3, 70, 2000]) for _ in range(num_ranks)] for _ in range(num_ranks)]


def differing_exchanges(_: dist.ProcessGroup, num_ranks: int, transport: str, algorithm: str) -> list[str]:
    """The exchanges of this algorithm whose result is not that of torch on Gloo, among the first ranks."""
    ours = kept_group(num_ranks, transport)
    if ours is None:
        return []
    group, rank, different = group_on("gloo", num_ranks), ours.rank(), []
    for dtype in DTYPES:
        for length in (1, 300, 40_000):
            given = numbers(rank, num_ranks * length, dtype)
            expected, output, before = torch.empty_like(given), torch.empty_like(given), given.clone()
            dist.all_to_all_single(expected, given, group=group)
            collectives.all_to_all_single(output, given, group=ours, algorithm=algorithm)
            if not (torch.equal(output, expected) and torch.equal(given, before)):
                different.append(f"{length} of {dtype}")
    for seed in range(5):
        lengths = random_lengths(seed, num_ranks) if seed else [[0] * num_ranks] * num_ranks
        sent, expects = lengths[rank], [row[rank] for row in lengths]
        given = numbers(rank, 2 * sum(sent)).view(-1, 2)
        expected, output = torch.empty(sum(expects), 2), torch.empty(sum(expects), 2)
        dist.all_to_all_single(expected, given, expects, sent, group=group)
        collectives.all_to_all_single(output, given, expects, sent, ours, algorithm=algorithm)
        listed = [torch.empty(length, 2) for length in expects]
        collectives.all_to_all(listed, list(given.split(sent)), ours, algorithm=algorithm)
        if not (torch.equal(output, expected) and torch.equal(torch.cat(listed), expected)):
            different.append(f"blocks of seed {seed}")
    return different


@pytest.mark.parametrize("algorithm", [*ALL_TO_ALL, "bruck/2", "hierarchical@1"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_exchange_is_that_of_torch(ranks: RankPool, transport: str, algorithm: str) -> None:
    """Bit for bit, of equal blocks and of uneven ones, some of them empty; the input stays as it is."""
    for num_ranks in (2, 3, 4):
        assert not any(ranks.run(differing_exchanges, num_ranks, transport, algorithm))


def differing_shares(_: dist.ProcessGroup, num_ranks: int, transport: str, algorithm: str) -> list[str]:
    """The gathers and scatters of this algorithm whose result is not that of torch on Gloo, among the first ranks."""
    ours = kept_group(num_ranks, transport)
    if ours is None:
        return []
    group, rank, different = group_on("gloo", num_ranks), ours.rank(), []
    for root in range(num_ranks):
        for length in (1, 5, 40_000):
            given = numbers(rank, length)
            expected, output = ([torch.empty(length) for _ in range(num_ranks)] for _ in range(2))
            is_root = rank == root
            dist.gather(given, expected if is_root else None, group=group, group_dst=root)
            collectives.gather(given, output if is_root else None, group=ours, group_dst=root, algorithm=algorithm)
            if is_root and not all(map(torch.equal, output, expected)):
                different.append(f"gather of {length} to {root}")
            shares = [numbers(10 * root + other, length) for other in range(num_ranks)] if is_root else None
            expected, output = [torch.empty(length)], [torch.empty(length)]
            dist.scatter(expected[0], shares, group=group, group_src=root)
            collectives.scatter(output[0], shares, group=ours, group_src=root, algorithm=algorithm)
            if not torch.equal(output[0], expected[0]):
                different.append(f"scatter of {length} from {root}")
    return different


@pytest.mark.parametrize("algorithm", ["direct", "binomial_tree", "binomial_tree/3"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_gather_and_a_scatter_are_those_of_torch(ranks: RankPool, transport: str, algorithm: str) -> None:
    """Whichever rank is the root."""
    for num_ranks in (2, 3, 4):
        assert not any(ranks.run(differing_shares, num_ranks, transport, algorithm))


def uneven_shares(_: dist.ProcessGroup, num_ranks: int, transport: str, algorithm: str) -> bool:
    """Whether uneven shares are gathered, and summed, by the first ranks as they are without us."""
    ours = kept_group(num_ranks, transport)
    if ours is None:
        return True
    group, rank, right = group_on("gloo", num_ranks), ours.rank(), True
    for seed in range(4):
        lengths = random_lengths(seed, num_ranks)[0]
        parts = [numbers(other, length) for other, length in enumerate(lengths)]
        gathered = [torch.empty(length) for length in lengths]
        collectives.all_gather(gathered, parts[rank], ours, algorithm=algorithm)
        right &= all(map(torch.equal, gathered, parts))
        given = numbers(rank, sum(lengths))
        total = given.clone()
        dist.all_reduce(total, group=group)
        share = torch.empty(lengths[rank])
        collectives.reduce_scatter(share, list(given.split(lengths)), group=ours, algorithm=algorithm)
        right &= torch.equal(share, total.split(lengths)[rank])
    return right


@pytest.mark.parametrize("algorithm", ["ring", "direct", "halving_doubling", "ring/3"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_shares_may_be_uneven(ranks: RankPool, transport: str, algorithm: str) -> None:
    """The lists of an all_gather and of a reduce_scatter; some shares are empty."""
    for num_ranks in (2, 3, 4):
        assert all(ranks.run(uneven_shares, num_ranks, transport, algorithm))


def messages_of(calls: list[Callable[[], object]]) -> list[str]:
    """The messages of calls that are refused."""
    return [said_by(ValueError, call) for call in calls]


def refusals(group: dist.ProcessGroup) -> list[str]:
    """The messages of calls that do not fit."""
    three, four, pair = torch.zeros(3), torch.zeros(4), [torch.zeros(2), torch.zeros(2)]
    return messages_of(
        [
            lambda: collectives.all_to_all_single(three, three.clone(), group=group),
            lambda: collectives.all_to_all_single(four, torch.zeros(6), group=group),
            lambda: collectives.all_to_all_single(four, three, [2, 2], [1, 1], group),
            lambda: collectives.all_to_all_single(four, three, [5, -1], [1, 2], group),
            lambda: collectives.all_to_all_single(four, three, [2, 2], [1.5, 1.5], group),  # type: ignore[list-item]
            lambda: collectives.all_to_all_single(four, four.double(), group=group),
            lambda: collectives.all_to_all(pair, pair[:1], group),
            lambda: collectives.all_to_all(pair, [torch.zeros(2), torch.zeros(2).int()], group),
            lambda: (
                collectives.gather(three, pair if group.rank() == 0 else None, group=group, group_dst=0)
                if group.rank() == 0
                else collectives.gather(three, pair, group=group, group_dst=0)
            ),
            lambda: collectives.scatter(three, group=group, group_src=5),
        ]
    )


def test_misuse_of_blocks_is_refused(ranks: RankPool) -> None:
    """The message names the argument, the value and the rule."""
    first, second = ranks.run(refusals, num_ranks=2)
    assert second == [
        "input has 3 rows: must be a multiple of the 2 ranks; or give input_split_sizes",
        "output has 4 elements and input 6: must be as many",
        "input_split_sizes [1, 1]: must be 2 whole numbers from 0 whose sum is the 3 rows of input",
        "output_split_sizes [5, -1]: must be 2 whole numbers from 0 whose sum is the 4 rows of output",
        "input_split_sizes [1.5, 1.5]: must be 2 whole numbers from 0 whose sum is the 3 rows of input",
        "output is torch.float32 and input torch.float64: both must be the same",
        "input_tensor_list has 1 tensors: must have one for each of 2 ranks",
        "input_tensor_list[1] is torch.int32 and input_tensor_list[0] torch.float32: both must be the same",
        "gather_list has 2 tensors on rank 1: only rank 0 of the group has one",
        "group_src 5: must be in 0..1",
    ]
    assert first[8] == (
        "gather_list[0] has 2 elements of torch.float32 and tensor 3 of torch.float32: both must be the same"
    )


def disagreeing_blocks(group: dist.ProcessGroup) -> tuple[str, float]:
    """The error of an exchange in which rank 0 sends rank 2 more than it expects, and the sum of a call after it."""
    sent = [1, 1, 4 if group.rank() == 0 else 1]
    [message] = messages_of(
        [lambda: collectives.all_to_all_single(torch.empty(3), torch.zeros(sum(sent)), [1, 1, 1], sent, group)]
    )
    after = torch.ones(1)
    collectives.all_reduce(after, group=group)
    return message, after.item()


def test_blocks_that_do_not_agree_are_named_on_all_ranks(ranks: RankPool) -> None:
    """The message names both ranks, and the group goes on."""
    answers = ranks.run(disagreeing_blocks, num_ranks=3)
    assert answers[0] == (
        "the ranks do not agree on the blocks of all_to_all: rank 0 sends 4 elements to rank 2, which expects 1; the "
        "sizes of a rank's output must be those of the others' inputs",
        3.0,
    )
    assert answers[0] == answers[1] == answers[2]


def even_or_uneven(group: dist.ProcessGroup) -> str:
    """The error where one rank gives sizes and the others do not, in calls that are new to the group."""
    splits = ([1, 1, 1], [1, 1, 1]) if group.rank() == 0 else (None, None)
    tensors = torch.empty(3, dtype=torch.int16), torch.zeros(3, dtype=torch.int16)
    [message] = messages_of([lambda: collectives.all_to_all_single(*tensors, *splits, group)])
    return message


def test_all_ranks_give_sizes_or_none_does(ranks: RankPool) -> None:
    """All ranks raise MismatchError, with what each of them called."""
    for message in ranks.run(even_or_uneven, num_ranks=3):
        assert message.startswith("the ranks do not agree on what to do: rank 0: all_to_all of elements of torch.int16")
        assert "ranks 1, 2: all_to_all of 3 elements" in message


def exchange_once(group: dist.ProcessGroup) -> None:
    """A first call: the ranks know each other, and what they call."""
    collectives.all_to_all_single(torch.empty(3 * 50_000), torch.zeros(3 * 50_000), group=group)


def exchange_for_ever(group: dist.ProcessGroup, uneven: bool) -> None:
    """Exchange until something goes wrong, which it will."""
    splits = ([50_000] * 3, [50_000] * 3) if uneven else (None, None)
    while True:
        collectives.all_to_all_single(torch.empty(3 * 50_000), torch.zeros(3 * 50_000), *splits, group)


@pytest.mark.parametrize("uneven", [False, True])
def test_the_others_are_told_of_one_that_dies(uneven: bool) -> None:
    """Rank 1 of three is killed; ranks 0 and 2 raise, and name it."""
    with RankPool(3, 60.0) as pool:
        pool.run(exchange_once)
        pool.start(exchange_for_ever, uneven)
        time.sleep(0.5)  # not to wait for a result: to let the collectives get going before the fault
        pool.ranks.signal(1, signal.SIGKILL)
        answers = pool.answers([0, 2], timeout_s=40.0)
    assert sorted(answers) == [0, 2], "a rank hangs"
    for good, text in answers.values():
        assert not good
        assert "rank 1" in [line for line in text.splitlines() if "CollectiveError: " in line][-1]
