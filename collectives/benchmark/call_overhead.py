"""`probe_calls`: the cost of calling a collective of ours and of torch.distributed, without its messages.

It is not in `probes`, because `CollectiveCall` itself may probe the group.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.distributed as dist

from collectives.calls import CollectiveCall
from collectives.probes import ProbeWorkload, Rounds, shift_schedule
from collectives.runtime import Executor, batch_policy_for_new_groups, have_gloo_threads_batch_policy, transport_in_use
from ringsim.measurements import ROUNDS_PER_RUN, ProbeKind
from ringsim.schedule import Collective

SIZE_BYTES = 64
TOUCHED_BYTES = 32 * 2**20  # between two calls: more than the caches of a core, as in a backward pass


@contextmanager
def probe_calls(group: dist.ProcessGroup) -> Iterator[list[ProbeWorkload]]:
    """Yield the probes of calls (see `ProbeKind`), with a group of one rank that lasts as long as the context.

    Collective. The time of a "call" beyond a "shift" is the call's cost; torch's all_reduce of one rank sends nothing.
    """
    # The thread of this group gets the policy of the other groups.
    with batch_policy_for_new_groups() if have_gloo_threads_batch_policy() else nullcontext():
        own = dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
    assert isinstance(own, dist.ProcessGroup)
    everyone = range(group.size())
    of_torch = ProbeKind("call", "dist")
    workloads = [ProbeWorkload(of_torch, SIZE_BYTES, 1, everyone, _repeated(_native(own)))]
    if group.size() > 1:
        workloads += _cold_and_warm(of_torch, _native(group), everyone)
    for kind, shares_memory in ((ProbeKind("call"), False), (ProbeKind("call", transport="shm"), True)):
        if group.size() > 1 and (not shares_memory or transport_in_use(group) == "shm"):
            call = _ours(group, shares_memory)
            workloads += [ProbeWorkload(kind, SIZE_BYTES, 1, everyone, _repeated(call))]
            workloads += _cold_and_warm(kind, call, everyone)
            in_thread = _ours(group, shares_memory, async_op=True)
            asynchronous = kind._replace(warmth="async")
            workloads += [ProbeWorkload(asynchronous, SIZE_BYTES, 1, everyone, in_thread, before=_touch_memory())]
    try:
        yield workloads
    finally:
        dist.destroy_process_group(own)


def _repeated(call: Rounds) -> Rounds:
    def rounds() -> None:
        for _ in range(ROUNDS_PER_RUN):
            call()

    return rounds


def _cold_and_warm(kind: ProbeKind, call: Rounds, everyone: Sequence[int]) -> list[ProbeWorkload]:
    return [
        ProbeWorkload(kind._replace(warmth=warmth), SIZE_BYTES, 1, everyone, call, before=before)
        for warmth, before in (("cold", _touch_memory()), ("warm", lambda: None))
    ]


def _touch_memory() -> Rounds:
    return partial(torch.Tensor.neg_, torch.ones(TOUCHED_BYTES // 4))


def _ours(group: dist.ProcessGroup, shares_memory: bool, async_op: bool = False) -> Rounds:
    schedule = shift_schedule(group.size(), [range(group.size())], 1, 1, 1)
    executor, tensor = Executor(schedule, group, shares_memory=shares_memory), torch.zeros(SIZE_BYTES // 4)

    def one() -> None:
        call = CollectiveCall(Collective.ALL_REDUCE, "ring", group)
        fingerprint = call.fingerprint("probe", tensor.numel(), tensor.dtype)
        work = call.perform(lambda: executor.run(tensor), fingerprint, [tensor], async_op=async_op)
        if work is not None:
            work.wait()

    return one


def _native(group: dist.ProcessGroup) -> Rounds:
    return partial(dist.all_reduce, torch.zeros(SIZE_BYTES // 4), group=group)
