"""torch's own communication hooks, and its optimizer that overlaps with them, on the backend "ring"."""

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer

from tests.collectives.integrations.test_ddp_hook import LEARNING_RATE, SMALL_BUCKETS_MB, batches_of, train, wrapped
from tests.ranks import RankPool, group_on

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


def trained(group: dist.ProcessGroup, name: str, bucket_cap_mb: float, backend: str) -> list[torch.Tensor]:
    """The parameters after training with a hook on one of the backends."""
    group = group_on(backend, group.size())
    module = wrapped(group, bucket_cap_mb=bucket_cap_mb)
    module.register_comm_hook(*hook_of(name, group))
    return train(module, batches_of(group.rank(), NUM_STEPS))


@pytest.mark.parametrize("name", ["allreduce", "fp16", "powersgd", "powersgd in fp16", "post_localsgd"])
def test_a_hook_trains_as_on_gloo(ring_ranks: RankPool, name: str) -> None:
    """Also one whose callbacks wait for a Future; fp16 rounds sums, which we add in another order than Gloo."""
    gloo, ring = (ring_ranks.run(trained, name, ONE_BUCKET_MB, backend, num_ranks=3) for backend in ("gloo", "ring"))
    torch.testing.assert_close(ring, gloo, atol=1e-4 if "fp16" in name else 1e-6, rtol=0)


@pytest.mark.parametrize("name", ["powersgd", "powersgd in fp16"])
def test_hooks_that_call_in_callbacks_may_have_many_buckets(ring_ranks: RankPool, name: str) -> None:
    """Ranks agree on the order of calls made in callbacks and of buckets; on Gloo they do not, and fail or hang."""
    first, *others = ring_ranks.run(trained, name, SMALL_BUCKETS_MB, "ring", num_ranks=3)
    whole = ring_ranks.run(trained, "allreduce", SMALL_BUCKETS_MB, "ring", num_ranks=3)[0]
    assert not all(map(torch.equal, first, whole))
    # Gradients are approximated, so that only the direction is the same.
    torch.testing.assert_close(first, whole, atol=0.2, rtol=0)
    assert all(all(map(torch.equal, first, other)) for other in others)


def overlapped_with_zero(group: dist.ProcessGroup, interleaved: bool) -> list[list[torch.Tensor]]:
    """Return the parameters trained by an optimizer that steps in the hook, and by plain ones that begin late."""
    group = group_on("ring", group.size())
    module, batches = wrapped(group), batches_of(group.rank(), NUM_STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about itself
        optimizer = ZeroRedundancyOptimizer(
            module.parameters(), torch.optim.SGD, process_group=group, overlap_with_ddp=True, lr=LEARNING_RATE
        )
        make = ddp_zero_hook.hook_with_zero_step_interleaved if interleaved else ddp_zero_hook.hook_with_zero_step
        module.register_comm_hook(group, make(default_hooks.allreduce_hook, module, optimizer))
        trained = train(module, batches, NUM_STEPS)
    return [trained, *(train(wrapped(group), batches, left_out) for left_out in (2, 3))]


@pytest.mark.parametrize("interleaved", [False, True])
def test_zero_overlaps_with_ddp(ring_ranks: RankPool, interleaved: bool) -> None:
    """It trains, but for the first two or three steps, which it leaves out by design; on Gloo torch refuses it."""
    results = ring_ranks.run(overlapped_with_zero, interleaved, num_ranks=3)
    first, *late = results[0]
    assert all(all(map(torch.equal, first, other)) for other, *_ in results)
    distances = [max((a - b).abs().max().item() for a, b in zip(first, other, strict=True)) for other in late]
    assert min(distances) < 1e-6
