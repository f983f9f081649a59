"""Every strategy makes the gradients of all ranks their mean, and takes no new memory for it after the first steps."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool, group_on
from tests.refusals import said_by
from tests.trainers.models import Branching, Complex, Tied, inputs, mean_gradients, parameters_of, seeded, small_model
from trainers.data_parallel import DataParallel
from trainers.strategies import make_strategy
from trainers.strategy_names import STRATEGY_INFOS, parse_strategy, steps_between_averages, strategy_info

NUM_RANKS, STEPS = 3, 4
MEANING = [name for name, info in STRATEGY_INFOS.items() if info.leaves_mean and info.is_exact]
TINY_BUCKETS = ["bucketed/0.00002", "ddp/0.00002"]
WHOLE = "powersgd/9"  # factors would be larger than any gradient, which is then sent as it is
# Torch's DDP wants find_unused_parameters, and says so.
OURS = [name for name in (*MEANING, WHOLE) if not name.startswith("ddp")]
MODELS = (small_model, partial(seeded, Tied), partial(seeded, Complex))
Tensors = list[torch.Tensor]


class Record(NamedTuple):
    """What a rank sees of a strategy in its run.

    gradients: of two backward passes, after one that failed; the second shows what is left over from the first.
    accumulated: the gradients of three micro-batches: the rank's own, and synchronised by hand and by the last backward
    pass. trained: the parameters after steps of AdamW, by model, with and without clipping. unused: the gradients where
    one layer takes part on rank 1 only, and one nowhere. halves: a weight in float16 after a step whose gradients' sum
    that cannot hold. refused: the errors of models that are changed after they were wrapped, and of a copy.
    """

    gradients: Tensors
    accumulated: list[Tensors]
    trained: list[tuple[Tensors, Tensors]]
    unused: list[torch.Tensor | None]
    halves: torch.Tensor
    refused: list[str]


@pytest.fixture(scope="module")
def record_of(request: pytest.FixtureRequest) -> Callable[[str], list[Record]]:
    """Return the records of all ranks of a strategy, which runs once."""

    @cache
    def run(name: str) -> list[Record]:
        pool = request.getfixturevalue("ring_ranks" if strategy_info(name).backend else "ranks")
        records: list[Record] = pool.run(recorded, name, num_ranks=NUM_RANKS)
        return records

    return run


def recorded(group: dist.ProcessGroup, name: str) -> Record:
    """Run a strategy on a rank."""
    wrap = partial(DataParallel, strategy=name, group=group)
    if strategy_info(name).backend:
        wrap = partial(DataParallel, strategy=name, group=group_on("ring", group.size()))
    # fsdp takes one dtype in a layer, and complex numbers are not rounded.
    models = MODELS[:1] if name.startswith("fsdp") or strategy_info(name).wire else MODELS
    is_mean = strategy_info(name).leaves_mean
    return Record(
        synchronised(wrap(small_model()), fails=not name.startswith("ddp")) if is_mean else [],
        accumulated(wrap(small_model())) if is_mean else [],
        [(trained(wrap(make()), 0.0), trained(wrap(make()), 0.1)) for make in models],
        unused(wrap(seeded(Branching))) if name in OURS else [],
        stepped_in_float16(wrap(seeded(partial(nn.Linear, 30, 20, bias=False)).half())),  # type: ignore[arg-type]
        [
            *(changed(wrap, change) for change in ("thawed", "replaced", "added")),
            said_by(TypeError, copy.deepcopy, wrap(small_model())),
        ],
    )


def synchronised(model: DataParallel, fails: bool) -> Tensors:
    """The gradients of two backward passes. fails: after one that breaks off in the middle."""
    if fails:
        hook = model.model[0].weight.register_hook(lambda _: 1 / 0)
        said_by(ZeroDivisionError, model(inputs(9)).sum().backward)
        hook.remove()
    for set_to_none in (True, False):
        model.zero_grad(set_to_none)
        model(inputs(model.group.rank())).pow(2).mean().backward()
    return gradients_of(model)


def accumulated(model: DataParallel) -> list[Tensors]:
    """The gradients of three micro-batches; rank 0 alone asks for a synchronisation while there is none."""
    parts = inputs(model.group.rank(), 6).chunk(3)

    def add(part: torch.Tensor) -> None:
        (model(part).pow(2).mean() / 3).backward()

    model.disable_grad_sync()
    for part in parts:
        add(part)
    if model.group.rank() == 0:
        model.sync_gradients()
    own = gradients_of(model)
    model.enable_grad_sync()
    model.sync_gradients()
    by_hand = gradients_of(model)
    model.zero_grad()
    with model.no_sync():
        assert not model.do_sync
        add(parts[0])
        add(parts[1])
    assert model.do_sync
    add(parts[2])
    return [own, by_hand, gradients_of(model)]


def gradients_of(model: nn.Module) -> Tensors:
    """Copies."""
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def trained(model: nn.Module, clip: float, num_ranks: int = 0) -> Tensors:
    """Train on this rank's data, or, in one process, on that of `num_ranks`."""
    parallel = model if isinstance(model, DataParallel) else None
    parameters = [p for p in model.parameters() if p.requires_grad]
    make = partial(torch.optim.AdamW, lr=0.05)
    optimizer = parallel.optimizer(make) if parallel else make(parameters)
    ranks = [parallel.group.rank()] if parallel else range(num_ranks)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.cat([inputs(rank + 7 * step) for rank in ranks])).pow(2).mean().backward()
        if clip:
            parallel.clip_grad_norm_(clip) if parallel else nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
    if parallel:
        parallel.unshard()
    return parameters_of(model)


