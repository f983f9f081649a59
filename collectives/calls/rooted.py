"""The collectives with a root, and the barrier, with torch.distributed's own signatures (see `functions`)."""

import torch
import torch.distributed as dist

from collectives.calls.call import Call, numbers
from collectives.calls.functions import Group, Op
from collectives.calls.reduction import reduction
from collectives.calls.tensor_checks import assign, check_writable, resolved
from collectives.runtime import Work, home_of, resolve
from ringsim.schedule import Collective


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    algorithm: str = "binomial_tree",
) -> Work | None:
    """Copy rank `src`'s `tensor` into everyone's.

    src: a rank of the whole job; `group_src`, instead, one of `group`.
    """
    check_writable("tensor", tensor)
    call = Call(Collective.BROADCAST, algorithm, group, _root(resolve(group), "src", src, group_src))

    def run() -> None:
        own = tensor.detach()
        whole = own if call.takes(own) else call.buffer(own.numel(), own.dtype, own).view(own.shape)
        if whole is not own:
            whole.copy_(resolved(own))
        call.execute(whole)
        if whole is not own:
            assign(own, whole)

    return call.perform(run, async_op, "broadcast", [tensor], tensor)


def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    algorithm: str = "binomial_tree",
    accumulate: torch.dtype | None = None,
    wire: torch.dtype | None = None,
) -> Work | None:
    """Reduce `tensor` over all ranks into rank `dst`'s; the others' are not changed.

    dst: a rank of the whole job; `group_dst`, instead, one of `group`.
    """
    check_writable("tensor", tensor)
    dtypes = numbers(tensor.dtype, accumulate, wire)
    how = reduction(op, dtypes.state)
    root = _root(resolve(group), "dst", dst, group_dst)
    call = Call(Collective.REDUCE, algorithm, group, root)

    def run() -> None:
        state = call.buffer(tensor.numel(), dtypes.state, tensor).view(tensor.shape)
        state.copy_(resolved(tensor))
        call.execute(state, how, dtypes.wire)
        if call.rank == root:
            how.finish(state, call.num_ranks)
            assign(tensor, state)

    return call.perform(run, async_op, "reduce", [tensor], tensor, (", ", how.name, dtypes))


def barrier(group: Group = None, async_op: bool = False) -> Work | None:
    """Wait until every rank of `group` has called it.

    On a group without a backend for the CPU it is the current CUDA stream that is waited for, too.
    """
    call = Call(Collective.ALL_REDUCE, "recursive_doubling", group)
    token = torch.zeros(1, device=home_of(call.group))

    def run() -> None:
        call.execute(token)  # nobody can have the sum before all have given their part
        if token.is_cuda:
            torch.cuda.current_stream(token.device).synchronize()

    return call.perform(run, async_op, "barrier", [token], token)


def _root(group: dist.ProcessGroup, name: str, rank: int | None, group_rank: int | None) -> int:
    if (rank is None) == (group_rank is None):
        raise ValueError(f"{name} {rank}, group_{name} {group_rank}: give exactly one of the two")
    root = group_rank if rank is None else dist.get_group_rank(group, rank)
    if root is None or not 0 <= root < group.size():
        raise ValueError(f"group_{name} {root}: must be in 0..{group.size() - 1}")
    return root
