"""The collectives in which all ranks are alike, with torch.distributed's own signatures.

Tensors have any shape, strides and length, zero included, the same number of elements and dtype on every rank, and are
all on the CPU or all on one CUDA device. With `async_op=True` a call returns a `Work` at once; calls of one group are
done in the order in which they were made. All raise ValueError for an argument that does not fit, and CollectiveError
when a peer fails or is later than the group's timeout.

algorithm: one of `ringsim algorithms`, `FILE.py:FUNCTION` or an MSCCL `FILE.xml`.
accumulate: the dtype in which a rank adds, such as torch.float32 for a bfloat16 tensor. A rank still rounds what it
sends: an algorithm in which each sum is passed on, such as a ring, gains nothing, "two_shot" all there is to gain.
wire: the dtype that travels, such as torch.bfloat16 for a float32 tensor: half the bytes.

CUDA tensors: on a group whose backend for them is NCCL each step's messages are launched as one group; on Gloo, or the
backend "ring", they go through pinned memory of the host, which is kept: of each dtype as much as the longest tensor.
A collective begins after what the current stream was asked to do before the call; when the call returns, or that of
`Work.wait`, the current stream then waits for it, and on NCCL the CPU does not; a peer that fails is then found by
NCCL's own watchdog, and there is no CollectiveError.
"""

from typing import Any

import torch
import torch.distributed as dist

from collectives.calls.call import Call, Numbers, numbers
from collectives.calls.reduction import Reduction, reduction
from collectives.calls.tensor_checks import assign, check_list, check_share, check_tensor, check_writable, resolved
from collectives.runtime import Source, Work, is_plain
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
    """Reduce `tensor` over all ranks of `group`, in place; every rank ends with the same bits.

    op: SUM, AVG (which divides the finished sum), PRODUCT, MIN, MAX, BAND, BOR or BXOR. With the algorithm "direct",
    whose ranks add in different orders, ranks may differ in the last bit. With "gloo_ring" a SUM of real numbers has
    the very bits of dist.all_reduce on Gloo.
    """
    check_writable("tensor", tensor)
    dtypes = numbers(tensor.dtype, accumulate, wire)
    how = reduction(op, dtypes.state)
    call = Call(Collective.ALL_REDUCE, algorithm, group)

    def run() -> None:
        _reduce_in_place(call, tensor.detach(), how, dtypes)

    return call.perform(run, async_op, "all_reduce", [tensor], tensor, (", ", how.name, dtypes))


def _reduce_in_place(call: Call, tensor: torch.Tensor, how: Reduction, dtypes: Numbers) -> None:
    # Strides that are not contiguous would be sent as if they were: work on a copy then.
    if call.takes(tensor) and dtypes.state == tensor.dtype:
        state = tensor
    else:
        state = call.buffer(tensor.numel(), dtypes.state, tensor).view(tensor.shape)
        state.copy_(resolved(tensor))
    call.execute(state, how, dtypes.wire)
    how.finish(state, call.num_ranks)
    if state is not tensor:
        assign(tensor, state)


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  torch.distributed's name
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    **how: Any,
) -> Work | None:
    """Reduce `input` over all ranks and leave the r-th equal share of it in rank r's `output`.

    input: num_ranks times the elements of `output`, same dtype; it is not changed.
    how: `algorithm`, `accumulate` and `wire`.
    """
    scatter = _Scatter(group, op, output, **how)
    check_share("output", output, "input", input, scatter.call.num_ranks)
    return scatter.start([input], async_op)


def reduce_scatter(
    output: torch.Tensor,
    input_list: list[torch.Tensor],
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    **how: Any,
) -> Work | None:
    """Reduce the r-th tensor of `input_list` over all ranks into rank r's `output`; inputs are not changed.

    how: `algorithm`, `accumulate` and `wire`.
    """
    scatter = _Scatter(group, op, output, **how)
    check_list("input_list", input_list, "output", output, scatter.call.num_ranks)
    return scatter.start(input_list, async_op)


