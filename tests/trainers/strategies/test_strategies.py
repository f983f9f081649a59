"""Every strategy makes the gradients of all ranks their mean, and takes no new memory for it after the first steps."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool, group_on
from tests.refusals import said_by
from tests.trainers.models import Branching, Complex, Tied, inputs, mean_gradients, parameters_of, seeded, small_model
from trainers.data_parallel import DataParallel
from trainers.strategies import STRATEGIES, make_strategy
from trainers.strategy_names import STRATEGY_INFOS, parse_strategy, steps_between_averages, strategy_info

MEANING = [name for name, info in STRATEGY_INFOS.items() if info.leaves_mean and info.is_exact]
OURS = [
    *(name for name in MEANING if not name.startswith("ddp")),
    "powersgd/9",
]  # torch's wants find_unused_parameters, and told so
STEPS = 4


def pool_of(name: str, request: pytest.FixtureRequest) -> RankPool:
    """Ranks with groups of the backend that the strategy wants."""
    pool: RankPool = request.getfixturevalue("ring_ranks" if strategy_info(name).backend else "ranks")
    return pool


def parallel(model: nn.Module, name: str, group: dist.ProcessGroup) -> DataParallel:
    """In a case."""
    return DataParallel(model, name, group_on("ring", group.size()) if strategy_info(name).backend else group)


def tolerance(name: str) -> dict[str, float]:
    """bfloat16 has 8 bits; each rank on the way rounds."""
    return {"rtol": 0.05, "atol": 0.02} if name.endswith("bf16") else {"rtol": 1e-5, "atol": 1e-6}


def synchronised(group: dist.ProcessGroup, name: str) -> list[torch.Tensor]:
    """The gradients after two steps of one strategy: the second shows what is left over from the first."""
    model = parallel(small_model(), name, group)
    for set_to_none in (True, False):
        model.zero_grad(set_to_none)
        model(inputs(group.rank())).pow(2).mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("name", [*MEANING, "bucketed/0.00002", "ddp/0.00002", "powersgd/9"])
def test_gradients_become_the_mean(request: pytest.FixtureRequest, name: str, num_ranks: int) -> None:
    """The same on all ranks, bit for bit, and those of one process with all the data; also in tiny buckets.

    Also with factors that would be larger than any gradient, which are then sent as they are.
    """
    results = pool_of(name, request).run(synchronised, name, num_ranks=num_ranks)
    for index, expected in enumerate(mean_gradients(small_model(), num_ranks)):
        torch.testing.assert_close(results[0][index], expected, **tolerance(name))
        assert all(torch.equal(result[index], results[0][index]) for result in results)


def trained(group: dist.ProcessGroup, name: str, make: Callable[[], nn.Module], clip: float) -> list[torch.Tensor]:
    """The parameters after a few steps of AdamW."""
    model = make()  # here, as a model that is sent to the ranks comes in memory that all share
    wrapped = parallel(model, name, group)
    optimizer = wrapped.optimizer(partial(torch.optim.AdamW, lr=0.05))
    for step in range(STEPS):
        optimizer.zero_grad()
        wrapped(inputs(group.rank() + 7 * step)).pow(2).mean().backward()
        if clip:
            wrapped.clip_grad_norm_(clip)
        optimizer.step()
    wrapped.unshard()
    return parameters_of(model)


def trained_alone(model: nn.Module, num_ranks: int, clip: float) -> list[torch.Tensor]:
    """The same by one process that sees all ranks' data."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.cat([inputs(rank + 7 * step) for rank in range(num_ranks)])).pow(2).mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("clip", [0.0, 0.1])
@pytest.mark.parametrize("name", [name for name, info in STRATEGY_INFOS.items() if info.is_exact and not info.wire])
def test_training_is_that_of_one_process(request: pytest.FixtureRequest, name: str, clip: float) -> None:
    """With the whole batch, also if gradients are clipped; tied, frozen and other-typed parameters are no obstacle."""
    models = (small_model, partial(seeded, Tied), partial(seeded, Complex))
    for make in models[:1] if name.startswith("fsdp") else models:  # which takes one dtype in a layer
        expected = trained_alone(make(), 3, clip)
        for result in pool_of(name, request).run(trained, name, make, clip, num_ranks=3):
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def changed(group: dist.ProcessGroup, name: str) -> list[str]:
    """What is said of a model that is changed after it was wrapped."""
    told = []
    for change in ("thawed", "replaced", "added"):
        plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        plain[0].weight.requires_grad_(change != "thawed")
        model = parallel(plain, name, group)
        if change == "replaced":
            plain[1] = nn.Linear(4, 4)
        if change == "added":
            plain.extra = nn.Parameter(torch.ones(3))
        plain[0].weight.requires_grad_(True)
        told.append(said_by(RuntimeError, model, torch.ones(1, 4)))
    return told


@pytest.mark.parametrize("name", STRATEGY_INFOS)
def test_a_model_that_changes_after_it_was_wrapped_is_refused(request: pytest.FixtureRequest, name: str) -> None:
    """As its new parameters would not be synchronised, and the ranks would diverge."""
    for told in pool_of(name, request).run(changed, name, num_ranks=1):
        assert all("is new or requires a gradient only since the model was wrapped" in text for text in told), told


