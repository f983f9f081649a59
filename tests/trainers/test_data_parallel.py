"""`DataParallel`: what it checks, when it synchronises, and that it is in no other way to be told from the model."""

import dataclasses
from collections.abc import Callable
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from collectives import CollectiveError
from tests.ranks import RankPool
from tests.trainers.models import inputs, small_model
from trainers.data_parallel import DataParallel, DriftError
from trainers.replica_check import first_mismatch


def refusal(group: dist.ProcessGroup, make: Callable[[int], nn.Module], broadcast: bool = False) -> str:
    """Return the error for a model that is made from the rank; of one that it takes, the first mismatch of ranks."""
    model = make(group.rank())
    try:
        DataParallel(model, "ring", group, broadcast=broadcast)
    except ValueError as error:
        return str(error)
    return first_mismatch(model, group) or ""


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


def seeded_apart(group: dist.ProcessGroup) -> list[float]:
    """The weights that a model with a seed of its own on every rank begins with, and has after a synchronised step."""
    model = DataParallel(seeded_by_rank(group.rank()), "ring", group, broadcast=True)
    begun = model.weight.flatten().tolist()
    optimizer = model.optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    model(torch.ones(1, 2) * group.rank()).sum().backward()
    optimizer.step()
    model.check_identical()
    return begun + model.weight.flatten().tolist()


def test_other_seeds_are_accepted_with_broadcast(ranks: RankPool) -> None:
    """All begin with rank 0's weights and take the same step."""
    found = ranks.run(seeded_apart, num_ranks=3)
    assert found[0] == found[1] == found[2]
    assert found[0][:4] == seeded_by_rank(0).weight.flatten().tolist()  # type: ignore[operator, union-attr]


def on_two_devices(rank: int) -> nn.Module:  # noqa: ARG001
    """The second layer has no memory."""
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))


def sparse(rank: int) -> nn.Module:  # noqa: ARG001
    """An embedding with sparse gradients."""
    return nn.Sequential(nn.Embedding(3, 2, sparse=True))


def frozen(rank: int) -> nn.Module:  # noqa: ARG001
    """Nothing to train."""
    return nn.Linear(2, 2).requires_grad_(False)


SEED = "use the same seed on all ranks before making the model, or give broadcast=True to use the model of rank 0"
DEVICES = "parameter 0.weight on cpu, parameter 1.weight on meta"
LAYERS = "parameter 0.weight of (2, 2) torch.float32 on rank 0 is parameter 1.weight of (2, 2) torch.float32 on rank"


@pytest.mark.parametrize(
    ("make", "broadcast", "message"),
    [
        (one_bias_off, False, f"parameter 4.bias differs between rank 0 and rank 2, by up to 0.25; {SEED}"),
        (one_bias_off, True, ""),
        (one_buffer_off, False, f"buffer running_mean differs between rank 0 and ranks 1, 2, by up to 3; {SEED}"),
        (one_buffer_off, True, ""),
        (one_layer_more, False, f"{LAYERS} 1; {SEED}"),
        (
            one_layer_more,
            True,
            f"{LAYERS} 1: broadcast=True sends values, not layers; make the same model on every rank",
        ),
        (on_two_devices, False, f"the model is on 2 devices ({DEVICES}): a rank trains on one; model.to(device)"),
        (sparse, False, "module 0: sparse=True gives sparse gradients, which cannot be synchronised here"),
        (frozen, False, "the model has no parameter that requires a gradient: there is nothing to train"),
    ],
)
def test_models_that_are_refused(
    ranks: RankPool, make: Callable[[int], nn.Module], broadcast: bool, message: str
) -> None:
    """Every rank gets the same error: the tensor, the ranks, how far off, and what to do; "" if there is none."""
    assert ranks.run(refusal, make, broadcast, num_ranks=3) == [message] * 3


@dataclasses.dataclass
class Scores:
    """Not a tensor."""

    logits: torch.Tensor
    extra: list[str]


