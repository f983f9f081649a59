"""`DataParallel`: what it checks, when it synchronises, and that it is in no other way to be told from the model."""

import copy
import dataclasses
from collections.abc import Callable
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from collectives import CollectiveError
from tests.ranks import RankPool
from tests.refusals import said_by
from tests.trainers.models import inputs, mean_gradients, small_model
from trainers.data_parallel import DataParallel, DriftError
from trainers.replica_check import first_mismatch
from trainers.strategy_names import STRATEGY_INFOS

MEANING = [name for name, info in STRATEGY_INFOS.items() if info.leaves_mean and info.is_exact and not info.backend]
ALL = [name for name in MEANING if not name.endswith("bf16")]


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
    return nn.Sequential(*[nn.Identity(), nn.Linear(2, 2, bias=False)][rank == 0 :], nn.LayerNorm(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            one_bias_off,
            "parameter 4.bias differs between rank 0 and rank 2, by up to 0.25; use the same seed on all ranks",
        ),
        (one_buffer_off, "buffer running_mean differs between rank 0 and ranks 1, 2, by up to 3; use the same seed"),
    ],
)
def test_ranks_that_differ_are_told_so(ranks: RankPool, make: Callable[[int], nn.Module], message: str) -> None:
    """Every rank gets the same error: the tensor, the ranks, how far off; and with broadcast=True none."""
    for found in ranks.run(refusal, make, num_ranks=3):
        assert found.startswith(message)
    assert ranks.run(refusal, make, True, num_ranks=3) == [""] * 3


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


@pytest.mark.parametrize("broadcast", [False, True])
def test_other_layers_are_found(ranks: RankPool, broadcast: bool) -> None:
    """Names and shapes are compared, too; with broadcast=True before anything of another size is sent."""
    first, second = ranks.run(refusal, one_layer_more, broadcast, num_ranks=2)
    assert first == second
    assert "parameter 0.weight of (2, 2) torch.float32 on rank 0 is parameter 1.weight of (2, 2)" in first
    advice = ": broadcast=True sends values, not layers; make the same model on every rank"
    assert first.endswith(advice) == broadcast


def on_two_devices(rank: int) -> nn.Module:  # noqa: ARG001
    """The second layer has no memory."""
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))


def sparse(rank: int) -> nn.Module:  # noqa: ARG001
    """An embedding with sparse gradients."""
    return nn.Sequential(nn.Embedding(3, 2, sparse=True))


def frozen(rank: int) -> nn.Module:  # noqa: ARG001
    """Nothing to train."""
    return nn.Linear(2, 2).requires_grad_(False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (on_two_devices, "the model is on 2 devices (parameter 0.weight on cpu, parameter 1.weight on meta): a rank"),
        (sparse, "module 0: sparse=True gives sparse gradients, which cannot be synchronised here"),
        (frozen, "the model has no parameter that requires a gradient: there is nothing to train"),
    ],
)
def test_models_that_are_refused(ranks: RankPool, make: Callable[[int], nn.Module], message: str) -> None:
    """Before anything is sent."""
    assert ranks.run(refusal, make, num_ranks=1)[0].startswith(message)


def accumulated(group: dist.ProcessGroup, name: str, way: str) -> list[torch.Tensor]:
    """The gradients of three micro-batches, their losses divided by three."""
    model = DataParallel(small_model(), name, group)
    parts = inputs(group.rank(), 6).chunk(3)
    for _ in range(2):
        model.zero_grad()
        if way == "no_sync":
            with model.no_sync():
                for part in parts[:-1]:
                    (model(part).pow(2).mean() / 3).backward()
            (model(parts[-1]).pow(2).mean() / 3).backward()
        else:
            model.disable_grad_sync()
            for part in parts:
                (model(part).pow(2).mean() / 3).backward()
            model.enable_grad_sync()
            model.sync_gradients()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("way", ["no_sync", "by hand"])
