"""`ProgramTrace`: recorded training steps of one rank of a program, with its collectives.

A step is a list of events in program order. The times of collectives are not recorded, as they depend on the network.
On a GPU, streams wait for each other only as `TraceCall.after`, `TraceCall.after_calls` and `TraceEventKind.READ` say.
"""

import re
import shlex
import sys
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec

from ringsim.files import FileFormat, JsonFile, Record, values

MAX_STEPS = 10_000
SENDRECV = "sendrecv"  # each rank of a group sends to the rank at the same distance, in a ring
FUSED = "fused("  # begins the name of a kernel that a compiler makes of several operators
INTERRUPTED = 130  # the exit code of a recording that has said, after Ctrl-C, how far it has come
RECORDING_ID = "recording"  # a program that is recorded has this TORCHELASTIC_RUN_ID, for which torchrun draws a number
# Folders of files that are no program's own. Python's own library is in one named after its version.
_LIBRARIES = {"site-packages", "dist-packages", "collectives", f"python{sys.version_info[0]}.{sys.version_info[1]}"}
_IndexOrNone = Annotated[int, values.whole(-1)]  # -1: none


class TraceEventKind(Enum):
    """The kinds of events of a program.

    READ: the stream of the computations waits for a call on another stream, to read its result.
    """

    COMPUTE = "compute"
    CALL = "call"
    WAIT = "wait"
    READ = "read"


class Device(Enum):
    """The devices that a program can be told it has."""

    CPU = "cpu"
    CUDA = "cuda"


class AssumedValues(Enum):
    """The assumptions of a recording without data about values on which shapes depend."""

    BALANCED = "balanced"  # a router sends equally many tokens to all experts


