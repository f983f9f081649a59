"""The torch.distributed backend "ring": any program on our schedules, by `dist.init_process_group("ring")`.

    import collectives
    dist.init_process_group("ring", pg_options=collectives.BackendOptions(all_reduce="halving_doubling"))

What is not written here goes to Gloo as it would without us: sending and receiving, also in batches, sparse tensors, a
monitored barrier. CUDA tensors go through memory of the host; what goes to Gloo takes them only as far
as Gloo does.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from inspect import Parameter, signature
from types import FunctionType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore, Store

from collectives.calls import exchange, functions, rooted
from collectives.integrations.dynamo import untraced
from collectives.runtime import Work, batch_policy_for_new_groups, call_timeout, close_queue, resolve, use_transport

T = TypeVar("T")
Tensors = list[Tensor]
NAME = "ring"
DEVICES = ["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Which algorithms a group uses; `pg_options` of init_process_group and new_group, the same on every rank.

    all_reduce, reduce_scatter, all_gather, broadcast, reduce, gather, scatter, all_to_all: the algorithm of each
    collective.
    wire: for the collectives that reduce, as in `all_reduce`; for tensors of floating-point numbers only.
    transport: as in `use_transport`; as the environment says if None.

        >>> options = collectives.BackendOptions(all_reduce="halving_doubling", wire=torch.bfloat16)
        >>> group = dist.new_group(backend="ring", pg_options=options)
        >>> tensor = torch.ones(3)
        >>> dist.all_reduce(tensor, group=group)
        >>> tensor
        tensor([2., 2., 2.])
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


CallContext = Callable[[Any, Any], AbstractContextManager[None]]  # of a group, and of the options of a call
# What torch's methods take in place of options, in this order; each where its options have it.
_OPTION_OF = {"root": "rootRank", "op": "reduceOp", "timeout": "timeout"}


def in_all_forms(method: Callable[..., dist.Work], context: CallContext) -> Callable[..., dist.Work]:
    """Let a collective be called in every form that the method of torch's ProcessGroup has, and run in `context`.

    The forms of `reduce`, for example, are reduce([tensor]), reduce([tensor], opts), reduce(tensor, root) and
    reduce(tensor, root, op, timeout), each also by keyword. `method` gets the arguments of the form with options.
    """
    parameters = signature(method).parameters

    @wraps(method)
    def call(self: dist.ProcessGroup, *arguments: Any, **keywords: Any) -> dist.Work:
        if keywords or not arguments or not hasattr(arguments[-1], "asyncOp"):
            arguments = _with_options(parameters, arguments, keywords)
        with context(self, arguments[-1]):
            return method(self, *arguments)

    return call


def _with_options(parameters: Mapping[str, Parameter], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Return the tensors and options of a method with these parameters; raise TypeError if no form of torch's fits."""
    num_tensors = len(parameters) - 2  # beside self and opts
    given = keywords.pop("opts", None)
    options = given or parameters["opts"].default()
    settable = [name for name in _OPTION_OF if hasattr(options, _OPTION_OF[name])]
    values = dict(zip(settable, arguments[num_tensors:], strict=False)) | keywords
    num_set = sum(name in values for name in settable)
    # What is not set are tensors, by keywords that differ: output, outputTensor, output_lists, ...
    names = sorted(values.keys() - {*settable}, key=lambda name: ("split" in name, not name.startswith("out")))
    tensors = [*arguments[:num_tensors], *(values[name] for name in names)]
    is_twice = (given and num_set) or len(tensors) + num_set != len(arguments) + len(keywords)
    if is_twice or len(tensors) != num_tensors or not all(name.startswith(("in", "out", "tensor")) for name in names):
        forms = ", ".join([*parameters][1:])
        raise TypeError(f"({forms}): no form of this method of torch's ProcessGroup takes the arguments given")
    for name in settable:
        if values.get(name) is not None:
            setattr(options, _OPTION_OF[name], values[name])
    if not {"tensors", "outputs"}.isdisjoint(parameters) and any(isinstance(tensor, Tensor) for tensor in tensors):
        tensors = [[tensor] for tensor in tensors]
    return [*tensors, options]


