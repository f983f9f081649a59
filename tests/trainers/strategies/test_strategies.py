"""Every strategy makes the gradients of all ranks their mean, and takes no new memory for it after the first steps."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from syrupy.assertion import SnapshotAssertion
from torch import nn
from torch.testing import assert_close

from tests.ranks import RankPool, group_on
from tests.refusals import said_by
from tests.trainers.models import Branching, Complex, Tied, inputs, mean_gradients, parameters_of, seeded, small_model
from trainers.data_parallel import DataParallel
from trainers.strategies import STRATEGIES, make_strategy, parse_strategy, steps_between_averages, strategy_info

NUM_RANKS, STEPS = 3, 4
TINY_BUCKETS = ["bucketed/0.00002", "ddp/0.00002"]
WHOLE = "powersgd/9"  # factors would be larger than any gradient, which is then sent as it is
MODELS = (small_model, partial(seeded, Tied), partial(seeded, Complex))
Tensors = list[torch.Tensor]
Wrap = Callable[[nn.Module], DataParallel]


@pytest.mark.parametrize("name", [*STRATEGIES, *TINY_BUCKETS, WHOLE])
def test_ranks_train_as_one_process_does(request: pytest.FixtureRequest, name: str) -> None:
    """With each strategy, as far as it says so; the mean gradients of the ranks are the same, bit for bit."""
    pool: RankPool = request.getfixturevalue("ring_ranks" if strategy_info(name).backend else "ranks")
    first, *others = pool.run(run, name, num_ranks=NUM_RANKS)
    for other in others:
        assert_close(other, first, rtol=0, atol=0)


def run(group: dist.ProcessGroup, name: str) -> Tensors:
    """Check a strategy on a rank; returns mean gradients."""
    info = strategy_info(name)
    wrap = partial(DataParallel, strategy=name, group=group_on("ring", group.size()) if info.backend else group)
    # bfloat16 has 8 bits; each rank on the way rounds.
    close = partial(assert_close, **({"rtol": 0.05, "atol": 0.02} if info.wire else {"rtol": 1e-5, "atol": 1e-6}))
    is_mean = (info.leaves_mean and info.is_exact) or name == WHOLE
    if info.is_exact and not info.wire:
        train_as_one_process(
            wrap, MODELS[:1] if name.startswith("fsdp") else MODELS
        )  # which takes one dtype in a layer
    if is_mean:
        accumulate(wrap, close)
    if is_mean and not name.startswith("ddp"):  # torch's DDP wants find_unused_parameters, and says so
        leave_out_parameters(wrap, close)
    step_in_float16(wrap, outer=1.33 if name == "diloco" else 1.0)
    refuse_changes(wrap)
    return synchronise(wrap, close, fails=not name.startswith("ddp")) if is_mean else []


def synchronise(wrap: Wrap, close: Callable[..., None], fails: bool) -> Tensors:
    """Two backward passes, of which the second shows what is left over. fails: after one that breaks off midway."""
    model = wrap(small_model())
    if fails:
        hook = model.model[0].weight.register_hook(lambda _: 1 / 0)
        said_by(ZeroDivisionError, model(inputs(9)).sum().backward)
        hook.remove()
    for set_to_none in (True, False):
        model.zero_grad(set_to_none)
        model(inputs(model.group.rank())).pow(2).mean().backward()
        close(gradients_of(model), mean_gradients(small_model(), NUM_RANKS))
    return gradients_of(model)


def accumulate(wrap: Wrap, close: Callable[..., None]) -> None:
    """Three micro-batches, synchronised by hand and by the last backward pass; before that a rank has its own sums."""
    model = wrap(small_model())
    rank, expected = model.group.rank(), mean_gradients(small_model(), NUM_RANKS, 6)

    def add(part: torch.Tensor) -> None:
        (model(part).pow(2).mean() / 3).backward()

    parts = inputs(rank, 6).chunk(3)
    model.disable_grad_sync()
    for part in parts:
        add(part)
    if rank == 0:
        model.sync_gradients()  # does nothing, or would wait for the others
        assert_close(gradients_of(model), mean_gradients(small_model(), 1, 6))
    model.enable_grad_sync()
    model.sync_gradients()
    close(gradients_of(model), expected)
    model.zero_grad()
    with model.no_sync():
        assert not model.do_sync
        add(parts[0])
        add(parts[1])
    assert model.do_sync
    add(parts[2])
    close(gradients_of(model), expected)


def gradients_of(model: nn.Module) -> Tensors:
    """Copies."""
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def train_as_one_process(wrap: Wrap, models: tuple[Callable[[], nn.Module], ...]) -> None:
    """With the whole batch, also if gradients are clipped; tied, frozen and other-typed parameters are no obstacle."""
    for make in models:
        for clip in (0.0, 0.1):
            assert_close(trained(wrap(make()), clip), trained(make(), clip, NUM_RANKS), rtol=1e-4, atol=1e-5)


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


def leave_out_parameters(wrap: Wrap, close: Callable[..., None]) -> None:
    """All ranks get the mean of a gradient that rank 1 alone has; parameters that nobody uses stay without."""
    model = wrap(seeded(Branching))
    for _ in range(2):
        model.zero_grad()
        model(torch.full((2, 3), 1.0 if model.group.rank() == 1 else -1.0)).sum().backward()
    *used, third, third_bias = model.parameters()
    assert (third.grad, third_bias.grad) == (None, None)
    for parameter, mean in zip(used, (-2 / 3, 2.0, 2 / 3, 2 / 3), strict=True):
        close(parameter.grad, torch.full_like(parameter, mean))


def step_in_float16(wrap: Wrap, outer: float) -> None:
    """Gradients whose sum is infinite: as torch's DDP does, a strategy divides before it adds. outer: of the step."""
    model = wrap(seeded(partial(nn.Linear, 30, 20, bias=False)).half())  # type: ignore[arg-type]
    optimizer = model.optimizer(partial(torch.optim.SGD, lr=2**-13))
    with torch.no_grad():
        model.unshard()
        model.weight.zero_()
    model(torch.full((1, 30), 32768.0, dtype=torch.float16)).sum().backward()
    optimizer.step()
    model.sync_parameters()
    model.unshard()
    assert parameters_of(model)[0].unique().tolist() == pytest.approx([-4.0 * outer], rel=0.01)


def refuse_changes(wrap: Wrap) -> None:
    """New parameters would not be synchronised, and the ranks would diverge; a copy is refused as well."""
    for change in ("thawed", "replaced", "added"):
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
        refusal = said_by(RuntimeError, model, torch.ones(1, 4))
        assert "is new or requires a gradient only since the model was wrapped" in refusal
    assert said_by(TypeError, copy.deepcopy, model).startswith(
        "a DataParallel cannot be copied or pickled, as its proc"
    )


REFUSED = ("rung", "ring/4", "ddp/", "local_sgd/0", "diloco/2.5")


def test_names_that_are_refused(snapshot: SnapshotAssertion) -> None:
    """The message says what there is."""
    said = [said_by(ValueError, make_strategy, name) for name in REFUSED]
    assert [message.replace(", ".join(STRATEGIES), "STRATEGIES") for message in said] == snapshot


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
