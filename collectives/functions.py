"""The collectives, with torch.distributed's own signatures, run from ring schedules."""

from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from collectives.execute import Executor, resolve
from ringsim.algorithms import build
from ringsim.collective import Collective


def all_reduce(
    tensor: torch.Tensor,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
) -> None:
    """Reduce `tensor` over all ranks of `group`, in place; every rank ends with the same bits.

    tensor: any shape, strides and length, the same shape and dtype on every rank; on the CPU.
    op: SUM or AVG (floating-point and complex only). AVG divides the finished sum.
    async_op: only False so far.
    algorithm: one of `ringsim algorithms`. With "direct", whose ranks add in different orders, they may differ
    in the last bit.

    Raises ValueError for an argument that does not fit, CollectiveError when a peer fails or is too late.
    """
    _check_op(op, tensor)
    _check_synchronous(async_op)
    group = resolve(group)
    # Strides that are not contiguous would be sent as if they were: work on a copy then.
    work = tensor.detach().contiguous()
    _executor(Collective.ALL_REDUCE, algorithm, group).run(work)
    _finish(op, work, group.size())
    if not tensor.is_contiguous():
        tensor.detach().copy_(work)


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  torch.distributed's name
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
) -> None:
    """Reduce `input` over all ranks and leave the r-th equal share of it in rank r's `output`.

    input: num_ranks times the elements of `output`, same dtype; it is not changed.

    Raises as `all_reduce` does.
    """
    _check_op(op, input)
    _check_synchronous(async_op)
    group = resolve(group)
    _check_share("output", output, "input", input, group.size())
    work = input.detach().contiguous().view(-1).clone()
    _executor(Collective.REDUCE_SCATTER, algorithm, group).run(work)
    share = work.view(group.size(), -1)[group.rank()]
    _finish(op, share, group.size())
    output.detach().copy_(share.view(output.shape))


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
) -> None:
    """Gather every rank's `input_tensor`, one after the other, into everyone's `output_tensor`.

    output_tensor: num_ranks times the elements of `input_tensor`, same dtype.

    Raises as `all_reduce` does.
    """
    _check_synchronous(async_op)
    group = resolve(group)
    _check_share("input_tensor", input_tensor, "output_tensor", output_tensor, group.size())
    output = output_tensor.detach()
    work = output if output.is_contiguous() else torch.empty(output.shape, dtype=output.dtype)
    work.view(group.size(), -1)[group.rank()].copy_(input_tensor.detach().reshape(-1))
    _executor(Collective.ALL_GATHER, algorithm, group).run(work)
    if work is not output:
        output.copy_(work)


# One executor for each algorithm of each group, as long as the group lives: programs and buffers are made once.
_EXECUTORS: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[Collective, str], Executor]] = WeakKeyDictionary()


def _executor(collective: Collective, algorithm: str, group: dist.ProcessGroup) -> Executor:
    executors = _EXECUTORS.setdefault(group, {})
    if (collective, algorithm) not in executors:
        executors[collective, algorithm] = Executor(build(collective, algorithm, group.size()), group)
    return executors[collective, algorithm]


def _check_op(op: dist.ReduceOp.RedOpType, tensor: torch.Tensor) -> None:
    if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise ValueError(f"op {op}: only ReduceOp.SUM and ReduceOp.AVG are supported so far")
    if op == dist.ReduceOp.AVG and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"op AVG: needs a floating-point or complex tensor, not {tensor.dtype}; use SUM")


def _check_synchronous(async_op: bool) -> None:
    if async_op:
        raise ValueError("async_op True: only synchronous calls are supported so far")


def _check_share(small_name: str, small: torch.Tensor, large_name: str, large: torch.Tensor, num_ranks: int) -> None:
    if small.numel() * num_ranks != large.numel():
        raise ValueError(
            f"{large_name} has {large.numel()} elements and {small_name} {small.numel()}: "
            f"{large_name} must have {num_ranks} times as many, once per rank"
        )
    if small.dtype != large.dtype:
        raise ValueError(f"{large_name} is {large.dtype} and {small_name} {small.dtype}: both must be the same")


def _finish(op: dist.ReduceOp.RedOpType, tensor: torch.Tensor, num_ranks: int) -> None:
    if op == dist.ReduceOp.AVG:
        tensor.div_(num_ranks)
