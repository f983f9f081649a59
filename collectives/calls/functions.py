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

from collectives.calls.call import CollectiveCall, ReductionDtypes, reduction_dtypes
from collectives.calls.reduction import Reduction, reduction_of
from collectives.calls.tensor_checks import (
    assign,
    check_list,
    check_share,
    check_tensor,
    check_writable,
    resolved,
    same_storage,
)
from collectives.runtime import Work, is_plain
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

    def run() -> None:
        reduce_in_place(call, tensor.detach(), reduction, dtypes)

    fingerprint = call.fingerprint("all_reduce", tensor, ", ", reduction.name, dtypes)
    return call.perform(run, fingerprint, [tensor], async_op=async_op)


def reduce_in_place(call: CollectiveCall, tensor: torch.Tensor, reduction: Reduction, dtypes: ReductionDtypes) -> None:
    """Execute the schedule of `call` on `tensor`, or on a copy where it cannot be; the result is `reduction`'s."""
    # Strides that are not contiguous would be sent as if they were: work on a copy then.
    if call.takes(tensor) and dtypes.state == tensor.dtype:
        state = tensor
    else:
        state = call.buffer(tensor.numel(), dtypes.state, tensor).view(tensor.shape)
        state.copy_(resolved(tensor))
    call.execute(state, reduction, dtypes.wire)
    reduction.finish(state, call.num_ranks)
    if state is not tensor:
        assign(tensor, state)


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
    """Reduce `input` over all ranks and leave the r-th equal share of it in rank r's `output`.

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
    scatter = _ReduceScatter(group, op, output, algorithm, reduction_dtypes(output.dtype, accumulate, wire))
    check_share("output", output, "input", input, scatter.call.num_ranks)
    return scatter.start([input], async_op)


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

    input_list: one tensor for each rank, with as many elements as `output`, same dtype and device; none is changed.
    op: as in `all_reduce`.
    async_op, group, algorithm, accumulate, wire: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent, and
    CollectiveError when a peer fails.

        >>> output = torch.empty(3)
        >>> collectives.reduce_scatter(output, [torch.ones(3), torch.full((3,), 10.0)], dist.ReduceOp.AVG)
        >>> output.tolist() == [10.0**rank] * 3
        True
    """
    scatter = _ReduceScatter(group, op, output, algorithm, reduction_dtypes(output.dtype, accumulate, wire))
    check_list("input_list", input_list, "output", output, scatter.call.num_ranks)
    return scatter.start(input_list, async_op)


class _ReduceScatter:
    """A reduce_scatter of one or several inputs that lie one after the other."""

    def __init__(self, group: Group, op: Op, output: torch.Tensor, algorithm: str, dtypes: ReductionDtypes) -> None:
        check_writable("output", output)
        self.dtypes = dtypes
        self.reduction = reduction_of(op, dtypes.state)
        self.call = CollectiveCall(Collective.REDUCE_SCATTER, algorithm, group)
        self.output = output

    def _can_be_read_in_place(self, inputs: list[torch.Tensor]) -> bool:
        plain = len(inputs) == 1 and self.call.takes(inputs[0])
        return plain and inputs[0].dtype == self.dtypes.state == self.dtypes.wire

    def _can_be_summed_in(self, output: torch.Tensor, whole: torch.Tensor) -> bool:
        """Whether nothing of the input has to be read where the output is, but the share that it replaces."""
        own = whole.view(self.call.num_ranks, -1)[self.call.rank]
        return own.data_ptr() == output.data_ptr() or not same_storage(own, output)

    def start(self, inputs: list[torch.Tensor], async_op: bool) -> Work | None:
        for tensor in inputs:
            check_tensor("input", tensor)
        fingerprint = self.call.fingerprint(
            "reduce_scatter", self.output, " a rank, ", self.reduction.name, self.dtypes
        )
        detached = [tensor.detach() for tensor in inputs]
        return self.call.perform(lambda: self.run(detached), fingerprint, [self.output], inputs, async_op)

    def run(self, inputs: list[torch.Tensor]) -> None:
        call, output = self.call, self.output.detach()
        state = call.buffer(output.numel() * call.num_ranks, self.dtypes.state, output)
        share = state.view(call.num_ranks, -1)[call.rank]
        if call.num_ranks > 1 and self._can_be_read_in_place(inputs):
            if call.takes(output) and self._can_be_summed_in(output, inputs[0]):
                share = output  # which saves a copy
            call.execute(state, self.reduction, source=inputs[0], share=share)
        else:
            for part, tensor in zip(state.tensor_split(len(inputs)), inputs, strict=True):
                part.view(tensor.shape).copy_(resolved(tensor))
            call.execute(state, self.reduction, self.dtypes.wire)
        self.reduction.finish(share, call.num_ranks)
        if share is not output:
            assign(self.output, share.view(output.shape))


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

    def run() -> None:
        output = output_tensor.detach()
        whole = output if call.takes(output) else call.buffer(output.numel(), output.dtype, output)
        _gather(call, whole.view(call.num_ranks, -1), input_tensor.detach())
        if whole is not output:
            assign(output, whole.view(output.shape))

    fingerprint = call.fingerprint("all_gather", input_tensor, " a rank")
    return call.perform(run, fingerprint, [output_tensor], [input_tensor], async_op)


def all_gather(
    tensor_list: list[torch.Tensor],
    tensor: torch.Tensor,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
) -> Work | None:
    """Gather every rank's `tensor` into everyone's `tensor_list`, rank r's into the r-th.

    tensor_list: one tensor for each rank, with as many elements as `tensor`, same dtype and device.
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
    check_list("tensor_list", tensor_list, "tensor", tensor, call.num_ranks)

    def run() -> None:
        whole = call.buffer(tensor.numel() * call.num_ranks, tensor.dtype, tensor).view(call.num_ranks, -1)
        _gather(call, whole, tensor.detach())
        for output, part in zip(tensor_list, whole, strict=True):
            assign(output, part.view(output.shape))

    return call.perform(run, call.fingerprint("all_gather", tensor, " a rank"), tensor_list, [tensor], async_op)


def _gather(call: CollectiveCall, whole: torch.Tensor, own: torch.Tensor) -> None:
    """whole: (num_ranks, elements), contiguous."""
    share = whole[call.rank]
    if own.data_ptr() != share.data_ptr() or not is_plain(own):
        values = resolved(own)
        if same_storage(values, share):
            values = values.clone()  # torch copies no tensor over part of itself
        share.view(own.shape).copy_(values)
    call.execute(whole)