def collectives_in_all_forms(context: CallContext) -> Callable[[type[T]], type[T]]:
    """Let the collectives of a class of process groups take their arguments as `in_all_forms` says."""

    def changed(group: type[T]) -> type[T]:
        for name, method in list(vars(group).items()):
            # By this name, and not by its place, since other methods end in other parameters. Its default is the class
            # of the options, of which a call without any gets new ones.
            if isinstance(method, FunctionType) and "opts" in signature(method).parameters:
                setattr(group, name, in_all_forms(method, context))
        return group

    return changed


@untraced
@collectives_in_all_forms(lambda _, options: call_timeout(options.timeout))
class RingGroup(dist.ProcessGroup):
    """A process group whose collectives are ours, and whose sends and receives, and all else, are Gloo's.

    The methods and their arguments are those that torch.distributed calls; roots are ranks of the group.
    """

    def __init__(
        self, store: Store, rank: int, size: int, timeout: timedelta, options: BackendOptions | None = None
    ) -> None:
        # With the store, as the stubs have it, torch cannot make a group that Python overrides.
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store = store
        self.is_shut_down = False
        self.options = options or BackendOptions()
        with batch_policy_for_new_groups():
            gloo = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout=timeout)
        gloo._set_sequence_number_for_group()
        # What a Python group does not override torch looks up here; and so do our own sends and receives.
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

    def _run(self, collective: str, function: Any, result: Tensors, how: Any, *given: Any, **options: Any) -> Work:
        """Call `function` of ours, which does `collective`, as the options of this group and of the call say.

        result: the tensors that it writes. how: torch's options of the call.
        given: the tensors, or lists of tensors, that `function` takes, all of one dtype and on one device.
        options: further arguments of `function`.
        """
        tensor = next((item for item in given if isinstance(item, Tensor)), None)
        tensor = given[0][0] if tensor is None else tensor  # a list that is empty is for `function` to refuse
        if (op := getattr(how, "reduceOp", None)) is not None:
            options |= {"op": op, "wire": self._wire_of(tensor)}
        # Where it is a stream that waits, the call does not, since the Work must tell the stream for what.
        options = {"async_op": bool(how.asyncOp) or tensor.is_cuda, **options}
        work: Work | None = function(*given, group=self, algorithm=getattr(self.options, collective), **options)
        return work or Work.over(result)  # C++ needs a Work even where the collective is over

    def _wire_of(self, tensor: Tensor) -> torch.dtype | None:
        return self.options.wire if tensor.dtype.is_floating_point else None

    def allreduce(self, tensors: Tensors, opts: Any = dist.AllreduceOptions) -> dist.Work:  # type: ignore[override]
        if tensors[0].layout != torch.strided:
            return super().allreduce(tensors, opts)
        if len(tensors) > 1:
            return self._run("all_reduce", functions.all_reduce_coalesced, tensors, opts, tensors)
        waits = {"async_op": False} if opts.asyncOp and is_last_bucket(tensors[0]) else {}
        return self._run("all_reduce", functions.all_reduce, tensors, opts, tensors[0], **waits)

    def reduce(self, tensors: Tensors, opts: Any = dist.ReduceOptions) -> Work:  # type: ignore[override]
        return self._run("reduce", rooted.reduce, tensors, opts, tensors[0], group_dst=opts.rootRank)

    def broadcast(self, tensors: Tensors, opts: Any = dist.BroadcastOptions) -> Work:  # type: ignore[override]
        return self._run("broadcast", rooted.broadcast, tensors, opts, tensors[0], group_src=opts.rootRank)

    def barrier(self, opts: Any = dist.BarrierOptions) -> Work:
        return rooted.barrier(self, opts.asyncOp) or Work.over([])

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = AllgatherOptions) -> Work:  # type: ignore[override]
        return self._run("all_gather", functions.all_gather, outputs[0], opts, outputs[0], inputs[0])

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = AllgatherOptions) -> Work:
        return self._run("all_gather", functions.all_gather_into_tensor, [output], opts, output, given)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = AllgatherOptions) -> Work:  # noqa: ARG002
        algorithm = self.options.all_gather
        return _last(functions.all_gather_into_tensor_coalesced(outputs, inputs, self, algorithm=algorithm))

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = dist.ReduceScatterOptions) -> Work:  # type: ignore[override]
        return self._run("reduce_scatter", functions.reduce_scatter, outputs, opts, outputs[0], inputs[0])

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = dist.ReduceScatterOptions) -> Work:
        return self._run("reduce_scatter", functions.reduce_scatter_tensor, [output], opts, output, given)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = dist.ReduceScatterOptions
    ) -> Work:
        how: dict[str, Any] = {"algorithm": self.options.reduce_scatter, "wire": self._wire_of(outputs[0])}
        return _last(functions.reduce_scatter_tensor_coalesced(outputs, inputs, opts.reduceOp, self, **how))

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = dist.GatherOptions) -> Work:  # type: ignore[override]
        gathered = outputs[0] if outputs else []
        return self._run("gather", rooted.gather, gathered, opts, inputs[0], gathered, group_dst=opts.rootRank)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = dist.ScatterOptions) -> Work:  # type: ignore[override]
        given = inputs[0] if inputs else []
        return self._run("scatter", rooted.scatter, outputs, opts, outputs[0], given, group_src=opts.rootRank)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = dist.AllToAllOptions) -> Work:
        return self._run("all_to_all", exchange.all_to_all, outputs, opts, outputs, inputs)

    def all_to_all_single(
        self, output: Tensor, given: Tensor, expected: list[int], sent: list[int], opts: Any = dist.AllToAllOptions
    ) -> Work:
        tensors_and_sizes = output, given, expected or None, sent or None
        return self._run("all_to_all", exchange.all_to_all_single, [output], opts, *tensors_and_sizes)

    allreduce_coalesced = allreduce
    # What torch called them until 2.12, and still does here and there.
    alltoall_base = all_to_all_single  # type: ignore[assignment]
    _allgather_base = all_gather_single  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]


