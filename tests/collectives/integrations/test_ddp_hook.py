"""DistributedDataParallel, unmodified, with our hook and torch's own, on our backend, against the same on Gloo."""

import threading
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import collectives
from collectives import HookState, ddp_comm_hook
from tests.collectives.travel import sent_by_gloo
from tests.ranks import RankPool, group_on

STEPS, LEARNING_RATE = 3, 0.1
SMALL_BUCKETS_MB = 0.0001  # a bucket for each parameter or so


def model() -> nn.Sequential:
    """Three layers, the same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 10), nn.Tanh(), nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 5))


def wrapped(
    group: dist.ProcessGroup, state: HookState | None = None, bucket_cap_mb: float = SMALL_BUCKETS_MB
) -> DistributedDataParallel:
    """The model in DistributedDataParallel, with our hook if there is a state."""
    module = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=bucket_cap_mb)
    if state is not None:
        module.register_comm_hook(state, ddp_comm_hook)
    return module


def batch(rank: int, step: int) -> torch.Tensor:
    """(4, 7): the data that a rank trains on."""
    return torch.randn(4, 7, generator=torch.Generator().manual_seed(100 * step + rank))


def batches_of(rank: int, steps: int = STEPS) -> list[torch.Tensor]:
    """The data of a rank for so many steps."""
    return [batch(rank, step) for step in range(steps)]


def train(module: nn.Module, batches: list[torch.Tensor], steps_left_out: int = 0) -> list[torch.Tensor]:
    """The parameters after a step of SGD for each batch but the first ones."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
    for step, each in enumerate(batches):
        optimizer.zero_grad()
        module(each).square().mean().backward()
        if step >= steps_left_out:
            optimizer.step()
    return [parameter.detach() for parameter in module.parameters()]


def trained(group: dist.ProcessGroup, way: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The parameters trained our way, and on Gloo without us."""
    states = {dtype: HookState(group, wire=getattr(torch, dtype)) for dtype in ("bfloat16", "float16")}
    states |= {"hook": HookState(group), "other algorithm": HookState(group, algorithm="halving_doubling")}
    ours = wrapped(group, states[way]) if way in states else wrapped(group_on("ring", group.size()))
    return train(ours, batches_of(group.rank())), train(wrapped(group), batches_of(group.rank()))


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("way", ["backend", "hook", "other algorithm", "bfloat16", "float16"])
def test_training(ring_ranks: RankPool, num_ranks: int, way: str) -> None:
    """As on Gloo but for rounding, and the same bits on all ranks."""
    tolerance = {"rtol": 1e-2, "atol": 1e-3} if "float" in way else {"rtol": 1e-5, "atol": 1e-6}
    results = ring_ranks.run(trained, way, num_ranks=num_ranks)
    for ours, theirs in results:
        for mine, first, expected in zip(ours, results[0][0], theirs, strict=True):
            assert torch.equal(mine, first)
            torch.testing.assert_close(mine, expected, **tolerance)


def bytes_sent(group: dist.ProcessGroup, way: str, wire: torch.dtype | None) -> int:
    """How many bytes of gradients this rank hands to `send` in a training step, in which all goes through Gloo."""
    on_gloo = dist.new_group(backend="ring" if way == "backend" else "gloo")
    collectives.use_transport("gloo", on_gloo)
    module = wrapped(on_gloo, None if way == "backend" else HookState(on_gloo, wire=wire))
    train(module, batches_of(group.rank(), 2))  # what ranks, and DDP in its second step, send once is not counted
    with sent_by_gloo() as sent:
        train(module, batches_of(group.rank(), 1))
    return sum(size_bytes for *_, size_bytes in sent)


def test_a_narrow_wire_halves_the_bytes(ring_ranks: RankPool) -> None:
    """Not a byte more; on our backend as with the hook."""
    wide = ring_ranks.run(bytes_sent, "hook", None)
    narrow = ring_ranks.run(bytes_sent, "hook", torch.bfloat16)
    assert ring_ranks.run(bytes_sent, "backend", None) == wide
    assert sum(wide) == 2 * 3 * 4 * sum(p.numel() for p in model().parameters())  # 2(n-1) shares of n ranks
    assert [2 * each for each in narrow] == wide


def sparse(group: dist.ProcessGroup, has_hook: bool) -> list[torch.Tensor]:
    """The gradients of a sparse embedding, and of the layer after it, as dense tensors."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Embedding(6, 4, sparse=True), nn.Linear(4, 2))
    module = DistributedDataParallel(layers, process_group=group)
    if has_hook:
        module.register_comm_hook(HookState(group), ddp_comm_hook)
    module(torch.tensor([group.rank(), 4])).square().sum().backward()
    return [parameter.grad.to_dense() for parameter in module.parameters() if parameter.grad is not None]


def test_sparse_gradients(ring_ranks: RankPool) -> None:
    """They go the way of torch.distributed; the others go ours."""
    plain = ring_ranks.run(sparse, False, num_ranks=2)
    torch.testing.assert_close(ring_ranks.run(sparse, True, num_ranks=2), plain)
    assert all(len(gradients) == 3 for gradients in plain)


def overlapped(group: dist.ProcessGroup) -> list[bool]:
    """Whether a bucket was reduced while the backward pass stood still before the first layer's gradient, per step."""
    module = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=SMALL_BUCKETS_MB)
    reduced, seen = threading.Event(), []

    def noting(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = ddp_comm_hook(state, bucket)
        future.add_done_callback(lambda _: reduced.set())
        return future

    module.register_comm_hook(HookState(group), noting)
    # In the first step torch has yet to find out in which order gradients come: there is nothing to wait for.
    module.module[0].bias.register_hook(lambda _: seen.append(bool(seen) and reduced.wait(5)))
    for _ in range(2):
        reduced.clear()
        module(torch.randn(4, 7)).sum().backward()
    return seen


def test_buckets_are_reduced_during_the_backward_pass(ring_ranks: RankPool) -> None:
    """The last layer's bucket is complete before the first layer's gradient is allowed to be."""
    assert [seen[1] for seen in ring_ranks.run(overlapped)] == [True] * 4


NUM_STEPS, ONE_BUCKET_MB = 8, 25


def hook_of(name: str, group: dist.ProcessGroup) -> tuple[Any, Any]:
    """Return the hook of that name, and its state before it."""
    power = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=3)
    local = post_localSGD_hook.PostLocalSGDState(group, group, start_localSGD_iter=2)
    hooks: dict[str, tuple[Any, Any]] = {
        "allreduce": (group, default_hooks.allreduce_hook),
        "fp16": (group, default_hooks.fp16_compress_hook),
        "powersgd": (power, powerSGD_hook.powerSGD_hook),
        "powersgd in fp16": (power, default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)),
        "post_localsgd": (local, post_localSGD_hook.post_localSGD_hook),
    }
    return hooks[name]


