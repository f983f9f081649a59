"""The collectives with a root, and the barrier, with torch.distributed's own signatures (see `functions`)."""

import torch
import torch.distributed as dist

from collectives.calls.call import CollectiveCall, Operands
from collectives.calls.functions import Group, Op
from collectives.calls.reduction import reduction_dtypes, reduction_of
from collectives.calls.tensor_checks import check_writable
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

    tensor: of any shape, with as many elements of one dtype on every rank.
    src: a rank of the whole job; `group_src`, instead, one of `group`.
    async_op, group, algorithm: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> tensor = torch.full((2,), float(rank))
        >>> collectives.broadcast(tensor, src=1)
        >>> tensor
        tensor([1., 1.])
    """
    check_writable("tensor", tensor)
    call = CollectiveCall(Collective.BROADCAST, algorithm, group, _root(resolve(group), "src", src, group_src))
    operands = Operands((tensor,), (tensor,), reduction_dtypes(tensor.dtype))
    return call.start("broadcast", operands, async_op)


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

    tensor: of any shape, with as many elements of one dtype on every rank.
    dst: a rank of the whole job; `group_dst`, instead, one of `group`.
    op: as in `all_reduce`.
    async_op, group, algorithm, accumulate, wire: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> tensor = torch.ones(3)
        >>> collectives.reduce(tensor, dst=1)
        >>> tensor.tolist() == [2.0 if rank == 1 else 1.0] * 3
        True
    """
    check_writable("tensor", tensor)
    dtypes = reduction_dtypes(tensor.dtype, accumulate, wire)
    reduction = reduction_of(op, dtypes.state)
    root = _root(resolve(group), "dst", dst, group_dst)
    call = CollectiveCall(Collective.REDUCE, algorithm, group, root)
    operands = Operands((tensor,), (tensor,), dtypes, reduction, is_wanted=call.rank == root)
    return call.start("reduce", operands, async_op)


def barrier(group: Group = None, async_op: bool = False) -> Work | None:
    """Wait until every rank of `group` has called it.

    On a group without a backend for the CPU it is the current CUDA stream that is waited for, too.

    async_op, group: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises CollectiveError when a peer fails or does not come in time.

        >>> collectives.barrier()
    """
    call = CollectiveCall(Collective.ALL_REDUCE, "recursive_doubling", group)
    token = torch.zeros(1, device=home_of(call.group))

    def run() -> None:
        call.execute(token)  # nobody can have the sum before all have given their part
        if token.is_cuda:
            torch.cuda.current_stream(token.device).synchronize()

    return call.perform(run, call.fingerprint("barrier", token), [token], async_op=async_op)


def _root(group: dist.ProcessGroup, name: str, rank: int | None, group_rank: int | None) -> int:
    if (rank is None) == (group_rank is None):
        raise ValueError(f"{name} {rank}, group_{name} {group_rank}: give exactly one of the two")
    root = group_rank if rank is None else dist.get_group_rank(group, rank)
    if root is None or not 0 <= root < group.size():
        raise ValueError(f"group_{name} {root}: must be in 0..{group.size() - 1}")
    return root