def _last(works: list[Work | None]) -> Work:
    # A group's collectives are done in order, and after one has failed so do the others.
    return (works[-1] if works else None) or Work.over([])


def create(options: Any, group_options: BackendOptions | None) -> RingGroup:
    """Return what torch calls for `init_process_group("ring")` and `new_group(backend="ring")`.

    options: torch's own: store, rank, size and timeout. Raises ValueError unless `group_options`, which is
    what was given as `pg_options`, is None or a BackendOptions.
    """
    if not isinstance(group_options, BackendOptions | None):
        raise ValueError(f"pg_options {group_options!r}: must be a collectives.BackendOptions, or nothing")
    return RingGroup(options.store, options.group_rank, options.group_size, options.timeout, group_options)


def register() -> None:
    """Make the name "ring" known to torch.distributed; `import collectives` does.

    torch's function `monitored_barrier` asks for the name "gloo" before it calls the group, whose Gloo has the barrier.
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
    """Let `is_last_bucket` know a tensor that has all of its memory to itself.

    The last bucket of DistributedDataParallel is a call that its caller waits for at once, though it asks not to wait.
    A communication hook is told which bucket is the last, a process group is not; so it is marked where it is
    allocated.
    """
    bucket.untyped_storage().is_last_bucket = True  # type: ignore[attr-defined]


def is_last_bucket(tensor: torch.Tensor) -> bool:
    """Whether this is called in a backward pass, in which a bucket that was marked is to be reduced."""
    is_in_backward = torch._C._current_graph_task_id() >= 0
    return is_in_backward and getattr(tensor.untyped_storage(), "is_last_bucket", False)
