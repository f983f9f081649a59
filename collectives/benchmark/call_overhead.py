"""`probe_calls`: what calling a collective costs beside its messages, of ours and of torch.distributed's.

A module of its own, because `CollectiveCall` itself may have the group probed.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist

from collectives.calls import CollectiveCall
from collectives.probes import ProbeWorkload, Rounds, shift_schedule
from collectives.runtime import Executor, batch_policy_for_new_groups, have_gloo_threads_batch_policy, transport_in_use
from ringsim.measurements import ROUNDS_PER_RUN
from ringsim.schedule import Collective

SIZE_BYTES = 64


@contextmanager
def probe_calls(group: dist.ProcessGroup) -> Iterator[list[ProbeWorkload]]:
    """Collective, for it makes process groups of one rank, which last as long as the context.

    "call": every rank sends a message to the next, as in a "shift" but each by a call of its own; what it takes longer
    is a call's. "shm/call": the same through shared memory, where all ranks share it. "call/dist": torch's all_reduce
    of one rank by itself, which sends nothing and is its call alone.
    """
    everyone = range(group.size())
    # This group's thread should have the policy that those of the other groups have.
    with batch_policy_for_new_groups() if have_gloo_threads_batch_policy() else nullcontext():
        own = dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
    assert isinstance(own, dist.ProcessGroup)
    workloads = [ProbeWorkload("call/dist", SIZE_BYTES, 1, everyone, _native(own))]
    if group.size() > 1:
        workloads.append(ProbeWorkload("call", SIZE_BYTES, 1, everyone, _ours(group, shares_memory=False)))
        if transport_in_use(group) == "shm":
            workloads.append(ProbeWorkload("shm/call", SIZE_BYTES, 1, everyone, _ours(group, shares_memory=True)))
    try:
        yield workloads
    finally:
        dist.destroy_process_group(own)


def _ours(group: dist.ProcessGroup, shares_memory: bool) -> Rounds:
    executor = Executor(
        shift_schedule(group.size(), [range(group.size())], 1, 1, 1), group, shares_memory=shares_memory
    )
    tensor = torch.zeros(SIZE_BYTES // 4)

    def rounds() -> None:
        for _ in range(ROUNDS_PER_RUN):
            call = CollectiveCall(Collective.ALL_REDUCE, "ring", group)
            call.perform(lambda: executor.run(tensor), call.fingerprint("probe", tensor), [tensor])

    return rounds


def _native(own: dist.ProcessGroup) -> Rounds:
    tensor = torch.zeros(SIZE_BYTES // 4)

    def rounds() -> None:
        for _ in range(ROUNDS_PER_RUN):
            dist.all_reduce(tensor, group=own)

    return rounds