def hooked(group: dist.ProcessGroup, name: str, bucket_cap_mb: float, backend: str) -> list[torch.Tensor]:
    """The parameters after training with a hook on one of the backends."""
    group = group_on(backend, group.size())
    module = wrapped(group, bucket_cap_mb=bucket_cap_mb)
    module.register_comm_hook(*hook_of(name, group))
    return train(module, batches_of(group.rank(), NUM_STEPS))


@pytest.mark.parametrize("name", ["allreduce", "fp16", "powersgd", "powersgd in fp16", "post_localsgd"])
def test_a_hook_trains_as_on_gloo(ring_ranks: RankPool, name: str) -> None:
    """Also one whose callbacks wait for a Future; fp16 rounds sums, which we add in another order than Gloo."""
    gloo, ring = (ring_ranks.run(hooked, name, ONE_BUCKET_MB, backend, num_ranks=3) for backend in ("gloo", "ring"))
    torch.testing.assert_close(ring, gloo, atol=1e-4 if "fp16" in name else 1e-6, rtol=0)


@pytest.mark.parametrize("name", ["powersgd", "powersgd in fp16"])
def test_hooks_that_call_in_callbacks_may_have_many_buckets(ring_ranks: RankPool, name: str) -> None:
    """Ranks agree on the order of calls made in callbacks and of buckets; on Gloo they do not, and fail or hang."""
    first, *others = ring_ranks.run(hooked, name, SMALL_BUCKETS_MB, "ring", num_ranks=3)
    whole = ring_ranks.run(hooked, "allreduce", SMALL_BUCKETS_MB, "ring", num_ranks=3)[0]
    assert not all(map(torch.equal, first, whole))
    # Gradients are approximated, so that only the direction is the same.
    torch.testing.assert_close(first, whole, atol=0.2, rtol=0)
    assert all(all(map(torch.equal, first, other)) for other in others)


def overlapped_with_zero(group: dist.ProcessGroup, interleaved: bool) -> list[list[torch.Tensor]]:
    """Return the parameters hooked by an optimizer that steps in the hook, and by plain ones that begin late."""
    group = group_on("ring", group.size())
    module, batches = wrapped(group), batches_of(group.rank(), NUM_STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about itself
        optimizer = ZeroRedundancyOptimizer(
            module.parameters(), torch.optim.SGD, process_group=group, overlap_with_ddp=True, lr=LEARNING_RATE
        )
        make = ddp_zero_hook.hook_with_zero_step_interleaved if interleaved else ddp_zero_hook.hook_with_zero_step
        module.register_comm_hook(group, make(default_hooks.allreduce_hook, module, optimizer))
        hooked = train(module, batches, NUM_STEPS)
    return [hooked, *(train(wrapped(group), batches, left_out) for left_out in (2, 3))]


@pytest.mark.parametrize("interleaved", [False, True])
def test_zero_overlaps_with_ddp(ring_ranks: RankPool, interleaved: bool) -> None:
    """It trains, but for the first two or three steps, which it leaves out by design; on Gloo torch refuses it."""
    results = ring_ranks.run(overlapped_with_zero, interleaved, num_ranks=3)
    first, *late = results[0]
    assert all(all(map(torch.equal, first, other)) for other, *_ in results)
    distances = [max((a - b).abs().max().item() for a, b in zip(first, other, strict=True)) for other in late]
    assert min(distances) < 1e-6
