"""Every sample is seen once an epoch, and n ranks with their shares see what one process sees."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from trainers.loop.config import Batches, Share


class Drawn(NamedTuple):
    """Batches of all ranks and of one process."""

    num_samples: int
    one: Batches
    ranks: list[Batches]


@st.composite
def drawn_batches(draw: st.DrawFn) -> Drawn:
    """Batches that divide the samples and that do not, and last ones with fewer samples than ranks."""
    num_ranks = draw(st.integers(1, 7))
    sizes = st.integers(num_ranks, 40)
    numbers = draw(sizes), draw(sizes), draw(st.integers(0, 2**63 - 1))
    return Drawn(numbers[0], Batches(*numbers, 0, 1), [Batches(*numbers, rank, num_ranks) for rank in range(num_ranks)])


def counted(share: Share) -> np.ndarray:
    """Return the samples of a share; that of weight 0 does not count."""
    return share.indices if share.weight > 0 else share.indices[:0]


@given(drawn_batches(), st.integers(0, 3))
def test_an_epoch_has_every_sample_once(drawn: Drawn, epoch: int) -> None:
    """Over all its batches and all ranks, none lost and none twice."""
    first = epoch * drawn.one.batches_per_epoch
    steps = range(first, first + drawn.one.batches_per_epoch)
    seen = np.concatenate([counted(rank.share(step)) for step in steps for rank in drawn.ranks])
    assert sorted(seen) == list(range(drawn.num_samples))


@given(drawn_batches(), st.integers(0, 100), st.integers(1, 50))
def test_ranks_together_have_the_batch_of_one_process(drawn: Drawn, step: int, parts: int) -> None:
    """The same samples in the same order, in shares that differ by one at most, with the same mean of any losses.

    Also where ranks accumulate gradients over parts of their shares. No share or part is empty.
    """
    whole, shares = drawn.one.share(step), [rank.share(step) for rank in drawn.ranks]
    losses = np.random.default_rng(step).standard_normal(drawn.num_samples)

    def weighted(shares: list[Share]) -> float:
        assert all(len(share.indices) > 0 for share in shares)
        return float(sum(share.weight * losses[share.indices].mean() for share in shares))

    assert np.concatenate([counted(share) for share in shares]).tolist() == whole.indices.tolist()
    assert (whole.weight, len(whole.indices)) == (1.0, drawn.one.num_samples(step))
    lengths = [len(counted(share)) for share in shares]
    assert max(lengths) - min(lengths) <= 1
    assert weighted(shares) / len(shares) == pytest.approx(weighted([whole]), abs=1e-12)
    for share in shares:
        pieces = share.split(parts)
        assert len(pieces) == min(parts, len(share.indices))
        assert np.concatenate([piece.indices for piece in pieces]).tolist() == share.indices.tolist()
        assert weighted(pieces) == pytest.approx(weighted([share]), abs=1e-12)


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    """Asked out of order, as by a resumed run, it is the same; another epoch or another seed has another order."""
    batches = Batches(64, 8, 7, 0, 1)
    epochs = [np.concatenate([batches.share(8 * epoch + place).indices for place in range(8)]) for epoch in range(4)]
    assert all((one != next_one).any() for one, next_one in pairwise(epochs))
    assert len({frozenset(order[:8]) for order in epochs}) == 4
    for step in (19, 0, 3):
        assert Batches(64, 8, 7, 0, 1).share(step).indices.tolist() == batches.share(step).indices.tolist()
    assert Batches(64, 8, 8, 0, 1).share(0).indices.tolist() != batches.share(0).indices.tolist()


def test_a_rank_without_samples_is_refused() -> None:
    """In one line with the value, the rule and the number of ranks."""
    with refused("3 training samples: must be at least 4, one for each rank"):
        Batches(3, 8, seed=0, rank=0, num_ranks=4)
    with refused("a batch of 2 samples in all: must be at least 4, one for each rank; give `batch_size`..."):
        Batches(10, 2, seed=0, rank=0, num_ranks=4)
    with refused("parts 0: must be at least 1"):
        Batches(10, 8, seed=0, rank=0, num_ranks=4).share(0).split(0)
