"""The collectives in which all ranks are alike, with torch.distributed's own signatures.

Tensors have any shape, strides and length, zero included, the same number of elements and dtype on every rank, and are
all on the CPU or all on one CUDA device. With `async_op=True` a call returns a `Work` at once; calls of one group are
done in the order in which they were made. All raise ValueError for an argument that does not fit, `MismatchError`,
which is one, when the ranks make different calls that are new to the group, and `CollectiveError` when they mix up
other calls, and when a peer fails or is later than the group's timeout.

group: the default group if None.
algorithm: one of `ringsim algorithms`, `FILE.py:FUNCTION`, an MSCCL `FILE.xml`, or "auto".
accumulate: the dtype in which a rank adds, such as torch.float32 for a bfloat16 tensor. A rank still rounds what it
sends: an algorithm in which each sum is passed on, such as a ring, gains nothing, "two_shot" all there is to gain.
wire: the dtype that travels, such as torch.bfloat16 for a float32 tensor: half the bytes.

CUDA tensors: on a group whose backend for them is NCCL each step's messages are launched as one group; on Gloo, or the
backend "ring", they go through pinned memory of the host, which is kept: of each dtype as much as the longest tensor.
A collective begins after what the current stream was asked to do before the call; when the call returns, or that of
`Work.wait`, the current stream then waits for it, and on NCCL the CPU does not; a peer that fails is then found by
NCCL's own watchdog, and there is no CollectiveError.

The examples are those of each of two ranks, whose number is `rank`.
"""

import torch
import torch.distributed as dist

from collectives.calls.call import CollectiveCall, Operands
from collectives.calls.reduction import reduction_dtypes, reduction_of
from collectives.calls.tensor_checks import (
    block_lengths,
    check_alike,
    check_share,
    check_shares,
    check_tensor,
    check_writable,
    uneven,
)
from collectives.runtime import Work
from ringsim.schedule import Collective

Op = dist.ReduceOp.RedOpType | dist.ReduceOp
Group = dist.ProcessGroup | None


def all_reduce(
    tensor: torch.Tensor,
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
    accumulate: torch.dtype | None = None,
    wire: torch.dtype | None = None,
) -> Work | None:
    """Reduce `tensor` over all ranks of `group`, in place; every rank ends with the same bits, except with "direct".

    tensor: of any shape, the same on every rank.
    op: SUM, AVG (which divides the finished sum), PRODUCT, MIN, MAX, BAND, BOR or BXOR. The ranks of the algorithm
    "direct" add in different orders, and may differ in the last bit. With "gloo_ring" a SUM of real numbers has
    the very bits of dist.all_reduce on Gloo.
    async_op, group, algorithm, accumulate, wire: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> tensor = torch.tensor([1.0, 2.0]) + rank
        >>> collectives.all_reduce(tensor, dist.ReduceOp.SUM, algorithm="halving_doubling")
        >>> tensor
        tensor([3., 5.])
    """
    check_writable("tensor", tensor)
    dtypes = reduction_dtypes(tensor.dtype, accumulate, wire)
    reduction = reduction_of(op, dtypes.state)
    call = CollectiveCall(Collective.ALL_REDUCE, algorithm, group)
    return call.start("all_reduce", Operands((tensor,), (tensor,), dtypes, reduction), async_op)


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  torch.distributed's name
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
    accumulate: torch.dtype | None = None,
    wire: torch.dtype | None = None,
) -> Work | None:
    """Reduce `input` over all ranks and leave the r-th of its equal parts in rank r's `output`.

    input: num_ranks times the elements of `output`, same dtype and device; it is not changed.
    op: as in `all_reduce`.
    async_op, group, algorithm, accumulate, wire: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> share, whole = torch.empty(2), torch.arange(4.0)
        >>> collectives.reduce_scatter_tensor(share, whole, dist.ReduceOp.SUM)
        >>> torch.equal(share, 2 * whole[2 * rank : 2 * rank + 2])
        True
    """
    check_writable("output", output)
    dtypes = reduction_dtypes(output.dtype, accumulate, wire)
    reduction = reduction_of(op, dtypes.state)
    call = CollectiveCall(Collective.REDUCE_SCATTER, algorithm, group)
    check_share("output", output, "input", input, call.num_ranks)
    check_tensor("input", input)
    return call.start("reduce_scatter", Operands((input,), (output,), dtypes, reduction), async_op)


