"""How a model is trained: refused values, shares of batches, and the learning rate.

Every sample is seen once an epoch, and n ranks with their shares see what one process sees.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from torch.optim import lr_scheduler

from tests.refusals import refused, said_by
from trainers.loop.batches import Batches, Share
from trainers.loop.config import RateSchedule, ScheduledRates, TrainConfig, require_compiler
from trainers.strategies import STRATEGIES

WRONG: list[dict[str, Any]] = [
    {"strategy": "rung"}, {"batch_size": 0}, {"batch_size": 2**22 + 1}, {"accumulate": 0}, {"clip_norm": 0.0},
    {"on_nan": "maybe"}, {"on_nan": None}, {"amp": "float16"}, {"lr_schedule": "cos"}, {"lr_schedule": None},
    {"warmup_steps": -1}, {"seed": -1}, {"steps": 0}, {"save_every": 0}, {"save_every": "0epochs"},
    {"save_every": "soon"}, {"keep": 0}, {"log_every": -1}, {"log_every": 0, "tensorboard": True}, {"check_every": -1},
]  # fmt: skip


def test_what_cannot_be_is_refused(snapshot: SnapshotAssertion) -> None:
    """In one line with the option, its value and the rule."""
    said = [said_by(ValueError, TrainConfig, output=Path("run"), **options) for options in WRONG]
    assert not any("\n" in message for message in said)
    assert [message.replace(", ".join(STRATEGIES), "STRATEGIES") for message in said] == snapshot


def test_values_may_be_text() -> None:
    """Paths, as a program writes them, and the steps between checkpoints, which may be epochs apart."""
    config = TrainConfig(output="run", profile="trace.json")  # type: ignore[arg-type]
    assert (config.output, config.profile) == (Path("run"), Path("trace.json"))
    for every, steps in {7: 7, "7": 7, "1epoch": 25, "3 epochs": 75}.items():
        assert TrainConfig(output=Path("run"), save_every=every).steps_between_saves(25) == steps


def test_a_rate_is_that_of_torchs_schedules() -> None:
    """A linear warm-up, then a cosine; the rates of groups of their own all follow it, a tensor as well."""
    groups = [{"lr": 0.5, "params": []}, {"lr": torch.tensor(2.0), "params": []}]
    rates = ScheduledRates(groups, RateSchedule("cosine", warmup_steps=4, num_steps=12))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    warm_up = lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=3)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    torchs = lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[4])
    for step in range(12):
        rates.set(groups, step)
        assert groups[0]["lr"] == pytest.approx(torchs.get_last_lr()[0], abs=1e-9)
        assert float(groups[1]["lr"]) == pytest.approx(4 * torchs.get_last_lr()[0], abs=1e-6)
        optimizer.step()
        torchs.step()


def test_without_a_schedule_the_rate_is_the_tasks_own() -> None:
    """Which its optimizer may change as it likes, or not have at all."""
    groups = [{"lr": 0.5}, {"params": []}]
    rates = ScheduledRates(groups, RateSchedule())
    groups[0]["lr"] = 0.25
    rates.set(groups, 1)
    assert groups == [{"lr": 0.25}, {"params": []}]
    with pytest.raises(ValueError, match="`lr_schedule`, `warmup_steps`: the task's optimizer has no learning rate"):
        ScheduledRates(groups, RateSchedule("cosine"))


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With what to do; so, too, missing headers that the compiled code includes."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    with refused("`compile`: there is no C++ compiler 'no-such-compiler': install one..."):
        require_compiler()
    (tmp_path / "c++").touch(mode=0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with refused(f"`compile`: there is no {tmp_path}/Python.h: install Python's headers..."):
        require_compiler()


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
