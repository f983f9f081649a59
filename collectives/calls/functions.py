"""The collectives, with torch.distributed's own signatures.

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

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from collectives.calls.call import CollectiveCall, GroupRuntime, Operands
from collectives.calls.reduction import ReductionDtypes, reduction_of
from collectives.calls.table import (
    FUNCTIONS,
    SCATTERING,
    Function,
    block_lengths,
    check_alike,
    check_as_many,
    check_number,
    check_share,
    check_shares,
    check_tensor,
    check_writable,
)
from collectives.runtime import (
    CPU,
    MismatchError,
    RowAllGather,
    Sharing,
    Tag,
    Work,
    has_backend,
    home_of,
    record_as_lent,
    recorded_group,
    resolve,
    state_of,
)
from collectives.shared_memory import LocalRanks
from ringsim.schedule import Collective

Op = dist.ReduceOp.RedOpType | dist.ReduceOp
Group = dist.ProcessGroup | None
Given = torch.Tensor | list[torch.Tensor] | None


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
    return _start("all_reduce", tensor, tensor, group, async_op, algorithm, op=op, wire=wire)


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
    return _start("reduce_scatter_tensor", output, input, group, async_op, algorithm, op=op, wire=wire)


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
    return _start("reduce_scatter", output, input_list, group, async_op, algorithm, op=op, wire=wire)


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
    return _start("all_gather_into_tensor", output_tensor, input_tensor, group, async_op, algorithm)


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
    return _start("all_gather", tensor_list, tensor, group, async_op, algorithm)


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
    devices = {str(tensor.device) for tensor in tensors}
    if len(devices) != 1:
        raise ValueError(f"tensors on {sorted(devices)}: must all be on the same device")
    return _start("all_reduce_coalesced", tensors, tensors, group, async_op, algorithm, op=op, wire=wire)


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
    return _start("broadcast", tensor, tensor, group, async_op, algorithm, root=(src, group_src))


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
    return _start("reduce", tensor, tensor, group, async_op, algorithm, op=op, wire=wire, root=(dst, group_dst))


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
    return _start("gather", gather_list, tensor, group, async_op, algorithm, root=(dst, group_dst))


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
    return _start("scatter", tensor, scatter_list, group, async_op, algorithm, root=(src, group_src))


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
    check_writable("output", output)
    check_tensor("input", input)
    check_alike("output", output, "input", input)
    call = CollectiveCall(Collective.ALL_TO_ALL, algorithm, group)
    operands = Operands((input,), (output,), ReductionDtypes(input.dtype, input.dtype))
    sent = block_lengths("input", input, input_split_sizes, call.num_ranks)
    expected = block_lengths("output", output, output_split_sizes, call.num_ranks)
    if output_split_sizes or input_split_sizes:
        return _start_uneven(call, operands, sent, expected, async_op)
    check_as_many("output", output, "input", input)
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
    outputs = checked("output_tensor_list", output_tensor_list, check_writable)
    inputs = checked("input_tensor_list", input_tensor_list, check_tensor)
    named = ("output_tensor_list", outputs), ("input_tensor_list", inputs)
    for name, tensors in named:
        check_number(name, tensors, call.num_ranks)
    for name, tensors in named:
        for index, tensor in enumerate(tensors):
            check_alike(f"{name}[{index}]", tensor, "input_tensor_list[0]", inputs[0])
    operands = Operands(inputs, outputs, ReductionDtypes(inputs[0].dtype, inputs[0].dtype))
    expected, sent = ([tensor.numel() for tensor in tensors] for tensors in (outputs, inputs))
    return _start_uneven(call, operands, sent, expected, async_op)


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


def empty(
    *size: int | Sequence[int], dtype: torch.dtype | None = None, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Return an uninitialised tensor on the CPU which collectives of `group` leave where it is.

    The ranks of a host read and add it, and what is made of it, in each other's memory; of a tensor that torch has made
    they first copy what they send to memory that they share. Results are the same bits. A collective on such a tensor,
    or on a part of one, returns when all ranks of the host have read there.

    The memory is given back when the tensor and all views of it have gone. Its storage cannot be resized, and a process
    that is forked from the rank also shares it. It is a tensor like any other if the group shares no memory
    (`use_transport`), and if the address space or the size of files is limited (`ulimit -v`, `ulimit -f`).

    size, dtype: as in `torch.empty`.
    group: the default group if None. The first time all its ranks must call this, or another collective; after that
    each may do by itself.

    Raises ValueError if there is no such group, RuntimeError if there is no memory.

        >>> tensor = collectives.empty(2, 3).fill_(rank)
        >>> collectives.all_reduce(tensor)
        >>> tensor[0]
        tensor([1., 1., 1.])
    """
    group, dtype = resolve(group), dtype or torch.get_default_dtype()
    # torch knows what can be a size; its stubs do not know that a sequence can.
    like = torch.empty(*size, dtype=dtype, device="meta")  # type: ignore[arg-type]
    if recorded_group(group) is not None:
        return record_as_lent(torch.empty(like.shape, dtype=dtype, device=CPU))
    local = _local_ranks(group) if like.nbytes and has_backend(group, CPU) else None
    try:
        memory = local.heap.new(like.nbytes) if local is not None else None
    except OSError as error:
        raise RuntimeError(f"a tensor of {like.nbytes} bytes that ranks share: {error}") from error
    if memory is None:
        return torch.empty(like.shape, dtype=dtype, device=CPU)
    return memory.view(dtype).view(like.shape)


