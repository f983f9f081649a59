"""`ddp_comm_hook`: DistributedDataParallel's buckets on our schedules, during the backward pass."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from collectives.calls import all_reduce
from collectives.runtime import Work


@dataclass(frozen=True, slots=True)
class HookState:
    """The options of `ddp_comm_hook`, given to `register_comm_hook` with it.

    group: that of the DistributedDataParallel; the default group if None.
    algorithm, wire: see `all_reduce`. With wire torch.bfloat16 half the bytes of float32 gradients travel, and each
    rank adds in float32 what arrives.

        >>> collectives.HookState(wire=torch.bfloat16)
        HookState(group=None, algorithm='ring', wire=torch.bfloat16)
    """

    group: dist.ProcessGroup | None = None
    algorithm: str = "ring"
    wire: torch.dtype | None = None


def ddp_comm_hook(
    state: HookState | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch's stubs lack it
) -> torch.futures.Future[torch.Tensor]:
    """Make a bucket of gradients the mean over all ranks: `model.register_comm_hook(state, ddp_comm_hook)`.

    Returns at once; buckets are reduced one after the other, in a thread of the group's. But for the last one: it is
    full when the backward pass is over and the program waits, so that it need not be handed over to another thread. If
    a bucket cannot be reduced, the backward pass raises a RuntimeError that holds the text of the CollectiveError.

    Sparse gradients are summed by torch.distributed, as they are on the backend "ring", whatever the options.

    state: None for the defaults.

        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        >>> model.register_comm_hook(collectives.HookState(wire=torch.bfloat16), collectives.ddp_comm_hook)
        >>> model(torch.full((2, 3), float(rank))).sum().backward()
        >>> model.module.weight.grad
        tensor([[1., 1., 1.]])
    """
    state = state or HookState()
    gradients = bucket.buffer()
    if gradients.layout != torch.strided:
        return allreduce_hook(state.group, bucket)  # type: ignore[arg-type]  # which it takes None for
    async_op = gradients.is_cuda or not bucket.is_last()
    work = all_reduce(gradients, dist.ReduceOp.AVG, state.group, async_op, algorithm=state.algorithm, wire=state.wire)
    return (work or Work.over([gradients])).future_of(lambda: gradients)
