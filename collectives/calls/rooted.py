"""The collectives with a root, and the barrier, with torch.distributed's own signatures (see `functions`)."""

import torch
import torch.distributed as dist

from collectives.calls.call import CollectiveCall, Operands
from collectives.calls.functions import Group, Op
from collectives.calls.reduction import ReductionDtypes, reduction_of
from collectives.calls.tensor_checks import check_list, check_tensor, check_writable
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
    operands = Operands((tensor,), (tensor,), ReductionDtypes.of(tensor))
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
    wire: torch.dtype | None = None,
) -> Work | None:
    """Reduce `tensor` over all ranks into rank `dst`'s; the others' are not changed.

    tensor: of any shape, with as many elements of one dtype on every rank.
    dst: a rank of the whole job; `group_dst`, instead, one of `group`.
    op: as in `all_reduce`.
    async_op, group, algorithm, wire: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> tensor = torch.ones(3)
        >>> collectives.reduce(tensor, dst=1)
        >>> tensor.tolist() == [2.0 if rank == 1 else 1.0] * 3
        True
    """
    check_writable("tensor", tensor)
    reduction, dtypes = reduction_of(op, tensor.dtype, wire)
    root = _root(resolve(group), "dst", dst, group_dst)
    call = CollectiveCall(Collective.REDUCE, algorithm, group, root)
    operands = Operands((tensor,), (tensor,), dtypes, reduction, is_wanted=call.rank == root)
    return call.start("reduce", operands, async_op)


def gather(
    tensor: torch.Tensor,
    gather_list: list[torch.Tensor] | None = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    algorithm: str = "direct",
) -> Work | None:
    """Gather every rank's `tensor` into rank `dst`'s `gather_list`, rank r's into the r-th.

    tensor: of any shape, with as many elements of one dtype on every rank; it is not changed.
    gather_list: on rank `dst` one tensor for each rank, with as many elements as `tensor`; on others None, or empty.
    dst: a rank of the whole job, 0 if neither is given; `group_dst`, instead, one of `group`.
    async_op, group, algorithm: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> gathered = [torch.empty(2), torch.empty(2)] if rank == 0 else None
        >>> collectives.gather(torch.full((2,), float(rank)), gathered, dst=0)
        >>> gathered is None or gathered[1].tolist() == [1.0, 1.0]
        True
    """
    check_tensor("tensor", tensor)
    root = _root(resolve(group), "dst", dst, group_dst, default=0)
    call = CollectiveCall(Collective.GATHER, algorithm, group, root)
    outputs = _shares_at_root("gather_list", gather_list, tensor, call, root)
    for index, output in enumerate(outputs):
        check_writable(f"gather_list[{index}]", output)
    return call.start("gather", Operands((tensor,), outputs, ReductionDtypes.of(tensor)), async_op)


def scatter(
    tensor: torch.Tensor,
    scatter_list: list[torch.Tensor] | None = None,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    algorithm: str = "direct",
) -> Work | None:
    """Copy the r-th tensor of rank `src`'s `scatter_list` into rank r's `tensor`.

    tensor: of any shape, with as many elements of one dtype on every rank.
    scatter_list: on rank `src` one tensor for each rank, with as many elements as `tensor`; on the others None, or
    empty. None is changed.
    src: a rank of the whole job, 0 if neither is given; `group_src`, instead, one of `group`.
    async_op, group, algorithm: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> tensor = torch.empty(2)
        >>> collectives.scatter(tensor, [torch.zeros(2), torch.ones(2)] if rank == 0 else None, src=0)
        >>> tensor.tolist() == [float(rank)] * 2
        True
    """
    check_writable("tensor", tensor)
    root = _root(resolve(group), "src", src, group_src, default=0)
    call = CollectiveCall(Collective.SCATTER, algorithm, group, root)
    inputs = _shares_at_root("scatter_list", scatter_list, tensor, call, root)
    for index, given in enumerate(inputs):
        check_tensor(f"scatter_list[{index}]", given)
    return call.start("scatter", Operands(inputs, (tensor,), ReductionDtypes.of(tensor)), async_op)


def barrier(group: Group = None, async_op: bool = False) -> Work | None:
    """Wait until every rank of `group` has called it.

    On a group without a backend for the CPU it is the current CUDA stream that is waited for as well.

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

    return call.perform(run, call.fingerprint("barrier", token.numel(), token.dtype), [token], async_op=async_op)


def _shares_at_root(
    name: str, listed: list[torch.Tensor] | None, tensor: torch.Tensor, call: CollectiveCall, root: int
) -> tuple[torch.Tensor, ...]:
    """Return the tensors of the list, which only the root has; elsewhere one without elements."""
    if call.rank == root:
        check_list(name, listed or [], "tensor", tensor, call.num_ranks)
        return tuple(listed or [])
    if listed:
        raise ValueError(f"{name} has {len(listed)} tensors on rank {call.rank}: only rank {root} of the group has one")
    return (tensor.new_empty(0),)


def _root(
    group: dist.ProcessGroup, name: str, rank: int | None, group_rank: int | None, default: int | None = None
) -> int:
    """Return the root of a call as a rank of `group`.

    name: src or dst, the argument of the call. rank: what the call gives for it, a rank of the whole job.
    group_rank: what it gives for group_src or group_dst. default: the rank of the job if both are None.

    Raises ValueError unless exactly one is given, or there is a default; and for a rank that is not in the group.
    """
    if group_rank is None:
        rank = default if rank is None else rank
    if (rank is None) == (group_rank is None):
        raise ValueError(f"{name} {rank}, group_{name} {group_rank}: give exactly one of the two")
    root = group_rank if rank is None else dist.get_group_rank(group, rank)
    if root is None or not 0 <= root < group.size():
        raise ValueError(f"group_{name} {root}: must be in 0..{group.size() - 1}")
    return root
