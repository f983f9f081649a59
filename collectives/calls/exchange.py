"""The all-to-all, of equal blocks and of uneven ones, with torch.distributed's own signatures (see `functions`)."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from collectives.calls import tensor_checks
from collectives.calls.call import CollectiveCall, Operands
from collectives.calls.functions import Group, checked
from collectives.calls.reduction import ReductionDtypes
from collectives.runtime import MismatchError, RowAllGather, Tag, Work, state_of
from ringsim.schedule import Collective

MAX_NAMED = 4  # pairs of ranks that disagree, in a message


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  torch.distributed's name
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "direct",
) -> Work | None:
    """Send the d-th block of `input` to rank d, and put what comes from rank s into the s-th block of `output`.

    input, output: of one dtype and device; blocks are runs of their first dimension. `input` is not changed.
    output_split_sizes, input_split_sizes: the length of each block along that dimension, for each rank one, 0 included.
    Without them blocks are equal. Either all ranks give some or none does; with them the ranks first tell each other
    the lengths of their blocks, which takes as long as the smallest all_gather.
    async_op, group, algorithm: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises ValueError for what does not fit, before anything is sent,
    MismatchError, on all ranks, if one does not send another as many elements as that one expects, and CollectiveError
    when a peer fails.

        >>> output = torch.empty(2)
        >>> collectives.all_to_all_single(output, torch.tensor([10.0, 11.0]) + 20 * rank)
        >>> output.tolist() == [10.0 + rank, 30.0 + rank]
        True
        >>> mine = torch.full((3,), float(rank))  # one element for rank 0, two for rank 1
        >>> output = torch.empty(2 * (rank + 1))
        >>> collectives.all_to_all_single(output, mine, [rank + 1, rank + 1], [1, 2])
        >>> output.tolist() == [0.0] * (rank + 1) + [1.0] * (rank + 1)
        True
    """
    tensor_checks.check_writable("output", output)
    tensor_checks.check_tensor("input", input)
    tensor_checks.check_alike("output", output, "input", input)
    call = CollectiveCall(Collective.ALL_TO_ALL, algorithm, group)
    operands = Operands((input,), (output,), ReductionDtypes(input.dtype, input.dtype))
    sent = tensor_checks.block_lengths("input", input, input_split_sizes, call.num_ranks)
    expected = tensor_checks.block_lengths("output", output, output_split_sizes, call.num_ranks)
    if output_split_sizes or input_split_sizes:
        return _start_uneven(call, operands, sent, expected, async_op)
    tensor_checks.check_as_many("output", output, "input", input)
    return call.start("all_to_all", operands, async_op)


def all_to_all(
    output_tensor_list: list[torch.Tensor],
    input_tensor_list: list[torch.Tensor],
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "direct",
) -> Work | None:
    """Send the d-th tensor of `input_tensor_list` to rank d, and put what comes from rank s into the s-th of the other.

    output_tensor_list, input_tensor_list: a tensor for each rank, all of one dtype and device, of any length. The ranks
    first tell each other the lengths, as in `all_to_all_single` with sizes.
    async_op, group, algorithm: see `collectives.calls.functions`.

    Returns None, or a `Work` if `async_op`. Raises what `all_to_all_single` raises.

        >>> received = [torch.empty(1), torch.empty(2)]
        >>> collectives.all_to_all(received, [torch.zeros(rank + 1), torch.ones(rank + 1)])
        >>> received[1].tolist() == [float(rank)] * 2
        True
    """
    call = CollectiveCall(Collective.ALL_TO_ALL, algorithm, group)
    outputs = checked("output_tensor_list", output_tensor_list, tensor_checks.check_writable)
    inputs = checked("input_tensor_list", input_tensor_list, tensor_checks.check_tensor)
    named = ("output_tensor_list", outputs), ("input_tensor_list", inputs)
    for name, tensors in named:
        tensor_checks.check_number(name, tensors, call.num_ranks)
    for name, tensors in named:
        for index, tensor in enumerate(tensors):
            tensor_checks.check_alike(f"{name}[{index}]", tensor, "input_tensor_list[0]", inputs[0])
    operands = Operands(inputs, outputs, ReductionDtypes(inputs[0].dtype, inputs[0].dtype))
    expected, sent = ([tensor.numel() for tensor in tensors] for tensors in (outputs, inputs))
    return _start_uneven(call, operands, sent, expected, async_op)


def _start_uneven(
    call: CollectiveCall, operands: Operands, sent: Sequence[int], expected: Sequence[int], async_op: bool
) -> Work | None:
    """Do the all-to-all of blocks of these lengths, of which a rank knows only its own."""
    fingerprint = call.fingerprint(
        "all_to_all", None, operands.inputs[0].dtype, " in blocks whose lengths ranks tell each other"
    )

    def run() -> None:
        if call.is_recorded:  # as if all ranks sent what this one sends
            splits = tuple(sent) * call.num_ranks
        else:
            splits = state_of(call.group).part(BlockLengths).agree(sent, expected)
        call.run_out_of_place(operands._replace(splits=splits))

    return call.perform(run, fingerprint, list(operands.outputs), operands.inputs, async_op)


class BlockLengths:
    """The exchange by which the ranks of a group tell each other the lengths of the blocks of an all-to-all."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._num_ranks = group.size()
        self._rows = RowAllGather(group, Tag.BLOCK_LENGTHS, 2 * self._num_ranks, torch.int64)

    def agree(self, sent: Sequence[int], expected: Sequence[int]) -> tuple[int, ...]:
        """Return how many elements every rank sends to every rank, one sender after the other.

        sent, expected: elements that this rank sends to each rank, and that it expects from each.

        Raises MismatchError, on every rank alike, unless each expects what it is sent; CollectiveError if a rank says
        nothing within the group's timeout.
        """
        num_ranks = self._num_ranks
        rows = self._rows.gather(torch.tensor([*sent, *expected]))
        sends, expects = [row[:num_ranks] for row in rows], [row[num_ranks:] for row in rows]
        wrong = [
            f"rank {src} sends {sends[src][dst]} elements to rank {dst}, which expects {expects[dst][src]}"
            for src in range(num_ranks)
            for dst in range(num_ranks)
            if sends[src][dst] != expects[dst][src]
        ]
        if wrong:
            more = [f"and {len(wrong) - MAX_NAMED} more such pairs"] if len(wrong) > MAX_NAMED else []
            raise MismatchError(
                f"the ranks do not agree on the blocks of all_to_all: {'; '.join([*wrong[:MAX_NAMED], *more])}; the "
                "sizes of a rank's output must be those of the others' inputs"
            )
        return tuple(length for row in sends for length in row)