class _Scatter:
    """A reduce_scatter of one or several inputs that lie one after the other."""

    def __init__(
        self,
        group: Group,
        op: Op,
        output: torch.Tensor,
        *,
        algorithm: str = "ring",
        accumulate: torch.dtype | None = None,
        wire: torch.dtype | None = None,
    ) -> None:
        check_writable("output", output)
        self.dtypes = numbers(output.dtype, accumulate, wire)
        self.how = reduction(op, self.dtypes.state)
        self.call = Call(Collective.REDUCE_SCATTER, algorithm, group)
        self.output = output

    def _can_be_read_in_place(self, inputs: list[torch.Tensor]) -> bool:
        plain = len(inputs) == 1 and self.call.takes(inputs[0])
        return plain and inputs[0].dtype == self.dtypes.state == self.dtypes.wire

    def start(self, inputs: list[torch.Tensor], async_op: bool) -> Work | None:
        for each in inputs:
            check_tensor("input", each)
        output, details = self.output, (" a rank, ", self.how.name, self.dtypes)
        return self.call.perform(
            lambda: self.run([each.detach() for each in inputs]),
            async_op,
            "reduce_scatter",
            [output],
            output,
            details,
            inputs,
        )

    def run(self, inputs: list[torch.Tensor]) -> None:
        call = self.call
        state = call.buffer(self.output.numel() * call.num_ranks, self.dtypes.state, self.output)
        if call.num_ranks > 1 and self._can_be_read_in_place(inputs):
            call.execute(state, self.how, source=Source(inputs[0], self.how.combine_into))
        else:
            for part, each in zip(state.tensor_split(len(inputs)), inputs, strict=True):
                part.view(each.shape).copy_(resolved(each))
            call.execute(state, self.how, self.dtypes.wire)
        share = state.view(call.num_ranks, -1)[call.rank]
        self.how.finish(share, call.num_ranks)
        assign(self.output, share.view(self.output.shape))


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
) -> Work | None:
    """Gather every rank's `input_tensor`, one after the other, into everyone's `output_tensor`.

    output_tensor: num_ranks times the elements of `input_tensor`, same dtype.
    """
    call = Call(Collective.ALL_GATHER, algorithm, group)
    check_writable("output_tensor", output_tensor)
    check_tensor("input_tensor", input_tensor)
    check_share("input_tensor", input_tensor, "output_tensor", output_tensor, call.num_ranks)

    def run() -> None:
        output = output_tensor.detach()
        whole = output if call.takes(output) else call.buffer(output.numel(), output.dtype, output)
        _gather(call, whole.view(call.num_ranks, -1), input_tensor.detach())
        if whole is not output:
            assign(output, whole.view(output.shape))

    return call.perform(run, async_op, "all_gather", [output_tensor], input_tensor, (" a rank",))


def all_gather(
    tensor_list: list[torch.Tensor],
    tensor: torch.Tensor,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
) -> Work | None:
    """Gather every rank's `tensor` into everyone's `tensor_list`, rank r's into the r-th."""
    call = Call(Collective.ALL_GATHER, algorithm, group)
    for index, each in enumerate(tensor_list):
        check_writable(f"tensor_list[{index}]", each)
    check_tensor("tensor", tensor)
    check_list("tensor_list", tensor_list, "tensor", tensor, call.num_ranks)

    def run() -> None:
        whole = call.buffer(tensor.numel() * call.num_ranks, tensor.dtype, tensor).view(call.num_ranks, -1)
        _gather(call, whole, tensor.detach())
        for each, part in zip(tensor_list, whole, strict=True):
            assign(each, part.view(each.shape))

    return call.perform(run, async_op, "all_gather", tensor_list, tensor, (" a rank",))


def _gather(call: Call, whole: torch.Tensor, own: torch.Tensor) -> None:
    """whole: (num_ranks, elements), contiguous."""
    place = whole[call.rank]
    if own.data_ptr() != place.data_ptr() or not is_plain(own):
        values = resolved(own)
        shared = values.untyped_storage().data_ptr() == place.untyped_storage().data_ptr()
        place.view(own.shape).copy_(values.clone() if shared else values)  # torch copies no tensor over part of itself
    call.execute(whole)