def element_bytes_of(dtype: str) -> int:
    """Return the bytes of an element of torch's dtype, such as bfloat16; 1 if its name has no number."""
    bits = re.search(r"\d+", dtype)
    return max(1, int(bits.group()) // 8) if bits else 1


class Product(Record, frozen=True, omit_defaults=True):
    """`count` products of matrices, (m, k) and (k, n), or a convolution as such a product.

    That of a convolution has a row for each position of its output, and a column for each channel.
    """

    m: values.Positive
    n: values.Positive
    k: values.Positive
    count: values.Positive = 1


class Attention(Record, frozen=True):
    """An attention kernel; the operator's flops exclude what is masked. width: of a head's queries and keys."""

    batch: values.Positive
    heads: values.Positive
    queries: values.Positive
    keys: values.Positive
    width: values.Positive


class Operator(Record, frozen=True, omit_defaults=True):
    """Equal calls of an operator, such as aten.mm, and the costs of one.

    dtype: of its arithmetic; torch's name, or tf32 for float32 that a GPU multiplies in TF32.
    flops, size_bytes: operations, and bytes read and written.
    is_counted: False if its operations are unknown and may take longer than its memory accesses.
    product, attention: sizes of these kernels; a backward pass has those of the forward pass.
    in_graph: whether compiled code launches it, which takes less CPU time.
    """

    name: values.Name
    dtype: values.Name
    flops: values.Whole
    size_bytes: values.Whole
    count: values.Positive = 1
    is_counted: bool = True
    product: Product | None = None
    attention: Attention | None = None
    in_graph: bool = False

    @property
    def may_be_fused(self) -> bool:
        """Whether a compiler may fuse it into other operators, so that it accesses no memory."""
        return not self.flops and self.is_counted and not self.name.startswith(("aten._fused_", FUSED))


class TraceEvent(Record, frozen=True):
    """An event of the rank.

    seconds, operators: of a computation, on the recording machine; no operators if not watched.
    call: index in the step's `calls` of the call that is made, waited for or read; -1 for a computation.
    """

    kind: TraceEventKind
    seconds: values.Seconds = 0.0
    call: _IndexOrNone = -1
    operators: tuple[Operator, ...] = ()


class TraceCall(Record, frozen=True):
    """A call of a collective, send or recv.

    collective: the name of a `Collective`, barrier, send, recv, or sendrecv for a send and a recv that all ranks make
    alike; variants of torch.distributed count as the same.
    size_bytes: of the whole tensor: before a reduction or a scatter, or after a gather.
    dtype: of the messages, such as bfloat16.
    group: index in the trace's `groups`.
    is_async: the call returns before it ends; a wait follows, unless the program never waits.
    algorithm: named by the program; "" if the library chooses.
    peer: the other rank of a send or recv, or the root, as a rank of the group; -1 if there is none. For a sendrecv,
    the distance to the receiver.
    local_s: on this rank for copies and rounding.
    is_lent: the tensor is one of `collectives.empty`, which the ranks of a host read in place.
    on_side_stream: on another stream than the computations, which then continue on a GPU even if the call is
    synchronous.
    after: index of the last event for which that stream waits before the call; -1 for none; None for all earlier
    events.
    after_calls: indices of the last call of each other group for which it waits.
    """

    collective: values.Name
    size_bytes: values.Whole
    dtype: values.Name
    group: values.Whole
    is_async: bool
    algorithm: values.Text = ""
    peer: _IndexOrNone = -1
    local_s: values.Seconds = 0.0
    is_lent: bool = False
    on_side_stream: bool = False
    after: _IndexOrNone | None = None
    after_calls: tuple[values.Whole, ...] = ()


class TracedStep(Record, frozen=True):
    """One training step: from the end of an optimizer's step to the end of the next."""

    events: tuple[TraceEvent, ...]
    calls: tuple[TraceCall, ...]

    def __post_init__(self) -> None:
        made = 0  # calls up to this event
        for index, event in enumerate(self.events):
            if event.kind is TraceEventKind.CALL:
                self._check_call_event(index, made)
                made += 1
            elif event.kind is TraceEventKind.COMPUTE:
                if event.call >= 0:
                    raise ValueError(f"events[{index}].call = {event.call}: must be -1, as it is a computation")
            elif not 0 <= event.call < made:
                raise ValueError(f"events[{index}].call = {event.call}: must be one of the {made} calls made before")
        if made != len(self.calls):
            raise ValueError(f"events: {made} of {len(self.calls)} calls are made")

    def _check_call_event(self, index: int, made: int) -> None:
        call = self.events[index].call
        if call != made or made >= len(self.calls):
            raise ValueError(f"events[{index}].call = {call}: must be {made}, one of {len(self.calls)} calls in order")
        after = self.calls[call].after
        if after is not None and after >= index:
            raise ValueError(f"calls[{call}].after = {after}: must be an event before {index}, where it is made")
        later = next((other for other in self.calls[call].after_calls if other >= call), None)
        if later is not None:
            raise ValueError(f"calls[{call}].after_calls: {later} must be one of the {call} calls made before")

    @property
    def compute_s(self) -> float:
        return sum(event.seconds for event in self.events)

    @property
    def unawaited(self) -> list[TraceCall]:
        """The calls for which the program does not wait in the step, nor for later ones of their group."""
        awaiting = TraceEventKind.WAIT, TraceEventKind.READ
        blocking = [index for index, call in enumerate(self.calls) if not (call.is_async or call.on_side_stream)]
        waits = sorted([*blocking, *(event.call for event in self.events if event.kind in awaiting)])
        awaited = {self.calls[index].group: index for index in waits}  # the last one of each
        return [call for index, call in enumerate(self.calls) if index > awaited.get(call.group, -1)]

    @property
    def is_watched(self) -> bool:
        """Whether its operators are known; a step of calls alone has none."""
        return bool(self.operators) or not self.compute_s

    @property
    def operators(self) -> list[Operator]:
        return [operator for event in self.events for operator in event.operators]

    @property
    def flops(self) -> int:
        return sum(operator.flops * operator.count for operator in self.operators)

    @property
    def size_bytes(self) -> int:
        return sum(call.size_bytes for call in self.calls)


class Group(Record, frozen=True):
    """A process group of the rank. ranks: in the job. backend: torch's name."""

    ranks: tuple[values.Rank, ...]
    backend: values.Text

    @property
    def name(self) -> str:
        """Such as "ranks 0 to 7" or "ranks 0 to 56 by 8"."""
        gaps = {after - before for before, after in pairwise(self.ranks)}
        if len(gaps) != 1 or min(gaps) < 1:
            return f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"{len(self.ranks)} ranks"
        return f"ranks {self.ranks[0]} to {self.ranks[-1]}" + (f" by {min(gaps)}" if min(gaps) > 1 else "")


class TraceRequest(Record, frozen=True):
    """A request to record a program as one rank of a job.

    program: path of a script, or with `is_module` name of a module. num_steps: recorded after warm-up steps. folder:
    working directory; "": that of the recorder. assume: only with `is_fake`.
    """

    program: values.Text
    arguments: tuple[values.Text, ...]
    is_module: bool
    num_ranks: values.NumRanks
    rank: values.Rank
    ranks_per_host: values.NumRanks
    num_steps: Annotated[int, values.whole(1, MAX_STEPS)]
    output: values.Text
    is_fake: bool = False
    folder: values.Text = ""
    device: Device = Device.CPU
    assume: AssumedValues | None = None

    def __post_init__(self) -> None:
        if self.rank >= self.num_ranks:
            raise ValueError(f"rank {self.rank}: must be less than the {self.num_ranks} ranks")

    def is_own(self, file: str) -> bool:
        parts = Path(file).with_suffix("").parts
        is_of_library = not _LIBRARIES.isdisjoint(parts) or file.startswith("<")
        return not is_of_library or (self.is_module and self.program.partition(".")[0] in parts)

    @property
    def ranks_here(self) -> int:
        return min(self.ranks_per_host, self.num_ranks)

    @property
    def command(self) -> str:
        numbers = f"--ranks {self.num_ranks} --ranks-per-host {self.ranks_per_host} --rank {self.rank}"
        options = [*(["--fake"] if self.is_fake else []), numbers, f"--steps {self.num_steps}"]
        if (self.device is Device.CUDA) != self.is_fake:  # the default
            options.insert(0, f"--device {self.device.value}")
        if self.assume:
            options.append(f"--assume {self.assume.value}")
        program = shlex.join([*(["-m"] if self.is_module else []), self.program, *self.arguments])
        return " ".join(["ringsim trace", *options, program])


class HeldBytes(Record, frozen=True):
    """Bytes of the tensors that a rank holds at a moment; each storage counts once and in full.

    parameters: trained or not. gradients: at the end of the step. rest: activations, gathered parameters, buckets,
    buffers and batches.
    """

    parameters: values.Whole
    gradients: values.Whole
    optimizer: values.Whole
    rest: values.Whole

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.rest


class StepMemory(Record, frozen=True):
    """The memory of a step at its peak, and at its end, after the optimizer's step.

    reserved: bytes that torch's allocator holds on a GPU; 0 if not known.
    """

    peak: HeldBytes
    end: HeldBytes
    reserved: values.Whole = 0


class ProgramTrace(JsonFile, frozen=True):
    """Steps of one rank of a job.

    ranks_per_host: that the program was told.
    request: to record it again; None if not known.
    memory: of the step with watched operators; None if not recorded.
    is_compiled: whether compiled code was recorded in eager mode; otherwise as its fused kernels.

    Raises ValueError for a rank or group that does not exist, and for a request of another rank.
    """

    num_ranks: values.NumRanks
    rank: values.Rank
    ranks_per_host: values.NumRanks
    groups: tuple[Group, ...]
    steps: Annotated[tuple[TracedStep, ...], values.AT_LEAST_ONE]
    provenance: dict[str, Any] = msgspec.field(default_factory=dict)
    request: TraceRequest | None = None
    memory: StepMemory | None = None
    is_compiled: bool = False

    FORMAT: ClassVar = FileFormat("ringsim-program-trace", 1, made_by="ringsim trace")

    def __post_init__(self) -> None:
        if self.rank >= self.num_ranks:
            raise ValueError(f"rank {self.rank}: there are only {self.num_ranks} ranks")
        if self.request and (self.request.rank, self.request.num_ranks) != (self.rank, self.num_ranks):
            asked = f"rank {self.request.rank} of {self.request.num_ranks}"
            raise ValueError(f"request: asks for {asked}, but the trace is of rank {self.rank} of {self.num_ranks}")
        for number, group in enumerate(self.groups):
            ranks = sorted(group.ranks)
            if not ranks or ranks[-1] >= self.num_ranks or len(set(ranks)) < len(ranks):
                raise ValueError(f"groups[{number}].ranks: must be some of {self.num_ranks} ranks, none of them twice")
        for number, step in enumerate(self.steps):
            for index, call in enumerate(step.calls):
                self._check_call(call, f"steps[{number}].calls[{index}]")

    @property
    def has_fused_kernels(self) -> bool:
        return any(operator.name.startswith(FUSED) for step in self.steps for operator in step.operators)

    @property
    def device(self) -> Device:
        """The CPU if not known."""
        return self.request.device if self.request else Device.CPU

    def _check_call(self, call: TraceCall, place: str) -> None:
        if call.group >= len(self.groups):
            raise ValueError(f"{place}.group = {call.group}: must be one of {len(self.groups)} groups")
        size = len(self.groups[call.group].ranks)
        if call.peer >= size:
            raise ValueError(f"{place}.peer = {call.peer}: its group has only {size} ranks")
