"""The torch.distributed backend "ring": any program on our schedules, by `dist.init_process_group("ring")`.

    import collectives
    dist.init_process_group("ring", pg_options=collectives.BackendOptions(all_reduce="halving_doubling"))

Everything else goes to Gloo unchanged: sends and receives, also in batches, sparse tensors, a monitored barrier. CUDA
tensors of collectives go through host memory; others work as far as Gloo supports them.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from types import FunctionType
from typing import Any, ClassVar, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions
from torch._C._dynamo import eval_frame
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore, Store

from collectives.calls import FUNCTIONS, Function, functions, listed_sizes
from collectives.runtime import CallTimeout, Work, batch_policy_for_new_groups, close_queue, resolve, use_transport
from ringsim.schedule import Collective

T = TypeVar("T", bound=Any)
Tensors = list[Tensor]
NAME = "ring"
DEVICES = ["cpu", "cuda"]
HAS_STRATEGIES = hasattr(eval_frame, "_FrameExecStrategy")  # from torch 2.7 on


def untraced(function: T) -> T:
    """Make Dynamo run a function, or each method of a class, and everything it calls, as plain Python.

    Dynamo traces every Python frame of a compiled program, also those called from C++, but refuses a process group's
    attributes. `torch.compiler.disable` wraps each call, and imports Dynamo, which takes seconds.
    """
    for method in vars(function).values() if isinstance(function, type) else [function]:
        if isinstance(method, FunctionType):
            method._torchdynamo_disable = True  # type: ignore[attr-defined]  # for code that is traced and calls it
            if HAS_STRATEGIES:
                skip = eval_frame._FrameAction.SKIP
                eval_frame.set_code_exec_strategy(method.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return function


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Which algorithms a group uses; `pg_options` of init_process_group and new_group, the same on every rank.

    wire: for the collectives that reduce, as in `all_reduce`; for floating-point tensors only.
    transport: as in `use_transport`; None for the environment's.

        >>> options = collectives.BackendOptions(all_reduce="halving_doubling", wire=torch.bfloat16)
        >>> group = dist.new_group(backend="ring", pg_options=options)
        >>> dist.all_reduce(torch.ones(3), group=group)
    """

    all_reduce: str = "ring"
    reduce_scatter: str = "ring"
    all_gather: str = "ring"
    broadcast: str = "binomial_tree"
    reduce: str = "binomial_tree"
    gather: str = "direct"
    scatter: str = "direct"
    all_to_all: str = "direct"
    wire: torch.dtype | None = None
    transport: str | None = None
    _timeout: ClassVar[None] = None  # a DeviceMesh asks all options for it; None for the default


CallContext = Callable[[Any, Any], AbstractContextManager[None]]  # of a group, and of the options of a call
# Arguments of torch's methods in place of options, in this order, if the options have the field.
_OPTION_OF = {"root": "rootRank", "op": "reduceOp", "timeout": "timeout"}
_OPTIONS = {
    Collective.ALL_REDUCE: dist.AllreduceOptions,
    Collective.REDUCE: dist.ReduceOptions,
    Collective.BROADCAST: dist.BroadcastOptions,
    Collective.ALL_GATHER: AllgatherOptions,
    Collective.REDUCE_SCATTER: dist.ReduceScatterOptions,
    Collective.GATHER: dist.GatherOptions,
    Collective.SCATTER: dist.ScatterOptions,
    Collective.ALL_TO_ALL: dist.AllToAllOptions,
}


def carries_out(context: CallContext) -> Callable[[type[T]], type[T]]:
    """Give a class of process groups torch's methods for the functions of the table.

    Within `context` they call the class's `carry_out` with the function, the options, and the operands in the
    function's form; for a function in place, a list of tensors. They accept every form of torch's ProcessGroup:
    reduce([tensor]), reduce([tensor], opts), reduce(tensor, root) and reduce(tensor, root, op, timeout), also by
    keyword.
    """

    def changed(group: type[T]) -> type[T]:
        for function in FUNCTIONS.values():
            for name in function.methods.split():
                setattr(group, name, _method(function, context))
        return group

    return changed