class Wordy(nn.Module):
    """Takes keywords, returns an object, has a method and an attribute of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(3, 1), nn.Dropout(0.5)
        self.title = "mine"

    def forward(self, *, x: torch.Tensor) -> Scores:
        """x: (batch, 3)."""
        return Scores(self.drop(self.layer(x)), ["kept"])

    def reset(self) -> str:
        """Something of the user's."""
        return "done"


def behaves(group: dist.ProcessGroup) -> tuple[object, ...]:
    """Return the answers of the wrapper to all that can be asked of it."""
    torch.manual_seed(0)
    plain = Wordy()
    model = DataParallel(plain, "bucketed", group)
    scores = model(x=inputs(0))
    scores.logits.sum().backward()
    model.eval()
    evaluated = plain.training, torch.equal(model(x=inputs(0)).logits, plain(x=inputs(0)).logits)
    model.train()
    missing = model.load_state_dict({name: value * 2 for name, value in plain.state_dict().items()})
    return (
        scores.extra, plain.layer.weight.grad is not None, evaluated, plain.training, list(model.state_dict()),
        str(missing), model.title, model.reset(), model.module is plain,
    )  # fmt: skip


def test_it_passes_for_the_model(ranks: RankPool) -> None:
    """Keywords, outputs of any kind, train and eval, the state's names, methods and attributes."""
    for found in ranks.run(behaves, num_ranks=2):
        names = ["layer.weight", "layer.bias"]
        matched = "<All keys matched successfully>"
        assert found == (["kept"], True, (False, True), True, names, matched, "mine", "done", True)


def normalised(group: dist.ProcessGroup) -> list[float]:
    """The running mean of two ranks with data of their own, at the start of the third step."""
    model = DataParallel(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1)), "ring", group, broadcast=True)
    seen = []
    model.model[0].register_forward_pre_hook(lambda norm, _: seen.append(norm.running_mean.item()))
    for _ in range(3):
        model(torch.tensor([[1.0], [3.0]]) * (group.rank() + 1)).sum().backward()
    return seen


def test_buffers_follow_rank_0(ranks: RankPool) -> None:
    """The mean of rank 0's data is 2, of which the running mean takes up a tenth each step."""
    for found in ranks.run(normalised, num_ranks=2):
        assert found == pytest.approx([0.0, 0.2, 0.38])


def drifted(group: dist.ProcessGroup) -> tuple[str, str]:
    """Return the result of the check before and after one weight has changed on rank 1."""
    model = DataParallel(small_model(), "ring", group)
    with mock.patch("torch.distributed.all_gather_object", side_effect=AssertionError):
        model.check_identical()  # by a collective of ours alone: a program may end right after it
    if group.rank() == 1:
        with torch.no_grad():
            model.model[0].weight[2, 1] += 0.5
    try:
        model.check_identical()
    except DriftError as error:
        return "identical", str(error)
    return "identical", ""


def test_drift_is_found(ranks: RankPool) -> None:
    """On every rank, with the parameter, and with what to do."""
    for found in ranks.run(drifted, num_ranks=2):
        assert found == (
            "identical",
            "parameter 0.weight differs between rank 0 and rank 1, by up to 0.5; every rank must make the same steps, "
            "with the optimizer that model.optimizer(...) gives",
        )


def late(group: dist.ProcessGroup, name: str) -> str:
    """Return the error of rank 0's backward pass when rank 1 has none."""
    model = DataParallel(small_model(), name, group)
    if group.rank() == 1:
        return ""
    try:
        model(inputs(0)).pow(2).mean().backward()
    except CollectiveError as error:
        return str(error)
    return "nothing was raised"


def test_a_late_peer_is_an_error_of_the_backward_pass() -> None:
    """It names rank, step and peer, as the collectives do, and comes out as what it is."""
    with RankPool(2, peer_timeout_s=2.0) as of_ring, RankPool(2, peer_timeout_s=2.0) as of_buckets:
        of_ring.start(late, "ring")
        of_buckets.start(late, "bucketed/0.00002")
        for hasty in (of_ring, of_buckets):
            answer = hasty.answers([0], 120)[0]
            assert answer.good
            assert "rank 0" in answer.value
            assert "rank 1" in answer.value
