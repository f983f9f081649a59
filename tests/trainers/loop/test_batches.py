"""Every sample is seen once an epoch, and n ranks with their shares see what one process sees."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.loop.batches import Batches, Share, describe_batch


@dataclass(frozen=True)
class Case:
    """Arguments of `Batches`, for all ranks."""

    num_samples: int
    global_batch_size: int
    seed: int
    num_ranks: int

    def shares(self, step: int) -> list[Share]:
        """Return those of all ranks."""
        return [self.batches(rank, self.num_ranks).share(step) for rank in range(self.num_ranks)]

    def batches(self, rank: int = 0, num_ranks: int = 1) -> Batches:
        """Return those of a rank; of one process if nothing is said."""
        return Batches(self.num_samples, self.global_batch_size, self.seed, rank, num_ranks)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Batches that divide the samples and that do not, and last ones with fewer samples than ranks."""
    num_ranks = draw(st.integers(1, 7))
    sizes = st.integers(num_ranks, 40)
    return Case(draw(sizes), draw(sizes), draw(st.integers(0, 2**63 - 1)), num_ranks)


def mean(share: Share, losses: np.ndarray) -> float:
    """Return a rank's loss after its forward pass: the weighted mean of its own samples' losses."""
    return share.weight * float(losses[share.indices].mean())


@given(cases(), st.integers(0, 3))
def test_an_epoch_has_every_sample_once(case: Case, epoch: int) -> None:
    """Over all its batches and all ranks, none lost and none twice; what has weight 0 does not count."""
    per_epoch = case.batches().batches_per_epoch
    ranks = [case.batches(rank, case.num_ranks) for rank in range(case.num_ranks)]
    shares = [rank.share(epoch * per_epoch + place) for place in range(per_epoch) for rank in ranks]
    seen = [share.indices for share in shares if share.weight > 0]
    assert sorted(np.concatenate(seen)) == list(range(case.num_samples))


@given(cases(), st.integers(0, 100))
def test_ranks_together_have_the_batch_of_one_process(case: Case, step: int) -> None:
    """The same samples in the same order, cut into shares that differ by one at most."""
    shares = case.shares(step)
    counted = [share.indices if share.weight > 0 else share.indices[:0] for share in shares]
    assert np.concatenate(counted).tolist() == case.batches().share(step).indices.tolist()
    lengths = [len(indices) for indices in counted]
    assert max(lengths) - min(lengths) <= 1


@given(cases(), st.integers(0, 100))
def test_weights_make_the_mean_over_ranks_the_mean_of_the_batch(case: Case, step: int) -> None:
    """Whatever the losses are, and although shares are uneven."""
    losses = np.random.default_rng(step).standard_normal(case.num_samples)
    whole = case.batches().share(step)
    assert whole.weight == 1.0
    over_ranks = sum(mean(share, losses) for share in case.shares(step)) / case.num_ranks
    assert over_ranks == pytest.approx(mean(whole, losses), abs=1e-12)


@given(cases(), st.integers(0, 100), st.integers(1, 50))
def test_a_split_share_adds_up(case: Case, step: int, parts: int) -> None:
    """Accumulated, the parts' weighted losses are the share's; they are its samples in their order, none empty."""
    losses = np.random.default_rng(step).standard_normal(case.num_samples)
    for share in case.shares(step):
        pieces = share.split(parts)
        assert len(pieces) == min(parts, len(share.indices))
        assert all(len(piece.indices) > 0 for piece in pieces)
        assert np.concatenate([piece.indices for piece in pieces]).tolist() == share.indices.tolist()
        assert sum(mean(piece, losses) for piece in pieces) == pytest.approx(mean(share, losses), abs=1e-12)


def test_a_rank_with_nothing_left_has_one_sample_of_no_weight() -> None:
    """Ten samples in batches of eight leave two for four ranks: each still has something to compute on."""
    shares = Case(10, 8, 3, 4).shares(1)
    assert [share.weight for share in shares] == [0.0, 2.0, 0.0, 2.0]
    assert [len(share.indices) for share in shares] == [1, 1, 1, 1]
    left = Case(10, 8, 3, 4).batches().share(1).indices.tolist()
    assert {int(share.indices[0]) for share in shares} == set(left)


def test_every_epoch_has_an_order_of_its_own() -> None:
    """Neither the same batches again nor the same samples together."""
    batches = Case(64, 8, 0, 1).batches()
    epochs = [np.concatenate([batches.share(8 * epoch + place).indices for place in range(8)]) for epoch in range(4)]
    assert all((one != next_one).any() for one, next_one in pairwise(epochs))
    assert len({frozenset(order[:8]) for order in epochs}) == 4


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    """Asked out of order, as by a run that is resumed, it is the same; another seed gives others."""
    batches = Case(50, 8, 7, 1).batches()
    asked = {step: batches.share(step).indices.tolist() for step in (9, 0, 15, 3, 9)}
    again = {step: Case(50, 8, 7, 1).batches().share(step).indices.tolist() for step in asked}
    assert asked == again
    assert asked[0] != Case(50, 8, 8, 1).batches().share(0).indices.tolist()


def test_a_batch_larger_than_the_data_is_an_epoch() -> None:
    """All samples in each step."""
    batches = Case(5, 100, 0, 1).batches()
    assert batches.batches_per_epoch == 1
    assert [sorted(batches.share(step).indices) for step in range(2)] == [[0, 1, 2, 3, 4]] * 2


def test_what_leaves_a_rank_without_samples_is_refused() -> None:
    """One line with the value, the rule and the number of ranks."""
    with pytest.raises(ValueError, match=r"^3 training samples: must be at least 4, one for each rank$"):
        Batches(3, 8, seed=0, rank=0, num_ranks=4)
    with pytest.raises(
        ValueError, match=r"^a batch of 2 samples in all: must be at least 4, one for each rank; give --"
    ):
        Batches(10, 2, seed=0, rank=0, num_ranks=4)
    with pytest.raises(ValueError, match=r"^parts 0: must be at least 1$"):
        Batches(10, 8, seed=0, rank=0, num_ranks=4).share(0).split(0)


def test_a_batch_is_told_per_rank_and_in_all() -> None:
    """Also where the ranks' shares differ by one; and so much of it is left at the end of an epoch."""
    assert describe_batch(32, 4) == "batch 8 per rank, 32 in all"
    assert str(Case(10, 8, 3, 3).batches(0, 3)) == "batch 2 or 3 per rank, 8 in all"
    assert [Case(10, 8, 3, 1).batches().num_samples(step) for step in range(4)] == [8, 2, 8, 2]