@pytest.mark.parametrize("name", ALL)
def test_accumulation_equals_the_large_batch(ranks: RankPool, name: str, way: str) -> None:
    """Three micro-batches a rank, synchronised once, by the last backward pass or by hand."""
    expected = mean_gradients(small_model(), 2, 6)
    for result in ranks.run(accumulated, name, way, num_ranks=2):
        torch.testing.assert_close(result, expected)


def silent(group: dist.ProcessGroup, name: str) -> bool:
    """Whether a backward pass under no_sync leaves the rank's own gradients, though the other rank does nothing."""
    model = DataParallel(small_model(), name, group)
    if group.rank() == 1:
        return True
    with model.no_sync():
        model(inputs(0)).pow(2).mean().backward()
    expected = mean_gradients(small_model(), 1)
    return all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ALL)
def test_no_sync_sends_nothing(ranks: RankPool, name: str) -> None:
    """Else rank 0 would wait for rank 1 in vain."""
    assert ranks.run(silent, name, num_ranks=2) == [True, True]


def sync_by_hand(group: dist.ProcessGroup, name: str) -> list[bool]:
    """Return `do_sync` before, within and after `no_sync`, and whether gradients asked for within are its own."""
    model = DataParallel(small_model(), name, group)
    told = [model.do_sync]
    with model.no_sync():
        told.append(model.do_sync)
        model(inputs(group.rank())).pow(2).mean().backward()
        own = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        if group.rank() == 0:  # the other rank asks for nothing
            model.sync_gradients()
        told.append(all(torch.equal(p.grad, o) for p, o in zip(model.parameters(), own, strict=True)))  # type: ignore[arg-type]
    model.sync_gradients()
    synchronised = zip(model.parameters(), mean_gradients(small_model(), 2), strict=True)
    return [*told, model.do_sync, all(torch.allclose(p.grad, mean) for p, mean in synchronised)]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ring", "bucketed", "ddp"])
def test_sync_gradients_does_nothing_within_no_sync(ranks: RankPool, name: str) -> None:
    """`do_sync` tells so; after it the gradients are synchronised as ever."""
    assert ranks.run(sync_by_hand, name, num_ranks=2) == [[True, False, True, True, True]] * 2


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
    with RankPool(2, peer_timeout_s=4.0) as of_ring, RankPool(2, peer_timeout_s=4.0) as of_buckets:
        of_ring.start(late, "ring")
        of_buckets.start(late, "bucketed/0.00002")
        for hasty in (of_ring, of_buckets):
            answer = hasty.answers([0], 120)[0]
            assert answer.good
            assert "rank 0" in answer.value
            assert "rank 1" in answer.value


def after_a_failure(group: dist.ProcessGroup, name: str) -> list[torch.Tensor]:
    """The gradients of a backward pass after one that was broken off midway, on all ranks."""
    model = DataParallel(small_model(), name, group)
    handle = model.model[0].weight.register_hook(_fail)
    try:
        model(inputs(9)).pow(2).mean().backward()
    except ZeroDivisionError:
        handle.remove()
    model.zero_grad()
    model(inputs(group.rank())).pow(2).mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def _fail(_: torch.Tensor) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("name", ["allreduce", "ring", "bucketed"])
def test_a_backward_pass_that_fails_leaves_nothing_behind(ranks: RankPool, name: str) -> None:
    """The next one is synchronised as ever."""
    for result in ranks.run(after_a_failure, name, num_ranks=2):
        torch.testing.assert_close(result, mean_gradients(small_model(), 2))


def copied(group: dist.ProcessGroup, name: str) -> str:
    """Return the error of a copy of the wrapper."""
    return said_by(TypeError, copy.deepcopy, DataParallel(small_model(), name, group))


@pytest.mark.parametrize("name", ["ring", "fsdp", "zero3"])
def test_a_copy_is_refused(ranks: RankPool, name: str) -> None:
    """And what to do instead is said."""
    for message in ranks.run(copied, name, num_ranks=2):
        assert message.startswith(
            "a DataParallel cannot be copied or pickled, as its process group cannot: copy the plain"
        )