def stepped_in_float16(group: dist.ProcessGroup, name: str) -> torch.Tensor:
    """A weight after one step, with gradients whose sum float16 cannot hold."""
    model = parallel(seeded(partial(nn.Linear, 30, 20, bias=False)).half(), name, group)
    optimizer = model.optimizer(partial(torch.optim.SGD, lr=2**-13))
    with torch.no_grad():
        model.unshard()
        model.weight.zero_()
    model(torch.full((1, 30), 32768.0, dtype=torch.float16)).sum().backward()
    optimizer.step()
    model.sync_parameters()
    model.unshard()
    return model.weight.detach().clone()


@pytest.mark.parametrize("name", STRATEGY_INFOS)
def test_float16_holds_means_whose_sums_it_does_not_hold(request: pytest.FixtureRequest, name: str) -> None:
    """As with torch's DistributedDataParallel, which divides gradients before it adds them."""
    for weight in pool_of(name, request).run(stepped_in_float16, name, num_ranks=3):
        assert weight.unique().tolist() == pytest.approx([-4.0 * (1.33 if name == "diloco" else 1.0)], rel=0.01)


def test_without_synchronisation_ranks_drift_apart(ranks: RankPool) -> None:
    """With "none" ranks have other parameters after training."""
    first, second = ranks.run(trained, "none", small_model, 0.0, num_ranks=2)
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def unused(group: dist.ProcessGroup, name: str) -> list[torch.Tensor | None]:
    """Gradients where one layer takes part on rank 1 only, and one nowhere."""
    model = DataParallel(seeded(Branching), name, group)
    for _ in range(2):
        model.zero_grad()
        model(torch.full((2, 3), 1.0 if group.rank() == 1 else -1.0)).sum().backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("name", OURS)
def test_parameters_that_are_not_used(ranks: RankPool, name: str) -> None:
    """All ranks get the mean of a gradient that one rank has, the others counting as zero; unused ones stay without."""
    for result in ranks.run(unused, name, num_ranks=3):
        first, first_bias, second, second_bias, third, third_bias = result
        assert third is None
        assert third_bias is None
        for found, expected in ((first, -2 / 3), (first_bias, 2.0), (second, 2 / 3), (second_bias, 2 / 3)):
            assert found is not None
            torch.testing.assert_close(found, torch.full_like(found, expected), **tolerance(name))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rung", "'rung' is not one of none, allreduce, "),
        ("ring/4", "'ring/4': ring takes no number; only bucketed, bucketed_bf16, ddp, "),
        ("ddp/", "'ddp/': after the slash must be the size of a bucket in MiB, such as ddp/4"),
        ("local_sgd/0", "'local_sgd/0': after the slash must be the number of steps from one average to the next, "),
        ("diloco/2.5", "'diloco/2.5': after the slash must be the number of steps from one average to the next, such"),
        ("diloco/9999999", "'diloco/9999999': after the slash must be the number of steps from one average to the"),
        ("ddp/-1", "'ddp/-1': after the slash must be the size of a bucket in MiB, such as ddp/4"),
    ],
)
def test_names_that_are_refused(name: str, message: str) -> None:
    """The message says what there is."""
    with pytest.raises(ValueError, match="^" + message):
        make_strategy(name)


def test_names_are_known_without_torch() -> None:
    """The command lines check them before they load it."""
    assert list(STRATEGIES) == list(STRATEGY_INFOS)


def test_a_number_after_the_slash() -> None:
    """It becomes an argument of the strategy; of some it says how often they communicate."""
    assert parse_strategy("bucketed/0.5") == ("bucketed", {"bucket_cap_mb": 0.5})
    assert parse_strategy("diloco/16") == ("diloco", {"every": 16})
    assert [steps_between_averages(name) for name in ("ring", "ddp/4", "local_sgd", "diloco/16")] == [1, 1, 8, 16]


LARGEST = 4096  # bytes; a gradient of the model below has 262,144
NAMES = ["allreduce", "flat", "ring", "bucketed/0.3", "bucketed_bf16/0.3", "zero1"]


def allocated(group: dist.ProcessGroup, name: str) -> int:
    """The largest piece of memory, in bytes, that torch takes in a synchronisation after three steps."""
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))
    parallel = DataParallel(model, name, group, broadcast=True)
    for _ in range(3):
        parallel(torch.ones(2, 256)).sum().backward()
    with torch.profiler.profile(profile_memory=True) as profile:
        parallel.sync_gradients()
    return max((event.self_cpu_memory_usage for event in profile.events() or []), default=0)


@pytest.mark.parametrize("name", NAMES)
def test_no_allocation(ranks: RankPool, name: str) -> None:
    """Buffers are made once; what is left is Python's small change."""
    assert max(ranks.run(allocated, name, num_ranks=2)) < LARGEST


def fresh(group: dist.ProcessGroup) -> int:
    """As `allocated`, of a synchronisation that makes a copy of all gradients."""
    del group
    gradients = [torch.ones(256, 256) for _ in range(4)]
    with torch.profiler.profile(profile_memory=True) as profile:
        torch.cat([gradient.view(-1) for gradient in gradients])
    return max((event.self_cpu_memory_usage for event in profile.events() or []), default=0)


def test_an_allocation_would_be_seen(ranks: RankPool) -> None:
    """The measurement itself."""
    assert ranks.run(fresh, num_ranks=1) == [4 * 256 * 256 * 4]