def unused(model: DataParallel) -> list[torch.Tensor | None]:
    """The gradients where rank 1 alone uses a layer, and nobody another."""
    for _ in range(2):
        model.zero_grad()
        model(torch.full((2, 3), 1.0 if model.group.rank() == 1 else -1.0)).sum().backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def stepped_in_float16(model: DataParallel) -> torch.Tensor:
    """The weight after a step with gradients whose sum is infinite."""
    optimizer = model.optimizer(partial(torch.optim.SGD, lr=2**-13))
    with torch.no_grad():
        model.unshard()
        model.weight.zero_()
    model(torch.full((1, 30), 32768.0, dtype=torch.float16)).sum().backward()
    optimizer.step()
    model.sync_parameters()
    model.unshard()
    return parameters_of(model)[0]


def changed(wrap: Callable[[nn.Module], DataParallel], change: str) -> str:
    """Return the error of a model that is changed after it was wrapped."""
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for parameter in plain.parameters():
        nn.init.ones_(parameter)
    plain[0].weight.requires_grad_(change != "thawed")
    model = wrap(plain)
    if change == "replaced":
        plain[1] = nn.Linear(4, 4)
    if change == "added":
        plain.extra = nn.Parameter(torch.ones(3))
    plain[0].weight.requires_grad_(True)
    return said_by(RuntimeError, model, torch.ones(1, 4))


Records = Callable[[str], list[Record]]


