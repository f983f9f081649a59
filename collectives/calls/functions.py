"""The collectives, with torch.distributed's own signatures.

Tensors have any shape, strides and length, zero included, the same number of elements and dtype on every rank, and are
all on the CPU or all on one CUDA device. Inputs are only read. A group executes its calls in order.

op: as in `all_reduce`.
async_op: False: the call returns None when done; True: it returns a `Work` at once.
group: the default group if None.
src, dst: the root, a rank of the whole job; or group_src, group_dst: a rank of `group`.
algorithm: one of `ringsim algorithms`, `FILE.py:FUNCTION`, an MSCCL `FILE.xml`, or "auto".
wire: the dtype that travels, such as torch.bfloat16 for a float32 tensor, which halves the bytes. Values out of its
range become infinite or NaN.

All raise ValueError for an argument that does not fit, before anything is sent; `MismatchError`, a ValueError, if ranks
make different calls that are new to the group; `CollectiveError` if ranks mix up known calls, or a peer fails or
exceeds the group's timeout.

CUDA tensors: on NCCL each step's messages are launched as one group; on Gloo, or the backend "ring", they go through
pinned memory of the host, which is kept. A collective begins after the earlier work of the current stream, which waits
for it from the return of the call, or of `Work.wait`. On NCCL the CPU does not wait: NCCL's own watchdog finds a peer
that fails, and there is no CollectiveError.

The examples are executed by each of two ranks, whose number is `rank`.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from collectives import runtime
from collectives.calls import table
from collectives.calls.arguments import SUM, CallOptions, Group, Op, Wire, prepare, start, start_uneven
from collectives.calls.call import CollectiveCall, GroupRuntime
from collectives.calls.rehearsal import record_as_lent, recorded_group
from collectives.runtime import Work
from collectives.shared_memory import LocalRanks
from ringsim.schedule import Collective

__all__ = [
    "all_gather", "all_gather_into_tensor", "all_gather_single", "all_reduce", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "empty", "gather", "reduce", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_tensor", "scatter",
]  # fmt: skip


def all_reduce(
    tensor: Tensor,
    op: Op = SUM,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
    wire: Wire = None,
) -> Work | None:
    """Reduce `tensor` over all ranks of `group`, in place; every rank ends with the same bits, except with "direct".

    op: SUM, AVG (divides the sum, or in float16 and float8 each contribution), PRODUCT, MIN, MAX, BAND, BOR or BXOR.
    With "direct" ranks add in different orders, and may differ in the last bit. With "gloo_ring" a SUM of real numbers
    has the bits of dist.all_reduce on Gloo.
    Other arguments and errors of all collectives: see `collectives.calls.functions`.

        >>> tensor = torch.tensor([1.0, 2.0]) + rank
        >>> collectives.all_reduce(tensor, dist.ReduceOp.SUM, algorithm="halving_doubling")
        >>> tensor
        tensor([3., 5.])
    """
    return start("all_reduce", tensor, tensor, CallOptions(group, async_op, algorithm, op, wire))


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,  # noqa: A002  torch.distributed's name
    op: Op = SUM,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
    wire: Wire = None,
) -> Work | None:
    """Reduce `input` over all ranks and leave the r-th of its equal parts in rank r's `output`.

    input: num_ranks times the elements of `output`.

        >>> share, whole = torch.empty(2), torch.arange(4.0)
        >>> collectives.reduce_scatter_tensor(share, whole)
        >>> torch.equal(share, 2 * whole[2 * rank : 2 * rank + 2])
        True
    """
    return start("reduce_scatter_tensor", output, input, CallOptions(group, async_op, algorithm, op, wire))


reduce_scatter_single = reduce_scatter_tensor  # torch's name for it since 2.13


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: Op = SUM,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
    wire: Wire = None,
) -> Work | None:
    """Reduce the r-th tensor of `input_list` over all ranks into rank r's `output`.

    input_list: one tensor per rank, as long as that rank's `output`; lengths may differ between ranks.

        >>> output = torch.empty(3)
        >>> collectives.reduce_scatter(output, [torch.ones(3), torch.full((3,), 10.0)], dist.ReduceOp.AVG)
        >>> output.tolist() == [10.0**rank] * 3
        True
    """
    return start("reduce_scatter", output, input_list, CallOptions(group, async_op, algorithm, op, wire))


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Group = None, async_op: bool = False, *, algorithm: str = "ring"
) -> Work | None:
    """Gather every rank's `input_tensor` into every rank's `output_tensor`, in rank order.

    output_tensor: num_ranks times the elements of `input_tensor`, which may be this rank's share of it.

        >>> whole = torch.empty(4)
        >>> collectives.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
        >>> whole
        tensor([0., 0., 1., 1.])
    """
    return start("all_gather_into_tensor", output_tensor, input_tensor, CallOptions(group, async_op, algorithm))


all_gather_single = all_gather_into_tensor  # torch's name for it since 2.13


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: Group = None, async_op: bool = False, *, algorithm: str = "ring"
) -> Work | None:
    """Gather every rank's `tensor` into every rank's `tensor_list`; the r-th of the list is rank r's.

    tensor_list: one tensor per rank, as long as that rank's `tensor`; lengths may differ between ranks.

        >>> gathered = [torch.empty(2), torch.empty(2)]
        >>> collectives.all_gather(gathered, torch.full((2,), float(rank)))
        >>> gathered
        [tensor([0., 0.]), tensor([1., 1.])]
    """
    return start("all_gather", tensor_list, tensor, CallOptions(group, async_op, algorithm))


def all_reduce_coalesced(
    tensors: list[Tensor],
    op: Op = SUM,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
    wire: Wire = None,
) -> Work | None:
    """Reduce `tensors` over all ranks, in place, in a single collective, which saves latencies.

    tensors: at least one, all of one dtype and on one device.
    """
    dtypes_there = {tensor.dtype for tensor in tensors}
    if len(dtypes_there) != 1:
        raise ValueError(f"tensors of {sorted(map(str, dtypes_there))}: must be at least one, all of one dtype")
    devices = {str(tensor.device) for tensor in tensors}
    if len(devices) != 1:
        raise ValueError(f"tensors on {sorted(devices)}: must all be on the same device")
    return start("all_reduce_coalesced", tensors, tensors, CallOptions(group, async_op, algorithm, op, wire))


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    algorithm: str = "binomial_tree",
) -> Work | None:
    """Copy rank `src`'s `tensor` to the `tensor` of every other rank.

    >>> tensor = torch.full((2,), float(rank))
    >>> collectives.broadcast(tensor, src=1)
    >>> tensor
    tensor([1., 1.])
    """
    return start("broadcast", tensor, tensor, CallOptions(group, async_op, algorithm, root=(src, group_src)))


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: Op = SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    algorithm: str = "binomial_tree",
    wire: Wire = None,
) -> Work | None:
    """Reduce `tensor` over all ranks into rank `dst`'s `tensor`; the tensors of the other ranks are unchanged.

    >>> tensor = torch.ones(3)
    >>> collectives.reduce(tensor, dst=1)
    >>> tensor.tolist() == [2.0 if rank == 1 else 1.0] * 3
    True
    """
    return start("reduce", tensor, tensor, CallOptions(group, async_op, algorithm, op, wire, root=(dst, group_dst)))


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    algorithm: str = "direct",
) -> Work | None:
    """Gather every rank's `tensor` into rank `dst`'s `gather_list`; the r-th of the list is rank r's.

    gather_list: on rank `dst` one tensor per rank, as long as `tensor`; elsewhere None or empty.
    dst: rank 0 by default.

        >>> gathered = [torch.empty(2), torch.empty(2)] if rank == 0 else None
        >>> collectives.gather(torch.full((2,), float(rank)), gathered)
        >>> gathered is None or gathered[1].tolist() == [1.0, 1.0]
        True
    """
    return start("gather", gather_list, tensor, CallOptions(group, async_op, algorithm, root=(dst, group_dst)))


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    algorithm: str = "direct",
) -> Work | None:
    """Copy the r-th tensor of rank `src`'s `scatter_list` into rank r's `tensor`.

    scatter_list: on rank `src` one tensor per rank, as long as `tensor`; elsewhere None or empty.
    src: rank 0 by default.

        >>> tensor = torch.empty(2)
        >>> collectives.scatter(tensor, [torch.zeros(2), torch.ones(2)] if rank == 0 else None)
        >>> tensor.tolist() == [float(rank)] * 2
        True
    """
    return start("scatter", tensor, scatter_list, CallOptions(group, async_op, algorithm, root=(src, group_src)))


def all_to_all_single(
    output: Tensor,
    input: Tensor,  # noqa: A002  torch.distributed's name
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "direct",
) -> Work | None:
    """Send the d-th block of `input` to rank d, and receive the block from rank s into the s-th block of `output`.

    input, output: blocks are runs along the first dimension.
    output_split_sizes, input_split_sizes: the length of each rank's block along that dimension, 0 included; None or
    empty: equal blocks. Either all ranks give sizes or none. Ranks first exchange sizes, which takes as long as the
    smallest all_gather.

    Raises MismatchError, on all ranks, if a rank sends another number of elements than the receiver expects.

        >>> sent = torch.full((3,), float(rank))
        >>> output = torch.empty(2 * (rank + 1))
        >>> collectives.all_to_all_single(output, sent, [rank + 1, rank + 1], [1, 2])
        >>> output.tolist() == [0.0] * (rank + 1) + [1.0] * (rank + 1)
        True
    """
    call, operands = prepare("all_to_all_single", output, input, CallOptions(group, async_op, algorithm))
    table.check_alike("output", output, "input", input)
    of_input, of_output = table.listed_sizes(input_split_sizes), table.listed_sizes(output_split_sizes)
    sent = table.block_lengths("input", input, of_input, call.num_ranks)
    expected = table.block_lengths("output", output, of_output, call.num_ranks)
    if of_output or of_input:
        return start_uneven(call, operands, sent, expected, async_op)
    table.check_as_many("output", output, "input", input)
    return call.start("all_to_all", operands, async_op)


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "direct",
) -> Work | None:
    """Send the d-th tensor of `input_tensor_list` to rank d, and receive from rank s into the s-th output tensor.

    output_tensor_list, input_tensor_list: one tensor per rank, all of one dtype and device, of any length. The ranks
    first exchange the lengths, and raise MismatchError as in `all_to_all_single`.

        >>> received = [torch.empty(1), torch.empty(2)]
        >>> collectives.all_to_all(received, [torch.zeros(rank + 1), torch.ones(rank + 1)])
        >>> received[1].tolist() == [float(rank)] * 2
        True
    """
    options = CallOptions(group, async_op, algorithm)
    call, operands = prepare("all_to_all", output_tensor_list, input_tensor_list, options)
    named = ("output_tensor_list", operands.outputs), ("input_tensor_list", operands.inputs)
    for name, tensors in named:
        table.check_number(name, tensors, call.num_ranks)
    for name, tensors in named:
        for index, tensor in enumerate(tensors):
            table.check_alike(f"{name}[{index}]", tensor, "input_tensor_list[0]", operands.inputs[0])
    expected, sent = ([tensor.numel() for tensor in tensors] for _, tensors in named)
    return start_uneven(call, operands, sent, expected, async_op)


def barrier(group: Group = None, async_op: bool = False) -> Work | None:
    """Wait until every rank of `group` has called it.

    On a group without a backend for the CPU it also waits for the current CUDA stream.

        >>> collectives.barrier()
    """
    call = CollectiveCall(Collective.ALL_REDUCE, "recursive_doubling", group)
    token = torch.zeros(1, device=runtime.home_of(call.group))

    def run() -> None:
        # No rank can have the sum before all ranks have contributed.
        call.execute(runtime.RunOperands(token, token.numel(), token.dtype, stamp=call.stamp))
        if token.is_cuda:
            torch.cuda.current_stream(token.device).synchronize()

    return call.perform(run, call.fingerprint("barrier", token.numel(), token.dtype), [token], async_op=async_op)


def empty(*size: int | Sequence[int], dtype: torch.dtype | None = None, group: Group = None) -> Tensor:
    """Return an uninitialised tensor on the CPU which collectives of `group` do not copy to send it.

    The ranks of a host read and add such a tensor in place; any other is copied first. Results have the same bits. A
    collective on such a tensor, or on a part of one, returns when all ranks of the host have read it.

    The memory is freed when the tensor and all its views are gone. Its storage cannot be resized, and a forked process
    also shares it. The tensor is an ordinary one if the group shares no memory (`use_transport`), or if `ulimit -v` or
    `ulimit -f` limits the address space or the size of files.

    size, dtype: as in `torch.empty`.
    group: all its ranks must call this, or another collective, the first time.

    Raises RuntimeError if there is no memory.

        >>> tensor = collectives.empty(2, 3).fill_(rank)
        >>> collectives.all_reduce(tensor)
        >>> tensor[0]
        tensor([1., 1., 1.])
    """
    group, dtype = runtime.resolve(group), dtype or torch.get_default_dtype()
    # A size may be a sequence, which torch's stubs do not know.
    like = torch.empty(*size, dtype=dtype, device="meta")  # type: ignore[arg-type]
    if recorded_group(group) is not None:
        return record_as_lent(torch.empty(like.shape, dtype=dtype, device=runtime.CPU))
    local = _local_ranks(group) if like.nbytes and runtime.has_backend(group, runtime.CPU) else None
    try:
        memory = local.heap.new(like.nbytes) if local is not None else None
    except OSError as error:
        raise RuntimeError(f"a tensor of {like.nbytes} bytes that ranks share: {error}") from error
    if memory is None:
        return torch.empty(like.shape, dtype=dtype, device=runtime.CPU)
    return memory.view(dtype).view(like.shape)


def _local_ranks(group: dist.ProcessGroup) -> LocalRanks | None:
    """Return the ranks that share memory with this one; collective the first time."""
    sharing = runtime.state_of(group).part(runtime.Sharing)
    if not sharing.is_known:
        runtime.state_of(group).part(GroupRuntime).queue.run(lambda: sharing.of(group))
    return sharing.of(group).local
