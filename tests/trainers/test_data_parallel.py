"""`DataParallel`: what it checks, when it synchronises, and that it is in no other way to be told from the model."""

import importlib
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from syrupy.assertion import SnapshotAssertion
from torch import nn
from torch.distributed import distributed_c10d

from collectives import CollectiveError
from tests.ranks import RankPool
from tests.refusals import said_by
from tests.trainers.models import inputs, parameters_of, small_model
from trainers.data_parallel import DataParallel, DriftError, fingerprint, first_mismatch


def seeded_by_rank(rank: int) -> nn.Module:
    """Other weights on every rank."""
    torch.manual_seed(rank)
    return nn.Linear(2, 2)


def one_bias_off(rank: int) -> nn.Module:
    """Rank 2's last bias is a quarter larger."""
    model = small_model()
    with torch.no_grad():
        model[-1].bias.fill_(1.25 if rank == 2 else 1.0)
    return model


def one_buffer_off(rank: int) -> nn.Module:
    """Ranks 1 and 2 have seen other data."""
    model = nn.BatchNorm1d(2)
    model.running_mean[1] = 3.0 * bool(rank)
    return model


def one_layer_more(rank: int) -> nn.Module:
    """On rank 1."""
    return nn.Sequential(*[nn.Identity(), nn.Linear(2, 2, bias=False)][rank != 1 :], nn.LayerNorm(2))


