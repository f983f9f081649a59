"""The collectives in which all ranks are alike, with torch.distributed's own signatures.

Tensors have any shape, strides and length, zero included, the same number of elements and dtype on every rank, and are
all on the CPU or all on one CUDA device. With `async_op=True` a call returns a `Work` at once; calls of one group are
done in the order in which they were made. All raise ValueError for an argument that does not fit, `MismatchError`,
which is one, when the ranks make different calls that are new to the group, and `CollectiveError` when they mix up
other calls, and when a peer fails or is later than the group's timeout.

group: the default group if None.
algorithm: one of `ringsim algorithms`, `FILE.py:FUNCTION`, an MSCCL `FILE.xml`, or "auto".
wire: the dtype that travels, such as torch.bfloat16 for a float32 tensor: half the bytes. Too large numbers become
infinite or NaN, also in float8_e4m3fn.

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
from collectives.calls.reduction import ReductionDtypes, reduction_of
from collectives.calls.tensor_checks import check_share, check_shares, check_tensor, check_writable
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
    wire: torch.dtype | None = None,
) -> Work | None:
    """Reduce `tensor` over all ranks of `group`, in place; every rank ends with the same bits, except with "direct".

    tensor: of any shape, the same on every rank.
    op: SUM, AVG (which divides the finished sum, or in float16 and float8 what is added), PRODUCT, MIN, MAX, BAND, BOR
    or BXOR. The ranks of the algorithm "direct" add in different orders, and may differ in the last bit. With
    "gloo_ring" a SUM of real numbers has the very bits of dist.all_reduce on Gloo.
    async_op, group, algorithm, wire: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> tensor = torch.tensor([1.0, 2.0]) + rank
        >>> collectives.all_reduce(tensor, dist.ReduceOp.SUM, algorithm="halving_doubling")
        >>> tensor
        tensor([3., 5.])
    """
    check_writable("tensor", tensor)
    reduction, dtypes = reduction_of(op, tensor.dtype, wire)
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
    wire: torch.dtype | None = None,
) -> Work | None:
    """Reduce `input` over all ranks and leave the r-th of its equal parts in rank r's `output`.

    input: num_ranks times the elements of `output`, same dtype and device; it is not changed.
    op: as in `all_reduce`.
    async_op, group, algorithm, wire: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> share, whole = torch.empty(2), torch.arange(4.0)
        >>> collectives.reduce_scatter_tensor(share, whole, dist.ReduceOp.SUM)
        >>> torch.equal(share, 2 * whole[2 * rank : 2 * rank + 2])
        True
    """
    check_writable("output", output)
    reduction, dtypes = reduction_of(op, output.dtype, wire)
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
    wire: torch.dtype | None = None,
) -> Work | None:
    """Reduce the r-th tensor of `input_list` over all ranks into rank r's `output`.

    input_list: one tensor for each rank, the r-th with as many elements as rank r's `output`, same dtype and device.
    Ranks may have different numbers of elements. None is changed.
    op: as in `all_reduce`.
    async_op, group, algorithm, wire: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> output = torch.empty(3)
        >>> collectives.reduce_scatter(output, [torch.ones(3), torch.full((3,), 10.0)], dist.ReduceOp.AVG)
        >>> output.tolist() == [10.0**rank] * 3
        True
    """
    check_writable("output", output)
    reduction, dtypes = reduction_of(op, output.dtype, wire)
    call = CollectiveCall(Collective.REDUCE_SCATTER, algorithm, group)
    splits = check_shares("input_list", input_list, "output", output, call.num_ranks, call.rank)
    for tensor in input_list:
        check_tensor("input", tensor)
    operands = Operands(tuple(input_list), (output,), dtypes, reduction, splits=splits)
    return call.start("reduce_scatter", operands, async_op)


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
    dtypes = ReductionDtypes.of(input_tensor)
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
    operands = Operands((tensor,), tuple(tensor_list), ReductionDtypes.of(tensor), splits=splits)
    return call.start("all_gather", operands, async_op)


def all_reduce_coalesced(
    tensors: list[torch.Tensor],
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
    wire: torch.dtype | None = None,
) -> Work | None:
    """Reduce `tensors` over all ranks, in place, in a single collective, which saves the latencies of separate calls.

    tensors: at least one, all of one dtype and on one device. Raises ValueError otherwise.
    """
    dtypes_there = {tensor.dtype for tensor in tensors}
    if len(dtypes_there) != 1:
        raise ValueError(f"tensors of {sorted(map(str, dtypes_there))}: must be at least one, all of one dtype")
    for index, tensor in enumerate(tensors):
        check_writable(f"tensors[{index}]", tensor)
    devices = {str(tensor.device) for tensor in tensors}
    if len(devices) != 1:
        raise ValueError(f"tensors on {sorted(devices)}: must all be on the same device")
    reduction, dtypes = reduction_of(op, tensors[0].dtype, wire)
    call = CollectiveCall(Collective.ALL_REDUCE, algorithm, group)
    return call.start("all_reduce_coalesced", Operands(tuple(tensors), tuple(tensors), dtypes, reduction), async_op)


def all_gather_into_tensor_coalesced(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], group: Group = None, *, algorithm: str = "ring"
) -> list[Work | None]:
    """Begin an `all_gather_into_tensor` of each pair, in this order."""
    pairs = zip(outputs, inputs, strict=True)
    return [all_gather_into_tensor(*pair, group, async_op=True, algorithm=algorithm) for pair in pairs]


def reduce_scatter_tensor_coalesced(
    outputs: list[torch.Tensor],
    inputs: list[torch.Tensor],
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    *,
    algorithm: str = "ring",
    wire: torch.dtype | None = None,
) -> list[Work | None]:
    """Begin a `reduce_scatter_tensor` of each pair, in this order."""
    pairs = zip(outputs, inputs, strict=True)
    return [reduce_scatter_tensor(*pair, op, group, async_op=True, algorithm=algorithm, wire=wire) for pair in pairs]