def _local_ranks(group: dist.ProcessGroup) -> LocalRanks | None:
    """Return the ranks that share memory with this one, which all find out in their turn."""
    sharing = state_of(group).part(Sharing)
    if not sharing.is_known:
        state_of(group).part(GroupRuntime).queue.run(lambda: sharing.of(group))
    return sharing.of(group).local


def _start(
    name: str,
    output: Given,
    given: Given,
    group: Group,
    async_op: bool,
    algorithm: str,
    *,
    op: Op | None = None,
    wire: torch.dtype | None = None,
    root: tuple[int | None, int | None] = (0, None),
) -> Work | None:
    """Check what the function of that name in the table writes and reads, and do it.

    root: as a rank of the job, and as one of the group.
    """
    function = FUNCTIONS[name]
    collective = function.collective
    outputs = checked(function.output, output, check_writable)
    inputs = outputs if function.is_in_place else checked(function.input, given, check_tensor)
    scatters = collective in SCATTERING
    sent = outputs if scatters else inputs
    dtype = sent[0].dtype if sent else torch.get_default_dtype()  # an empty list is refused below
    reduction, dtypes = reduction_of(op, dtype, wire) if collective.reduces else (None, ReductionDtypes(dtype, dtype))
    call = CollectiveCall(collective, algorithm, group, _root(resolve(group), function, *root) if function.root else 0)
    splits = None
    if not function.is_in_place:
        operands = (function.output, output), (function.input, given)
        splits = _check_shares(*(operands if scatters else operands[::-1]), call)
    name = name if function.is_in_place else collective.value
    return call.start(name, Operands(inputs, outputs, dtypes, reduction, splits), async_op)


def checked(name: str, given: Given, check: Callable[[str, torch.Tensor], None]) -> tuple[torch.Tensor, ...]:
    """Return the tensors of an argument, each of them checked; none for None in place of the list of a root.

    Raises ValueError for a list in place of a tensor, and the other way round.
    """
    if name.endswith(("_list", "tensors")):
        if given is None and name in ("gather_list", "scatter_list"):
            return ()
        if not isinstance(given, list | tuple):
            raise ValueError(f"{name} is a {type(given).__name__}: must be a list of tensors")
        return tuple(tensor for index, one in enumerate(given) for tensor in checked(f"{name}[{index}]", one, check))
    if not isinstance(given, torch.Tensor):
        raise ValueError(f"{name} is a {type(given).__name__}: must be one tensor")
    check(name, given)
    return (given,)


def _check_shares(share: tuple[str, Any], whole: tuple[str, Any], call: CollectiveCall) -> tuple[int, ...] | None:
    """Return the elements of each rank's share, if they are not equal; raise ValueError for what does not fit.

    share: an argument and its tensor. whole: likewise, of all ranks; or a list, which in a rooted one the root has.
    """
    name, shares = whole
    if isinstance(shares, torch.Tensor):
        check_share(*share, *whole, call.num_ranks)
    elif not call.collective.has_root:
        return check_shares(*share, name, shares, call.num_ranks, call.rank)
    elif call.rank == call.root:
        check_shares(*share, name, shares or [], call.num_ranks)
    elif shares:
        only = f"only rank {call.root} of the group has one"
        raise ValueError(f"{name} has {len(shares)} tensors on rank {call.rank}: {only}")
    return None


def _root(group: dist.ProcessGroup, function: Function, rank: int | None, group_rank: int | None) -> int:
    """Return the root of a call as a rank of `group`.

    rank: of the whole job; 0 if neither is given to a function of lists. Raises ValueError unless exactly one is given,
    and for a rank that is not in the group.
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


MAX_NAMED = 4  # pairs of ranks that disagree, in a message


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
