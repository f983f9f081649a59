"""`zero3`: a rank holds whole parameters while a layer needs them, and training is that of the others."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.ranks import RankPool
from tests.refusals import said_by
from tests.trainers.models import Blocks, backward, inputs, seeded, small_model
from tests.trainers.strategies.odd_layers import ODD_MODELS
from trainers.data_parallel import DataParallel
from trainers.strategies.flat_vector import layers_of
from trainers.strategies.own_optimizer import ShardingError

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def test_layers_of_a_model() -> None:
    """Members of lists, dicts and sequences; the rest is the model's, with what two layers share."""
    model = Blocks()
    names = [name for name, _ in model.named_parameters()]
    layers = {
        next(name for name, module in model.named_modules() if module is layer.module): [
            names[index] for index in layer.indices
        ]
        for layer in layers_of(model)
    }
    assert layers == {
        "blocks.0": ["blocks.0.bias"],
        "blocks.1": ["blocks.1.0.weight", "blocks.1.0.bias"],
        "blocks.2": ["blocks.2.weight", "blocks.2.bias"],
        "": ["first.weight", "first.bias", "last.weight", "last.bias", "blocks.0.weight"],
    }
    assert [layer.indices for layer in layers_of(small_model())] == [[0, 1], [2, 3], [4, 5]]
    assert [layer.indices for layer in layers_of(nn.Linear(2, 2))] == [[0, 1]]


def penalised(group: dist.ProcessGroup, name: str) -> list[torch.Tensor]:
    """The parameters after steps with a gradient of gradients, and other passes before its backward pass."""
    parallel = DataParallel(small_model(), name, group)
    optimizer = parallel.optimizer(SGD)
    for step in range(3):
        optimizer.zero_grad()
        x = inputs(group.rank() + 7 * step).requires_grad_()
        out = parallel(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (again,) = torch.autograd.grad(parallel(x).sum(), x)
        torch.testing.assert_close(slope, again)
        (slope.pow(2).sum() + out.pow(2).mean()).backward()
        optimizer.step()
    return [tensor.clone() for tensor in parallel.state_dict().values()]


def test_gradients_of_gradients_are_those_of_the_ring(ranks: RankPool) -> None:
    """The graph that they come from reads the parameters, too."""
    expected = ranks.run(penalised, "ring", num_ranks=2)
    torch.testing.assert_close(ranks.run(penalised, "zero3", num_ranks=2), expected)


def recomputed(group: dist.ProcessGroup, name: str) -> list[torch.Tensor]:
    """The parameters after a step in which the wrapped model, whose end does not count, is computed anew."""
    parallel = DataParallel(ODD_MODELS["passing"](), name, group)
    optimizer = parallel.optimizer(SGD)
    checkpoint(parallel, inputs(group.rank()), use_reentrant=False).pow(2).mean().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return [tensor.clone() for tensor in parallel.state_dict().values()]


def test_the_whole_model_can_be_computed_anew(ranks: RankPool) -> None:
    """Its forward pass within a backward pass takes nothing away."""
    expected = ranks.run(recomputed, "ring", num_ranks=2)
    torch.testing.assert_close(ranks.run(recomputed, "zero3", num_ranks=2), expected)


def largest_held(group: dist.ProcessGroup) -> tuple[int, int]:
    """The most bytes of parameters that are there at once while a model of many alike layers trains, and their sum."""
    torch.manual_seed(3)
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(8)))
    size_bytes = sum(p.nbytes for p in model.parameters())
    parallel, most = DataParallel(model, "zero3", group), 0
    parallel(torch.ones(1, 16)).sum().backward()

    def count(*_: object) -> None:
        nonlocal most
        most = max(most, sum(p.untyped_storage().nbytes() for p in model.parameters()))

    for layer in model:
        layer.register_forward_hook(count, prepend=True)
        layer.register_full_backward_pre_hook(count)
    parallel.zero_grad()
    parallel(torch.ones(1, 16, requires_grad=True)).sum().backward()
    return most, size_bytes


def test_a_rank_holds_a_layer_at_a_time(ranks: RankPool) -> None:
    """Of eight."""
    for most, size_bytes in ranks.run(largest_held, num_ranks=2):
        assert most == size_bytes // 8


def looked_at(group: dist.ProcessGroup) -> list[float]:
    """Return the result of one rank alone between two steps, the state, and the parameter after the next step."""
    parallel = DataParallel(nn.Linear(1, 1, bias=False), "zero3", group, broadcast=True)
    optimizer = parallel.optimizer(partial(torch.optim.SGD, lr=0.5))
    parallel.load_state_dict({"weight": torch.tensor([[3.0]])})
    parallel(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    parallel.unshard()
    with torch.no_grad():
        alone = parallel(torch.ones(1, 1)).item() if group.rank() == 0 else 2.5
    saved = parallel.state_dict()  # a copy, which the next step leaves alone
    parallel.model.weight.detach().numpy()  # which keeps its memory, whatever the parameter becomes
    parallel.load_state_dict({"weight": saved["weight"] * 2})
    optimizer.zero_grad()
    parallel(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    return [alone, saved["weight"].item(), parallel.state_dict()["weight"].item()]


def test_whole_parameters_can_be_looked_at_and_written(ranks: RankPool) -> None:
    """After `unshard`, by one rank alone; what is written to them is what the next step begins with."""
    assert ranks.run(looked_at, num_ranks=3) == [[2.5, 2.5, 4.5]] * 3


class OfRank(nn.Module):
    """Layers that are alike, of which every rank leaves out another one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 3)."""
        for number, layer in enumerate(self.layers):
            if number != dist.get_rank():
                x = layer(x)
        return x


def with_other_layers(group: dist.ProcessGroup) -> str:
    """Return the error of ranks that use other layers."""
    parallel = DataParallel(seeded(OfRank), "zero3", group)
    return said_by(ShardingError, backward, parallel, 0)


def test_ranks_must_use_the_same_layers(ranks: RankPool) -> None:
    """Or shares of different layers would be put together."""
    for error in ranks.run(with_other_layers, num_ranks=3):
        assert error.startswith("the ranks have used different layers, or the same layers in a different order: with")


def copied(group: dist.ProcessGroup) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The parameters, and those of a copy of the plain model which is averaged with later ones and trained alone."""
    parallel = DataParallel(small_model(), "zero3", group)
    optimizer = parallel.optimizer(SGD)
    average = torch.optim.swa_utils.AveragedModel(parallel.module)
    backward(parallel, 0)
    optimizer.step()
    parallel.unshard()
    average.update_parameters(parallel.module)
    if group.rank() == 0:
        average(inputs(0)).sum().backward()
    optimizer.zero_grad()
    backward(parallel, 1)
    return [p.detach() for p in average.parameters()], list(small_model().parameters())


def test_a_copy_is_a_plain_model(ranks: RankPool) -> None:
    """The first update of an average is a copy; one rank alone can use it, and it stays as it is."""
    (found, first), (again, _) = ranks.run(copied, num_ranks=2)
    torch.testing.assert_close(found, again, rtol=0, atol=0)
    assert [f.shape for f in found] == [p.shape for p in first]
    assert not any(torch.equal(f, p) for f, p in zip(found, first, strict=True))