def tolerance(name: str) -> dict[str, float]:
    """bfloat16 has 8 bits; each rank on the way rounds."""
    return {"rtol": 0.05, "atol": 0.02} if name.endswith("bf16") else {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.parametrize("name", [*MEANING, *TINY_BUCKETS, WHOLE])
def test_gradients_become_the_mean(record_of: Records, name: str) -> None:
    """The same on all ranks, bit for bit, and those of one process with all the data; also in tiny buckets."""
    first, *others = record_of(name)
    for index, expected in enumerate(mean_gradients(small_model(), NUM_RANKS)):
        torch.testing.assert_close(first.gradients[index], expected, **tolerance(name))
        assert all(torch.equal(other.gradients[index], first.gradients[index]) for other in others)


@pytest.mark.parametrize("name", [*MEANING, WHOLE])
def test_accumulation_equals_the_large_batch(record_of: Records, name: str) -> None:
    """Three micro-batches a rank, synchronised once; before that a rank has its own gradients."""
    records = record_of(name)
    torch.testing.assert_close(records[0].accumulated[0], mean_gradients(small_model(), 1, 6))
    for record in records:
        for found in record.accumulated[1:]:
            torch.testing.assert_close(found, mean_gradients(small_model(), NUM_RANKS, 6), **tolerance(name))


@pytest.mark.parametrize("name", [name for name, info in STRATEGY_INFOS.items() if info.is_exact and not info.wire])
def test_training_is_that_of_one_process(record_of: Records, name: str) -> None:
    """With the whole batch, also if gradients are clipped; tied, frozen and other-typed parameters are no obstacle."""
    for make, *by_rank in zip(MODELS, *(record.trained for record in record_of(name)), strict=False):
        expected = trained(make(), 0.0, NUM_RANKS), trained(make(), 0.1, NUM_RANKS)
        for found in by_rank:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", STRATEGY_INFOS)
def test_a_model_that_changes_after_it_was_wrapped_is_refused(record_of: Records, name: str) -> None:
    """As its new parameters would not be synchronised, and the ranks would diverge; a copy is refused as well."""
    for record in record_of(name):
        *changed, copied = record.refused
        assert all("is new or requires a gradient only since the model was wrapped" in text for text in changed)
        assert copied.startswith("a DataParallel cannot be copied or pickled, as its process group cannot: copy the pl")


@pytest.mark.parametrize("name", STRATEGY_INFOS)
def test_float16_holds_means_whose_sums_it_does_not_hold(record_of: Records, name: str) -> None:
    """As with torch's DistributedDataParallel, which divides gradients before it adds them."""
    expected = [-4.0 * (1.33 if name == "diloco" else 1.0)]
    for record in record_of(name):
        assert record.halves.unique().tolist() == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("name", OURS)
def test_parameters_that_are_not_used(record_of: Records, name: str) -> None:
    """All ranks get the mean of a gradient that one rank has, the others counting as zero; unused ones stay without."""
    for record in record_of(name):
        *used, third, third_bias = record.unused
        assert third is None
        assert third_bias is None
        for found, expected in zip(used, (-2 / 3, 2.0, 2 / 3, 2 / 3), strict=True):
            assert found is not None
            torch.testing.assert_close(found, torch.full_like(found, expected), **tolerance(name))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rung", "'rung' is not one of none, allreduce, "),
        ("ring/4", "'ring/4': ring takes no number; only bucketed, "),
        ("ddp/", "'ddp/': after the slash must be the size of a bucket in MiB, such as ddp/4"),
        ("local_sgd/0", "'local_sgd/0': after the slash must be the number of steps from one average to the next, "),
        ("diloco/2.5", "'diloco/2.5': after the slash must be the number of steps from one average to the next, such"),
    ],
)
def test_names_that_are_refused(name: str, message: str) -> None:
    """The message says what there is."""
    assert said_by(ValueError, make_strategy, name).startswith(message)


def test_numbers_after_the_slash() -> None:
    """They are arguments of the strategy, and say how often some communicate."""
    assert parse_strategy("bucketed/0.5") == ("bucketed", {"bucket_cap_mb": 0.5})
    assert [steps_between_averages(name) for name in ("ring", "ddp/4", "local_sgd", "diloco/16")] == [1, 1, 8, 16]


LARGEST = 4096  # bytes; a gradient of the model below has 262,144
IN_PLACE = ("flat", "ring", "bucketed/0.3", "bucketed_bf16/0.3", "zero1")


def allocated(group: dist.ProcessGroup) -> dict[str, int]:
    """The largest piece of memory, in bytes, that torch takes in a synchronisation after three steps; by strategy."""
    largest = {}
    for name in (*IN_PLACE, "zero2"):
        model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))
        parallel = DataParallel(model, name, group, broadcast=True)
        for step in range(4):
            parallel.zero_grad(set_to_none=step < 3)
            with parallel.no_sync():
                parallel(torch.ones(2, 256)).sum().backward()
            with torch.profiler.profile(profile_memory=True) if step == 3 else nullcontext() as profile:
                parallel.sync_gradients()
        largest[name] = max((event.self_cpu_memory_usage for event in profile.events() or []), default=0)
    return largest


def test_no_allocation(ranks: RankPool) -> None:
    """Buffers are made once; what is left is Python's small change. `zero2` makes them anew, which would be seen."""
    for largest in ranks.run(allocated, num_ranks=2):
        assert {name: size < LARGEST for name, size in largest.items()} == {name: name != "zero2" for name in largest}