def reduce_scatter(
    output: torch.Tensor,
    input_list: list[torch.Tensor],
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
    accumulate: torch.dtype | None = None,
    wire: torch.dtype | None = None,
) -> Work | None:
    """Reduce the r-th tensor of `input_list` over all ranks into rank r's `output`.

    input_list: one tensor for each rank, the r-th with as many elements as rank r's `output`, same dtype and device.
    Ranks may have different numbers of elements. None is changed.
    op: as in `all_reduce`.
    async_op, group, algorithm, accumulate, wire: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> output = torch.empty(3)
        >>> collectives.reduce_scatter(output, [torch.ones(3), torch.full((3,), 10.0)], dist.ReduceOp.AVG)
        >>> output.tolist() == [10.0**rank] * 3
        True
    """
    check_writable("output", output)
    dtypes = reduction_dtypes(output.dtype, accumulate, wire)
    reduction = reduction_of(op, dtypes.state)
    call = CollectiveCall(Collective.REDUCE_SCATTER, algorithm, group)
    splits = check_shares("input_list", input_list, "output", output, call.num_ranks, call.rank)
    for tensor in input_list:
        check_tensor("input", tensor)
    operands = Operands(tuple(input_list), (output,), dtypes, reduction, splits=splits)
    return call.start("reduce_scatter", operands, async_op)


def reduce_scatter_v(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  torch.distributed's name
    input_split_sizes: list[int],
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
    accumulate: torch.dtype | None = None,
    wire: torch.dtype | None = None,
) -> Work | None:
    """Reduce `input` over all ranks and leave the r-th of its parts, which may be uneven, in rank r's `output`.

    input: of the same dtype and device as `output`; it is not changed.
    input_split_sizes: the rows of `input`, along its first dimension, that are each rank's share; alike on all ranks.
    op: as in `all_reduce`.
    async_op, group, algorithm, accumulate, wire: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> share, whole = torch.empty(1 + rank), torch.arange(3.0)  # one element for rank 0, two for rank 1
        >>> collectives.reduce_scatter_v(share, whole, [1, 2])
        >>> share.tolist() == ([2.0, 4.0] if rank else [0.0])
        True
    """
    check_writable("output", output)
    dtypes = reduction_dtypes(output.dtype, accumulate, wire)
    reduction = reduction_of(op, dtypes.state)
    call = CollectiveCall(Collective.REDUCE_SCATTER, algorithm, group)
    splits = _shares_of("input", input, input_split_sizes, "output", output, call)
    check_tensor("input", input)
    return call.start("reduce_scatter", Operands((input,), (output,), dtypes, reduction, splits=splits), async_op)


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
) -> Work | None:
    """Gather every rank's `input_tensor`, one after the other, into everyone's `output_tensor`.

    output_tensor: num_ranks times the elements of `input_tensor`, same dtype and device; `input_tensor` may be this
    rank's share of it.
    async_op, group, algorithm: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> whole = torch.empty(4)
        >>> collectives.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
        >>> whole
        tensor([0., 0., 1., 1.])
    """
    call = CollectiveCall(Collective.ALL_GATHER, algorithm, group)
    check_writable("output_tensor", output_tensor)
    check_tensor("input_tensor", input_tensor)
    check_share("input_tensor", input_tensor, "output_tensor", output_tensor, call.num_ranks)
    dtypes = reduction_dtypes(input_tensor.dtype)
    return call.start("all_gather", Operands((input_tensor,), (output_tensor,), dtypes), async_op)


def all_gather(
    tensor_list: list[torch.Tensor],
    tensor: torch.Tensor,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
) -> Work | None:
    """Gather every rank's `tensor` into everyone's `tensor_list`, rank r's into the r-th.

    tensor_list: one tensor for each rank, the r-th with as many elements as rank r's `tensor`, same dtype and device.
    Ranks may have different numbers of elements.
    async_op, group, algorithm: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> gathered = [torch.empty(2), torch.empty(2)]
        >>> collectives.all_gather(gathered, torch.full((2,), float(rank)))
        >>> gathered
        [tensor([0., 0.]), tensor([1., 1.])]
    """
    call = CollectiveCall(Collective.ALL_GATHER, algorithm, group)
    for index, output in enumerate(tensor_list):
        check_writable(f"tensor_list[{index}]", output)
    check_tensor("tensor", tensor)
    splits = check_shares("tensor_list", tensor_list, "tensor", tensor, call.num_ranks, call.rank)
    operands = Operands((tensor,), tuple(tensor_list), reduction_dtypes(tensor.dtype), splits=splits)
    return call.start("all_gather", operands, async_op)