def _method(function: Function, context: CallContext) -> Callable[..., dist.Work]:
    options = dist.BarrierOptions if function is FUNCTIONS["barrier"] else _OPTIONS[function.collective]
    num_lists = (function.output + function.input).count("_list")
    parameters: tuple[str, ...] = "outputs", "inputs"
    if function.is_in_place:
        parameters = ("tensors",) if function.output else ()
    elif not num_lists and not function.is_coalesced:
        parameters = ("output", "given", "expected", "sent")[: 4 if function.collective is Collective.ALL_TO_ALL else 2]

    def call(self: Any, *arguments: Any, **keywords: Any) -> dist.Work:
        if keywords or not arguments or not hasattr(arguments[-1], "asyncOp"):
            arguments = _with_options(parameters, options, arguments, keywords)
        *operands, opts = arguments
        if num_lists == 1:  # in the list is what torch's method takes for one of several devices
            operands = [operand[0] if operand else [] for operand in operands]
        operands[2:] = map(listed_sizes, operands[2:])
        with context(self, opts):
            work: dist.Work = self.carry_out(function, opts, *operands)
            return work

    return call


def _with_options(parameters: Sequence[str], kind: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Return the tensors and options of a method with these `parameters` before its options.

    Raises TypeError if no form of torch's fits.
    """
    num_tensors = len(parameters)
    given = keywords.pop("opts", None)
    options = given or kind()
    settable = [name for name in _OPTION_OF if hasattr(options, _OPTION_OF[name])]
    values = dict(zip(settable, arguments[num_tensors:], strict=False)) | keywords
    num_set = sum(name in values for name in settable)
    # The other keywords are tensors, under various names: output, outputTensor, output_lists, ...
    names = sorted(values.keys() - {*settable}, key=lambda name: ("split" in name, not name.startswith("out")))
    tensors = [*arguments[:num_tensors], *(values[name] for name in names)]
    is_twice = (given and num_set) or len(tensors) + num_set != len(arguments) + len(keywords)
    if is_twice or len(tensors) != num_tensors or not all(name.startswith(("in", "out", "tensor")) for name in names):
        forms = ", ".join([*parameters, "opts"])
        raise TypeError(f"({forms}): no form of this method of torch's ProcessGroup takes the arguments given")
    for name in settable:
        if values.get(name) is not None:
            setattr(options, _OPTION_OF[name], values[name])
    if not {"tensors", "outputs"}.isdisjoint(parameters) and any(isinstance(tensor, Tensor) for tensor in tensors):
        tensors = [[tensor] for tensor in tensors]
    return [*tensors, options]


def allreduce(group: dist.ProcessGroup, tensors: Tensors, opts: Any) -> dist.Work:
    """Sum by Gloo. pybind11 recognises by this function's name that the overridden method is meant."""
    return dist.ProcessGroup.allreduce(group, tensors, opts)


@untraced
@carries_out(lambda _, options: CallTimeout(options.timeout))
class RingGroup(dist.ProcessGroup):
    """A process group with our collectives; sends, receives, and everything else are Gloo's.

    Roots are ranks of the group.
    """

    def __init__(
        self, store: Store, rank: int, size: int, timeout: timedelta, options: BackendOptions | None = None
    ) -> None:
        if not isinstance(options, BackendOptions | None):
            raise ValueError(f"pg_options {options!r}: must be a collectives.BackendOptions, or nothing")
        # Without the store, contrary to the stubs: torch cannot make a group with it that Python overrides.
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store = store
        self.is_shut_down = False
        self.options = options or BackendOptions()
        with batch_policy_for_new_groups():
            gloo = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout=timeout)
        gloo._set_sequence_number_for_group()
        # torch looks up here what a Python group does not override; so do our own sends and receives.
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        for device in DEVICES:
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, gloo)
        if self.options.transport is not None:
            use_transport(self.options.transport, self)

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        return NAME

    def get_group_store(self) -> Store:
        return self._store

    def shutdown(self) -> None:
        self.is_shut_down = True
        close_queue(self)
        super().shutdown()

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,  # BackendOptions
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,  # noqa: ARG002  a group of ours has one backend for all devices
    ) -> "RingGroup | None":
        """Return a group of `ranks`, by default with this one's options, as torch's method; None on other ranks.

        torch's own needs the group's store in C++, and would end the process.
        """
        ranks = sorted(ranks)
        if self.rank() not in ranks:
            return None
        name = group_name or ":".join([self.group_name, "split", *map(str, ranks)])
        limit = timeout or self._get_backend(torch.device("cpu")).options._timeout
        rank, store = ranks.index(self.rank()), PrefixStore(f"{name}/", self._store)
        group = RingGroup(store, rank, len(ranks), limit, opts or self.options)
        group._set_group_name(name)  # type: ignore[arg-type]  # a NewType of str that older torch has not
        group._set_group_desc(group_desc or f"{self.group_desc}:split")
        return group

    def merge_remote_group(self, *_: object, **__: object) -> NoReturn:
        """Refuse what would end the process, for the same reason."""
        raise RuntimeError(f'the backend "{NAME}" cannot merge groups: make one with new_group instead')

    sum_sparse = allreduce

    def carry_out(
        self, function: Function, opts: Any, output: Any = None, given: Any = None, *sizes: list[int]
    ) -> dist.Work:
        if function is FUNCTIONS["barrier"]:
            return functions.barrier(self, opts.asyncOp) or Work.over([])
        if function.single == "all_reduce" and output[0].layout != torch.strided:
            return self.sum_sparse(output, opts)
        if function.single == "all_reduce" and len(output) > 1:
            return self._run(FUNCTIONS["all_reduce_coalesced"], opts, output, output)
        if function.is_in_place:
            return self._run(FUNCTIONS[function.single], opts, output[0], output[0])
        if not function.is_coalesced:
            return self._run(function, opts, output, given, *sizes)
        if function.name == "all_gather_coalesced":
            output = map(list, zip(*output, strict=True))
        opts.asyncOp, works = True, [Work.over([])]
        for operands in zip(output, given, strict=True):
            works.append(self._run(FUNCTIONS[function.single], opts, *operands))
        return works[-1]  # a group's collectives are done in order, and after one has failed so do the others

    def _run(self, function: Function, opts: Any, output: Any, given: Any, *sizes: list[int]) -> Work:
        tensor = output if isinstance(output, Tensor) else given
        if not isinstance(tensor, Tensor):
            tensor = next(iter(given), torch.empty(0))  # a list that is empty is for the function to refuse
        # On CUDA the stream waits and not the call, since the Work tells the stream the event to wait for.
        async_op = bool(opts.asyncOp) or tensor.is_cuda
        if function.name == "all_reduce" and opts.asyncOp:
            async_op = not is_last_bucket(tensor)
        options = {"group": self, "async_op": async_op, "algorithm": getattr(self.options, function.collective.value)}
        if function.collective.reduces:
            options |= {"op": opts.reduceOp, "wire": self.options.wire if tensor.dtype.is_floating_point else None}
        if function.root:
            options[f"group_{function.root}"] = opts.rootRank
        work: Work | None = getattr(functions, function.name)(*function.arguments(output, given), *sizes, **options)
        return work or Work.over([output] if isinstance(output, Tensor) else output)  # C++ always needs a Work


