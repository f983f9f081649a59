"""`CollectiveCall`: the common part of all calls: operands, executor, fingerprint, and the place in the queue."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from msgspec import Struct

from collectives import runtime
from collectives.calls.algorithm_choice import Chooser, named_with_digest, require_network
from collectives.calls.reduction import Reduction, ReductionDtypes
from collectives.calls.rehearsal import Rehearsal, recorded_group
from collectives.calls.table import SCATTERING, own_share
from ringsim.registry import build_proved, size_variant
from ringsim.schedule import Collective

AUTO = "auto"


class Operands(Struct):
    """The tensors of a collective on one rank: parts of one long tensor, the *whole*, on which a schedule runs.

    inputs: make up the whole, in order; in an all_gather only this rank's share. A gather, scatter or all_to_all has no
    whole, only this rank's inputs.
    outputs: likewise; in a reduce_scatter only this rank's share. All tensors are on one device.
    reduction: None if nothing is reduced. splits: as in `Executor.run`.
    """

    inputs: tuple[torch.Tensor, ...]  # no lists, which a program may change before it is the call's turn
    outputs: tuple[torch.Tensor, ...]
    dtypes: ReductionDtypes
    reduction: Reduction | None = None
    splits: tuple[int, ...] | None = None


class GroupRuntime:
    """The state of a group that its calls need.

    executors: by algorithm, root and variant for a size. compared_names: of algorithms, as in fingerprints.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        state = runtime.state_of(group)
        self.queue = state.part(runtime.CollectiveQueue)
        state.part(runtime.FailureRecords)  # now, since ranks count the times that they have come to a group's store
        self.transports = state.part(runtime.Transports)
        self.fingerprints = state.part(runtime.FingerprintCheck)
        self.chooser = state.part(Chooser)
        self.executors: dict[tuple[Collective, str, int, int], runtime.Executor] = {}
        self.compared_names: dict[tuple[Collective, str], str] = {}