# A model made from the rank, and whether rank 0's is broadcast.
MODELS: list[tuple[Callable[[int], nn.Module], bool]] = [
    (seeded_by_rank, True),
    *((make, broadcast) for make in (one_bias_off, one_buffer_off, one_layer_more) for broadcast in (False, True)),
    (lambda _: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")), False),
    (lambda _: nn.Sequential(nn.Embedding(3, 2, sparse=True)), False),
    (lambda _: nn.Linear(2, 2).requires_grad_(False), False),
]


def wrapped(group: dist.ProcessGroup) -> list[str]:
    """Return the errors of all models; of one that is taken, the first mismatch of ranks."""
    errors = []
    for make, broadcast in MODELS:
        model = make(group.rank())
        try:
            DataParallel(model, "ring", group, broadcast=broadcast)
            errors.append(first_mismatch(model, group) or "")
        except ValueError as error:
            errors.append(str(error))
    return errors


def test_models_that_are_refused(ranks: RankPool, snapshot: SnapshotAssertion) -> None:
    """Every rank gets the same error: the tensor, the ranks, how far off, and what to do; "" if there is none."""
    first, *others = ranks.run(wrapped, num_ranks=3)
    assert others == [first] * 2
    assert first == snapshot


class Wordy(nn.Module):
    """Takes keywords, returns an object, has a method and an attribute of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(3, 1), nn.Dropout(0.5)

    def forward(self, *, x: torch.Tensor) -> dict[str, object]:
        """x: (batch, 3)."""
        return {"logits": self.drop(self.layer(x)), "extra": ["kept"]}

    def reset(self) -> str:
        """Something of the user's."""
        return "done"


def behaves(group: dist.ProcessGroup) -> None:
    """Ask the wrapper for all that the model can be asked for."""
    plain = Wordy()
    model = DataParallel(plain, "bucketed", group, broadcast=True)
    scores = model(x=inputs(0))
    assert scores["extra"] == ["kept"]
    scores["logits"].sum().backward()
    assert plain.layer.weight.grad is not None
    model.eval()
    assert not plain.training
    assert torch.equal(model(x=inputs(0))["logits"], plain(x=inputs(0))["logits"])
    doubled = {name: value * 2 for name, value in plain.state_dict().items()}
    assert str(model.load_state_dict(doubled)) == "<All keys matched successfully>"
    torch.testing.assert_close(dict(model.state_dict()), doubled)
    assert said_by(ValueError, model.load_state_dict, doubled, assign=True).startswith("assign=True: the strategy need")
    assert (model.reset(), model.drop.p, model.module) == ("done", 0.5, plain)


def test_it_passes_for_the_model(ranks: RankPool) -> None:
    """Keywords, outputs of any kind, train and eval, the state's names, methods and attributes."""
    ranks.run(behaves, num_ranks=2)


def normalised(group: dist.ProcessGroup) -> list[float]:
    """The running mean of two ranks with data of their own, at the start of the third step."""
    layers = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    layers.register_buffer("halves", torch.full((2, 1), group.rank(), dtype=torch.float16).T)
    model, seen = DataParallel(layers, "ring", group, broadcast=True), []
    model.model[0].register_forward_pre_hook(lambda norm, _: seen.append(norm.running_mean.item()))
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(torch.tensor([[1.0], [3.0]]) * (group.rank() + 1))
        scores.sum().backward()
        assert layers.halves.tolist() == [[0, 0]]
        layers.halves.fill_(group.rank())
    return seen


def test_buffers_follow_rank_0(ranks: RankPool) -> None:
    """The mean of rank 0's data is 2, of which the running mean takes up a tenth each step."""
    for found in ranks.run(normalised, num_ranks=2):
        assert found == pytest.approx([0.0, 0.2, 0.38])


def drifted(group: dist.ProcessGroup) -> str:
    """Return the error of the check when one weight has changed on rank 1."""
    model = DataParallel(small_model(), "ring", group)
    with mock.patch("torch.distributed.all_gather_object", side_effect=AssertionError):
        model.check_identical()  # by a collective of ours alone: a program may end right after it
    if group.rank() == 1:
        with torch.no_grad():
            model.model[0].weight[2, 1] += 0.5
    return said_by(DriftError, model.check_identical)


def test_drift_is_found(ranks: RankPool) -> None:
    """On every rank, with the parameter, and with what to do."""
    message = (
        "parameter 0.weight differs between rank 0 and rank 1, by up to 0.5; every rank must make the same steps, "
        "with the optimizer that model.optimizer(...) gives"
    )
    assert ranks.run(drifted, num_ranks=2) == [message] * 2


def test_fingerprints_see_a_single_bit() -> None:
    """Equal models agree; the smallest change of one number does not go unseen, in a buffer neither."""
    model, same, other = (nn.BatchNorm1d(3) for _ in range(3))
    other.running_mean[1] = torch.finfo(torch.float32).tiny
    assert fingerprint(model) == fingerprint(same) != fingerprint(other)


def late(group: dist.ProcessGroup) -> str:
    """Return the error of rank 0 when rank 1, which should receive buffers, has no forward pass."""
    model = DataParallel(nn.BatchNorm1d(3), "ring", group)
    distributed_c10d._set_pg_timeout(timedelta(seconds=1.0), group)  # only now: ranks may be slow to start
    return said_by(CollectiveError, model, inputs(0)) if group.rank() == 0 else ""


def test_a_late_peer_is_named() -> None:
    """With rank and step, as the collectives do."""
    with RankPool(2) as pool:
        pool.start(late)
        answer = pool.answers([0], 120)[0]
        assert answer.good
        assert "rank 0" in answer.value
        assert "rank 1" in answer.value


EXAMPLES = str(Path(__file__).parents[2] / "examples")


def example_trained(group: dist.ProcessGroup) -> list[torch.Tensor]:
    """The parameters on this rank after a few epochs."""
    with mock.patch.object(sys, "path", [EXAMPLES, *sys.path]):
        module: Any = importlib.import_module("dataloader")
    module.EPOCHS = 3
    return parameters_of(module.train(group))


def test_two_ranks_learn_what_one_process_learns(ranks: RankPool) -> None:
    """In the example with torch's DataLoader: from the same batches, the last of an epoch among them."""
    [alone] = ranks.run(example_trained, num_ranks=1)
    first, second = ranks.run(example_trained, num_ranks=2)
    torch.testing.assert_close(first, alone, rtol=1e-3, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
