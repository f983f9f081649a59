"""all_to_all, gather, scatter and uneven shares: the results of torch on Gloo, uneven blocks, and a rank that dies."""

import random
import signal
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist

import collectives
from ringsim import ALGORITHMS, Collective
from tests.collectives.shared_groups import kept_group
from tests.ranks import RankPool, group_on

ALL_TO_ALL = [name for collective, name in ALGORITHMS if collective is Collective.ALL_TO_ALL]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8]


def numbers(seed: int, length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return random whole numbers that have a place in every dtype."""
    return torch.randint(0, 100, (length,), generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_lengths(seed: int, num_ranks: int) -> list[list[int]]:
    """Return how many rows each rank sends to each other one: many none, some more than an eager message takes."""
    rng = random.Random(seed)
    return [[rng.choice([0, 0, 1, 3, 70, 2000]) for _ in range(num_ranks)] for _ in range(num_ranks)]


Group = dist.ProcessGroup


def differing(_: Group, kind: Callable, num_ranks: int, transport: str, algorithm: str) -> list[str]:
    """The calls of this algorithm whose result is not that of torch on Gloo, among the first ranks."""
    ours = kept_group(num_ranks, transport)
    return [] if ours is None else list(kind(ours, group_on("gloo", num_ranks), num_ranks, ours.rank(), algorithm))


def exchanges(ours: Group, group: Group, num_ranks: int, rank: int, algorithm: str) -> Iterator[str]:
    """Of equal blocks, and of uneven ones."""
    for dtype in DTYPES:
        for length in (1, 300, 40_000):
            given = numbers(rank, num_ranks * length, dtype)
            expected, output, before = torch.empty_like(given), torch.empty_like(given), given.clone()
            dist.all_to_all_single(expected, given, group=group)
            collectives.all_to_all_single(output, given, group=ours, algorithm=algorithm)
            if not (torch.equal(output, expected) and torch.equal(given, before)):
                yield f"{length} of {dtype}"
    for seed in range(5):
        lengths = random_lengths(seed, num_ranks) if seed else [[0] * num_ranks] * num_ranks
        sent, expects = lengths[rank], [row[rank] for row in lengths]
        given = numbers(rank, 2 * sum(sent)).view(-1, 2)
        expected, output = torch.empty(sum(expects), 2), torch.empty(sum(expects), 2)
        dist.all_to_all_single(expected, given, expects, sent, group=group)
        collectives.all_to_all_single(output, given, np.array(expects), np.array(sent), ours, algorithm=algorithm)
        listed = [torch.empty(length, 2) for length in expects]
        collectives.all_to_all(listed, list(given.split(sent)), ours, algorithm=algorithm)
        if not (torch.equal(output, expected) and torch.equal(torch.cat(listed), expected)):
            yield f"blocks of seed {seed}"


def shares(ours: Group, group: Group, num_ranks: int, rank: int, algorithm: str) -> Iterator[str]:
    """Gathers and scatters."""
    for root in range(num_ranks):
        for length in (1, 5, 40_000):
            given, is_root = numbers(rank, length), rank == root
            expected, output = ([torch.empty(length) for _ in range(num_ranks)] for _ in range(2))
            dist.gather(given, expected if is_root else None, group=group, group_dst=root)
            collectives.gather(given, output if is_root else None, group=ours, group_dst=root, algorithm=algorithm)
            if is_root and not all(map(torch.equal, output, expected)):
                yield f"gather of {length} to {root}"
            blocks = [numbers(10 * root + other, length) for other in range(num_ranks)] if is_root else None
            expected, output = [torch.empty(length)], [torch.empty(length)]
            dist.scatter(expected[0], blocks, group=group, group_src=root)
            collectives.scatter(output[0], blocks, group=ours, group_src=root, algorithm=algorithm)
            if not torch.equal(output[0], expected[0]):
                yield f"scatter of {length} from {root}"


def uneven_shares(ours: Group, group: Group, num_ranks: int, rank: int, algorithm: str) -> Iterator[str]:
    """Some of them empty, gathered and summed."""
    for seed in range(4):
        lengths = random_lengths(seed, num_ranks)[0]
        parts = [numbers(other, length) for other, length in enumerate(lengths)]
        gathered = [torch.empty(length) for length in lengths]
        collectives.all_gather(gathered, parts[rank], ours, algorithm=algorithm)
        given = numbers(rank, sum(lengths))
        dist.all_reduce(total := given.clone(), group=group)
        share = torch.empty(lengths[rank])
        collectives.reduce_scatter(share, list(given.split(lengths)), group=ours, algorithm=algorithm)
        if not (all(map(torch.equal, gathered, parts)) and torch.equal(share, total.split(lengths)[rank])):
            yield f"shares of seed {seed}"


CASES = [
    *((exchanges, algorithm) for algorithm in (*ALL_TO_ALL, "bruck/2", "hierarchical@1")),
    *((shares, algorithm) for algorithm in ("direct", "binomial_tree", "binomial_tree/3")),
    *((uneven_shares, algorithm) for algorithm in ("ring", "direct", "halving_doubling", "ring/3")),
]


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@pytest.mark.parametrize("transport", ["gloo", "auto"])  # auto: through shared memory, as all ranks are on one host
def test_results_are_those_of_torch(ranks: RankPool, transport: str, kind: Callable, algorithm: str) -> None:
    """Bit for bit, of equal blocks and of uneven ones, whichever rank is the root; inputs stay as they are."""
    for num_ranks in (2, 3, 4):
        assert not any(ranks.run(differing, kind, num_ranks, transport, algorithm))


def exchange_for_ever(group: dist.ProcessGroup, uneven: bool) -> None:
    """Exchange until something goes wrong, which it will."""
    splits = ([50_000] * 3, [50_000] * 3) if uneven else (None, None)
    while True:
        collectives.all_to_all_single(torch.empty(3 * 50_000), torch.zeros(3 * 50_000), *splits, group)


@pytest.mark.parametrize("uneven", [False, True])
def test_the_others_are_told_of_one_that_dies(trio: RankPool, uneven: bool) -> None:
    """Rank 1 of three is killed; ranks 0 and 2 raise, and name it."""
    trio.start(exchange_for_ever, uneven)
    time.sleep(0.5)  # not to wait for a result: to let the collectives get going before the fault
    trio.ranks.signal(1, signal.SIGKILL)
    answers = trio.answers([0, 2], timeout_s=40.0)
    trio.end()
    assert {rank: answer.good for rank, answer in answers.items()} == {0: False, 2: False}
    for _, text in answers.values():
        assert "rank 1" in [line for line in text.splitlines() if "CollectiveError: " in line][-1]
