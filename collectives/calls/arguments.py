"""From the arguments of a function to a `CollectiveCall`: checks that tensors, lists, splits and root fit together."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from msgspec import Struct

from collectives import runtime
from collectives.calls import table
from collectives.calls.call import CollectiveCall, Operands
from collectives.calls.reduction import ReductionDtypes, reduction_of
from collectives.calls.table import FUNCTIONS, SCATTERING, Function
from collectives.runtime import Work
from ringsim.text_table import MAX_CLAUSES, first_named

Op = dist.ReduceOp.RedOpType | dist.ReduceOp
SUM = dist.ReduceOp.SUM
Group = dist.ProcessGroup | None
Wire = torch.dtype | None
Given = torch.Tensor | list[torch.Tensor] | None


class CallOptions(Struct, frozen=True):
    """A call's arguments other than tensors. root: as a rank of the job, and of the group."""

    group: Group
    async_op: bool
    algorithm: str
    op: Op | None = None
    wire: Wire = None
    root: tuple[int | None, int | None] = (0, None)


def start(name: str, output: Given, given: Given, options: CallOptions) -> Work | None:
    """Check the arguments of the function `name`, and start its call. output, given: as in `FUNCTIONS`."""
    call, operands = prepare(name, output, given, options)
    function = FUNCTIONS[name]
    if function.is_in_place:
        return call.start(name, operands, options.async_op)
    named = (function.output, output), (function.input, given)
    operands.splits = _check_shares(*(named if call.collective in SCATTERING else named[::-1]), call)
    return call.start(call.collective.value, operands, options.async_op)


def prepare(name: str, output: Given, given: Given, options: CallOptions) -> tuple[CollectiveCall, Operands]:
    """Return the call of the function `name`, and its tensors, each checked alone."""
    function = FUNCTIONS[name]
    collective = function.collective
    outputs = _checked(function.output, output, table.check_writable)
    inputs = outputs if function.is_in_place else _checked(function.input, given, table.check_tensor)
    sent = outputs if collective in SCATTERING else inputs
    dtype = sent[0].dtype if sent else torch.get_default_dtype()  # an empty list is refused later
    reduction, dtypes = None, ReductionDtypes(dtype, dtype)
    if collective.reduces:
        reduction, dtypes = reduction_of(options.op, dtype, options.wire)
    root = _root(runtime.resolve(options.group), function, *options.root) if function.root else 0
    call = CollectiveCall(collective, options.algorithm, options.group, root)
    return call, Operands(inputs, outputs, dtypes, reduction)


def _checked(name: str, given: Given, check: Callable[[str, torch.Tensor], None]) -> tuple[torch.Tensor, ...]:
    if name.endswith(("_list", "tensors")):
        if given is None and name in ("gather_list", "scatter_list"):
            return ()
        if not isinstance(given, list | tuple):
            raise ValueError(f"{name} is a {type(given).__name__}: must be a list of tensors")
        return tuple(tensor for index, one in enumerate(given) for tensor in _checked(f"{name}[{index}]", one, check))
    if not isinstance(given, torch.Tensor):
        raise ValueError(f"{name} is a {type(given).__name__}: must be one tensor")
    check(name, given)
    return (given,)


def _check_shares(share: tuple[str, Any], whole: tuple[str, Any], call: CollectiveCall) -> tuple[int, ...] | None:
    """Return the elements of each rank's share; None if equal. Raises ValueError if the tensors do not fit.

    share, whole: name and value of an argument; `whole` may have a list, in a rooted collective only on the root.
    """
    name, shares = whole
    if isinstance(shares, torch.Tensor):
        table.check_share(*share, *whole, call.num_ranks)
    elif not call.collective.has_root:
        return table.check_shares(*share, name, shares, call.num_ranks, call.rank)
    elif call.rank == call.root:
        table.check_shares(*share, name, shares or [], call.num_ranks)
    elif shares:
        only = f"only rank {call.root} of the group has one"
        raise ValueError(f"{name} has {len(shares)} tensors on rank {call.rank}: {only}")
    return None


def _root(group: dist.ProcessGroup, function: Function, rank: int | None, group_rank: int | None) -> int:
    """Return the root of a call as a rank of `group`; 0 if neither is given with a list.

    rank: of the whole job. Raises ValueError unless exactly one is given, and it is in the group.
    """
    name = function.root
    if rank is None and group_rank is None and not function.is_in_place:
        rank = 0
    if (rank is None) == (group_rank is None):
        raise ValueError(f"{name} {rank}, group_{name} {group_rank}: give exactly one of the two")
    try:
        root = group_rank if rank is None else dist.get_group_rank(group, rank)
    except ValueError:
        members = dist.get_process_group_ranks(group)
        raise ValueError(f"{name} {rank}: must be a rank of the group, one of {members}") from None
    if root is None or root not in range(group.size()):
        raise ValueError(f"group_{name} {root}: must be in 0..{group.size() - 1}")
    return root


def start_uneven(
    call: CollectiveCall, operands: Operands, sent: Sequence[int], expected: Sequence[int], async_op: bool
) -> Work | None:
    """Start an all_to_all of blocks of any lengths, which the ranks first exchange."""
    fingerprint = call.fingerprint(
        "all_to_all", None, operands.inputs[0].dtype, " in blocks whose lengths ranks tell each other"
    )

    def run() -> None:
        if call.is_recorded:  # as if all ranks sent what this one sends
            operands.splits = tuple(sent) * call.num_ranks
        else:
            operands.splits = runtime.state_of(call.group).part(BlockLengths).agree(sent, expected)
        call.run_out_of_place(operands)

    return call.perform(run, fingerprint, list(operands.outputs), operands.inputs, async_op)


class BlockLengths:
    """The exchange of block lengths between the ranks of a group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._num_ranks = group.size()
        self._rows = runtime.RowAllGather(group, runtime.Tag.BLOCK_LENGTHS, 2 * self._num_ranks, torch.int64)

    def agree(self, sent: Sequence[int], expected: Sequence[int]) -> tuple[int, ...]:
        """Return the number of elements from every rank to every rank, sender by sender; collective.

        sent, expected: this rank's elements to and from each rank. Raises MismatchError, on every rank, if they
        disagree; CollectiveError if a rank exceeds the group's timeout.
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
            pairs = "; ".join(first_named(wrong, "more such pairs", MAX_CLAUSES))
            raise runtime.MismatchError(
                f"the ranks do not agree on the blocks of all_to_all: {pairs}; the sizes of a rank's output must be "
                "those of the others' inputs"
            )
        return tuple(length for row in sends for length in row)