def all_gather_v(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    output_split_sizes: list[int],
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
) -> Work | None:
    """Gather every rank's `input_tensor`, one after the other and of uneven lengths, into everyone's `output_tensor`.

    output_tensor: of the same dtype and device; `input_tensor` may be this rank's share of it.
    output_split_sizes: the rows of `output_tensor`, along its first dimension, that come from each rank; alike on all
    ranks.
    async_op, group, algorithm: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> whole = torch.empty(3)
        >>> collectives.all_gather_v(whole, torch.full((1 + rank,), float(rank)), [1, 2])
        >>> whole
        tensor([0., 1., 1.])
    """
    call = CollectiveCall(Collective.ALL_GATHER, algorithm, group)
    check_writable("output_tensor", output_tensor)
    check_tensor("input_tensor", input_tensor)
    splits = _shares_of("output", output_tensor, output_split_sizes, "input_tensor", input_tensor, call)
    operands = Operands((input_tensor,), (output_tensor,), reduction_dtypes(input_tensor.dtype), splits=splits)
    return call.start("all_gather", operands, async_op)


def _shares_of(
    whole_name: str, whole: torch.Tensor, sizes: list[int], name: str, tensor: torch.Tensor, call: CollectiveCall
) -> tuple[int, ...] | None:
    """Return the elements of each rank's share of `whole`; None if all are equal.

    Raises ValueError unless `tensor` is like this rank's.
    """
    lengths = block_lengths(whole_name, whole, sizes, call.num_ranks)
    check_alike(whole_name, whole, name, tensor)
    if lengths[call.rank] != tensor.numel():
        raise ValueError(
            f"{name} has {tensor.numel()} elements and the share of rank {call.rank} {lengths[call.rank]}: must agree"
        )
    return uneven(lengths)


def all_reduce_coalesced(
    tensors: list[torch.Tensor],
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
    accumulate: torch.dtype | None = None,
    wire: torch.dtype | None = None,
) -> Work | None:
    """Reduce `tensors` over all ranks, in place, in a single collective, which saves the latencies of separate calls.

    tensors: at least one, all of one dtype and on one device. Raises ValueError otherwise.
    """
    _check_coalesced(tensors)
    dtypes = reduction_dtypes(tensors[0].dtype, accumulate, wire)
    reduction = reduction_of(op, dtypes.state)
    call = CollectiveCall(Collective.ALL_REDUCE, algorithm, group)
    return call.start("all_reduce_coalesced", Operands(tuple(tensors), tuple(tensors), dtypes, reduction), async_op)


def _check_coalesced(tensors: list[torch.Tensor]) -> None:
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) != 1:
        raise ValueError(f"tensors of {sorted(map(str, dtypes))}: must be at least one, all of one dtype")
    for index, tensor in enumerate(tensors):
        check_writable(f"tensors[{index}]", tensor)
    devices = {str(tensor.device) for tensor in tensors}
    if len(devices) != 1:
        raise ValueError(f"tensors on {sorted(devices)}: must all be on the same device")


def all_gather_into_tensor_coalesced(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], group: Group = None, *, algorithm: str = "ring"
) -> list[Work]:
    """`all_gather_into_tensor` of each pair, begun in this order."""
    pairs = zip(outputs, inputs, strict=True)
    return _begun([all_gather_into_tensor(*pair, group, async_op=True, algorithm=algorithm) for pair in pairs])


def reduce_scatter_tensor_coalesced(
    outputs: list[torch.Tensor],
    inputs: list[torch.Tensor],
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    *,
    algorithm: str = "ring",
    accumulate: torch.dtype | None = None,
    wire: torch.dtype | None = None,
) -> list[Work]:
    """`reduce_scatter_tensor` of each pair, begun in this order."""
    return _begun(
        [
            reduce_scatter_tensor(
                *pair, op, group, async_op=True, algorithm=algorithm, accumulate=accumulate, wire=wire
            )
            for pair in zip(outputs, inputs, strict=True)
        ]
    )


def _begun(works: list[Work | None]) -> list[Work]:
    return [work for work in works if work is not None]