class CollectiveCall:
    """One collective on one group.

    is_recorded: whether the group only records its calls.
    transport: of its tensors, set by `perform`. stamp: set at its turn.
    """

    transport: runtime.Transport
    stamp: runtime.CallStamp = runtime.UNSTAMPED

    def __init__(self, collective: Collective, algorithm: str, group: dist.ProcessGroup | None, root: int = 0) -> None:
        self.group = runtime.resolve(group)
        self._runtime = runtime.state_of(self.group).part(GroupRuntime)
        self.num_ranks, self.rank = self.group.size(), self.group.rank()
        self.collective, self._algorithm, self.root = collective, algorithm, root
        recorded = recorded_group(self.group)
        self._rehearsal = None if recorded is None else Rehearsal(recorded, self.group, collective)
        self.is_recorded = recorded is not None
        # At the call, so that the caller gets the error of an impossible algorithm.
        if recorded is None and algorithm == AUTO:
            require_network(self.group)
        elif recorded is None:
            self._executor(algorithm, 0)

    def start(self, name: str, operands: Operands, async_op: bool) -> runtime.Work | None:
        tensor = (operands.outputs if self.collective in SCATTERING else operands.inputs)[0]
        num_elements = tensor.numel() if operands.splits is None else sum(operands.splits)
        fingerprint = self.fingerprint(name, num_elements, tensor.dtype, *self._details(operands))
        result, run = list(operands.outputs), self._run if self.collective.is_whole else self.run_out_of_place
        return self.perform(partial(run, operands), fingerprint, result, operands.inputs, async_op)

    def _details(self, operands: Operands) -> tuple[object, ...]:
        amount: tuple[object, ...] = ()
        if operands.splits is not None:
            amount = ", ", operands.splits, " in all"
        elif self.collective.num_shares(self.num_ranks) > 1:
            amount = (" a rank",)
        elif len(operands.inputs) > 1:
            amount = ", ", tuple(tensor.numel() for tensor in operands.inputs), " in all"
        reduction = operands.reduction
        return amount if reduction is None else (*amount, ", ", reduction.name, operands.dtypes)

    def _run(self, operands: Operands) -> None:
        inputs, outputs, dtypes, splits = operands.inputs, operands.outputs, operands.dtypes, operands.splits
        reduction = operands.reduction
        gathers, scatters = self.collective is Collective.ALL_GATHER, self.collective is Collective.REDUCE_SCATTER
        is_wanted = self.collective is not Collective.REDUCE or self.rank == self.root
        in_place = is_wanted and not scatters and len(outputs) == 1 and self._can_use_directly(outputs[0], dtypes.state)
        if in_place:
            whole = outputs[0].detach()
        else:
            length = sum(splits or [tensor.numel() * (self.num_ranks if gathers else 1) for tensor in inputs])
            whole = self._buffer(length, dtypes.state, inputs[0])
        share = self._share(whole, splits) if gathers or scatters else whole
        source = summed_share = None
        if not in_place and self._can_be_read_in_place(operands):
            source = inputs[0]
            if scatters and self._can_be_summed_in(outputs[0], source, operands):
                share = summed_share = outputs[0].detach()  # which saves a copy
        elif not (in_place and inputs[0] is outputs[0]):
            _copy_in(inputs, share if gathers else whole)
        if reduction is not None:
            reduction.begin(whole, self.num_ranks)
        combine = reduction.combine if reduction else torch.Tensor.add_
        tensors = whole, whole.numel(), dtypes.wire, combine, source, summed_share
        self.execute(runtime.RunOperands(*tensors, splits, None, self.stamp), reduction)
        if not is_wanted:
            return
        result = share if scatters else whole
        if reduction is not None:
            reduction.finish(result, self.num_ranks)
        if not in_place and summed_share is None:
            _copy_out(result, outputs)

    def run_out_of_place(self, operands: Operands) -> None:
        """Run the schedule of a collective that leaves no rank all chunks."""
        inputs, outputs, dtypes = operands.inputs, operands.outputs, operands.dtypes
        source_length, length = (sum(tensor.numel() for tensor in tensors) for tensors in (inputs, outputs))
        is_source = (
            len(inputs) == 1 and self._can_use_directly(inputs[0], dtypes.state) and not _share_storage(inputs, outputs)
        )
        is_target = len(outputs) == 1 and self._can_use_directly(outputs[0], dtypes.state)
        lengths = (0 if is_source else source_length), (0 if is_target else length)
        source, target = self._buffer(sum(lengths), dtypes.state, (*inputs, *outputs)[0]).split(lengths)
        if is_source:
            source = inputs[0].detach()
        else:
            _copy_in(inputs, source)
        if is_target:
            target = outputs[0].detach()
        splits, own = operands.splits, length if self.collective is Collective.SCATTER else source_length
        whole, wire = sum(splits or [own * self.num_ranks]), dtypes.wire
        self.execute(runtime.RunOperands(target, whole, wire, source=source, splits=splits, stamp=self.stamp))
        if not is_target:
            _copy_out(target, outputs)

    def _can_use_directly(self, tensor: torch.Tensor, dtype: torch.dtype) -> bool:
        # A tensor that is not contiguous would be sent as if it were.
        return self.transport is not runtime.STAGED and tensor.dtype == dtype and runtime.is_plain(tensor)

    def _can_be_read_in_place(self, operands: Operands) -> bool:
        reduction, (state, wire) = operands.reduction, operands.dtypes
        stays = state == wire and (reduction is None or not reduction.divides_first)
        single = len(operands.inputs) == 1 and self.collective is not Collective.ALL_GATHER and self.num_ranks > 1
        return stays and single and self._can_use_directly(operands.inputs[0], state)

    def _can_be_summed_in(self, output: torch.Tensor, whole: torch.Tensor, operands: Operands) -> bool:
        """Whether the sum can form in the output, which may overlap only the share of the input that it replaces."""
        own = self._share(whole, operands.splits)
        is_apart = own.data_ptr() == output.data_ptr() or not _same_storage(own, output)
        return is_apart and self._can_use_directly(output, operands.dtypes.state)

    def _share(self, whole: torch.Tensor, splits: tuple[int, ...] | None) -> torch.Tensor:
        return own_share(whole, self.rank, self.num_ranks, splits)

    def _buffer(self, length: int, dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
        is_staged = self.transport is runtime.STAGED
        return self._runtime.queue.buffer(length, dtype, runtime.CPU if is_staged else tensor.device, is_staged)

    def execute(self, operands: runtime.RunOperands, reduction: Reduction | None = None) -> None:
        collective, algorithm = self.collective, self._algorithm
        # In an all_to_all the chunks of all ranks are n tensors; the size is the average of one tensor.
        size_bytes = operands.num_elements // collective.num_tensors(self.num_ranks) * operands.wire.itemsize
        if self._rehearsal is not None:
            self._rehearsal.execute(operands, reduction, size_bytes)
            return
        if algorithm == AUTO:
            algorithm = self._runtime.chooser.choose(collective, size_bytes, self.group)
        self._executor(algorithm, size_bytes).carry_out(operands)

    def _executor(self, algorithm: str, size_bytes: int) -> runtime.Executor:
        collective, root = self.collective, self.root
        key = collective, algorithm, root, size_variant(collective, algorithm, self.num_ranks, size_bytes)
        executor = self._runtime.executors.get(key)
        if executor is None:
            schedule = build_proved(collective, algorithm, self.num_ranks, size_bytes)
            executor = self._runtime.executors[key] = runtime.Executor(schedule, self.group, root)
            self._runtime.compared_names[collective, algorithm] = named_with_digest(algorithm, schedule)
        return executor

    def fingerprint(self, name: str, length: int | None, dtype: torch.dtype, *details: object) -> runtime.Fingerprint:
        algorithm = self._runtime.compared_names.get((self.collective, self._algorithm), self._algorithm)
        root = self.root if self.collective.has_root else None
        return runtime.Fingerprint(name, length, dtype, details, algorithm, root)

    def perform(
        self,
        work: Callable[[], None],
        fingerprint: runtime.Fingerprint,
        result: list[torch.Tensor],
        inputs: Sequence[torch.Tensor] = (),
        async_op: bool = False,
    ) -> runtime.Work | None:
        """Do `work` after the group's earlier collectives, and wait for it unless `async_op`.

        result, inputs: the tensors that it writes and reads, all on one device.
        """
        tensor = (result or inputs)[0]
        self.transport = self._runtime.transports.of(tensor)
        if self._rehearsal is not None:
            return self._rehearsal.perform(work, fingerprint, result, async_op)
        fingerprints = self._runtime.fingerprints
        # The mode at the call: until its turn the program may set another mode, at different times on different ranks.
        mode = fingerprints.mode

        def turn() -> None:
            try:
                self.stamp = fingerprints.stamp(fingerprint, mode)
                with runtime.writing_to(result):
                    work()
            except ValueError:  # refused before anything was sent
                raise
            except BaseException as error:  # also for the others, who wait for this rank
                calls = [str(call) for call in fingerprints.recent]
                runtime.name_first_to_fail(error, self.group, calls, fingerprints.position)
                raise

        if tensor.is_cuda:
            return self._perform_on_cuda(turn, async_op, result, inputs)
        if async_op:
            return self._runtime.queue.start(turn, result)
        self._runtime.queue.run(turn)
        return None

    def _perform_on_cuda(
        self, turn: Callable[[], None], async_op: bool, result: list[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> runtime.Work | None:
        stream_sync = self._runtime.queue.stream_sync([*result, *inputs])
        turn_on_stream = partial(stream_sync.run, turn)
        if async_op and self.transport is runtime.STAGED:
            return self._runtime.queue.start(turn_on_stream, result, stream_sync)
        # Collectives on NCCL are launched at once. That waits for no rank, and all ranks must launch our collectives
        # and the program's own in the same order, which a second thread would break.
        self._runtime.queue.run(turn_on_stream)
        if async_op:
            return runtime.Work.over(result, stream_sync)
        stream_sync.wait()
        return None


def _copy_in(tensors: Sequence[torch.Tensor], whole: torch.Tensor) -> None:
    for part, tensor in zip(_split(whole, tensors), tensors, strict=True):
        if tensor.data_ptr() == part.data_ptr() and runtime.is_plain(tensor):
            continue
        # torch negates a negated view after the conversion: in a wider dtype, -128 of int8 would become 128.
        values = tensor.detach().resolve_neg()
        if _same_storage(values, part):
            values = values.clone()  # torch copies no tensor over part of itself
        part.view(tensor.shape).copy_(values)


def _copy_out(whole: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    for tensor, part in zip(tensors, _split(whole, tensors), strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


def _same_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _share_storage(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    return any(_same_storage(one, other) for one in inputs for other in outputs if one.numel() and other.numel())


def _split(whole: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    return [whole] if len(tensors) == 1 else whole.split([tensor.numel() for tensor in tensors])