def create(options: Any, group_options: BackendOptions | None) -> RingGroup:
    """Return the group of `init_process_group("ring")` or `new_group(backend="ring")`.

    options: torch's own. group_options: the `pg_options`; raises ValueError unless they are None or a BackendOptions.
    """
    return RingGroup(options.store, options.group_rank, options.group_size, options.timeout, group_options)


def register() -> None:
    """Register the backend "ring" with torch.distributed; `import collectives` calls this.

    torch's `monitored_barrier` refuses other backends than "gloo"; our groups use their Gloo's.
    """
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=DEVICES)
    in_torch = dist.monitored_barrier

    @wraps(in_torch)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        if distributed_c10d._rank_not_in_group(group) or dist.get_backend(group) != NAME:
            in_torch(group, timeout, wait_all_ranks)
            return
        group = resolve(group)
        if not isinstance(timeout, timedelta):
            limit = group._get_backend(torch.device("cpu")).options._timeout
            timeout = timedelta(seconds=timeout) if timeout else limit
        group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    for module in (dist, distributed_c10d):
        vars(module)[in_torch.__name__] = monitored_barrier


def mark_last_bucket(bucket: torch.Tensor) -> None:
    """Mark the bucket for `is_last_bucket`; it must not share its storage.

    DistributedDataParallel waits at once for the last bucket, though it asks not to wait. A process group is not told
    which bucket is the last, so it is marked where it is allocated.
    """
    bucket.untyped_storage().is_last_bucket = True  # type: ignore[attr-defined]


def is_last_bucket(tensor: torch.Tensor) -> bool:
    """Whether this is called in a backward pass, for a marked bucket."""
    is_in_backward = torch._C._current_graph_task_id() >= 0
    return is_in_backward and getattr(tensor.untyped_storage(), "is_last_bucket", False)
