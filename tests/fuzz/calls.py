"""`Call`: one collective call in plain words, and carrying it out on a rank."""

import random
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

import collectives
from collectives.calls import functions
from tests.fuzz.reference import contribution, difference, expected
from tests.fuzz.views import READ_ONLY, View, bits, laid_out

IN_PLACE = ("all_reduce", "all_reduce_coalesced", "broadcast", "reduce")
SCATTERS = ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced")
GATHERS = ("all_gather", "all_gather_into_tensor", "all_gather_into_tensor_coalesced")
REDUCING = ("all_reduce", "all_reduce_coalesced", "reduce", *SCATTERS)
COALESCED = ("all_reduce_coalesced", "reduce_scatter_tensor_coalesced", "all_gather_into_tensor_coalesced")
NAMES = (*IN_PLACE, *SCATTERS, *GATHERS, "barrier")
# PyTorch can store these, but add some of them not at all: a call is right, or refused with ValueError on every rank.
Tensors = list[torch.Tensor]
EXOTIC = ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Call:
    """One call of one collective.

    shape: of the tensor that is reduced, passed on or gathered; of one rank's share where there are shares.
    count: tensors in a coalesced call.
    layout, input_layout: how tensors lie in memory that are written to, and only read.
    group: which of the job's groups. through: our functions, or torch.distributed's ("dist").
    values: "exact" is small numbers with which all arithmetic is exact; "zeros" is random, with zeros of either sign.
    """

    name: str = "all_reduce"
    shape: tuple[int, ...] = (3,)
    dtype: str = "float32"
    op: str = "SUM"
    algorithm: str = ""
    layout: str = "plain"
    input_layout: str = "plain"
    root: int = 0
    wire: str = ""
    values: str = "exact"
    count: int = 1
    asynchronous: bool = False
    group: int = 0
    through: str = "functions"

    @property
    def torch_dtype(self) -> torch.dtype:
        """That of its tensors."""
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def is_exact(self) -> bool:
        """Whether the result is independent of the order of the operations, and of the dtypes on the way."""
        real = self.torch_dtype.is_floating_point or self.torch_dtype.is_complex
        # Complex numbers are divided part by part, or whole; of float16 each summand is divided.
        if self.op == "AVG" and (self.torch_dtype.is_complex or "float16" in (self.dtype, self.wire)):
            return False
        if self.has_float8 and self.op in ("SUM", "AVG"):  # 9 lies between two numbers of float8_e5m2
            return False
        if self.name not in REDUCING or not real or self.values not in ("random", "zeros"):
            return True
        return self.op in ("MIN", "MAX") and not self.wire

    @property
    def has_float8(self) -> bool:
        """Whether partial results may be in a dtype with three or four significant bits."""
        return any(name.startswith("float8") for name in (self.dtype, self.wire))

    @property
    def may_be_refused(self) -> bool:
        """Whether ValueError, on every rank, is as good as the right result."""
        return any(name in EXOTIC for name in (self.dtype, self.wire))

    @property
    def leaves_all_alike(self) -> bool:
        """Whether all ranks must hold the same bits afterwards."""
        if self.name not in ("all_reduce", "all_reduce_coalesced", "broadcast", *GATHERS) or self.values == "special":
            return False
        return self.is_exact or not self.algorithm.startswith("direct")

    def input_shapes(self, num_ranks: int) -> list[tuple[int, ...]]:
        """Of the tensors that a rank gives."""
        if self.name == "barrier":
            return []
        if self.name == "reduce_scatter":
            return [self.shape] * num_ranks
        shape = (num_ranks, *self.shape) if self.name in SCATTERS else self.shape
        return [shape] * (self.count if self.name in COALESCED else 1)

    def result_shapes(self, num_ranks: int) -> list[tuple[int, ...]]:
        """Of the tensors that are written to, where those are not the inputs."""
        if self.name == "all_gather":
            return [self.shape] * num_ranks
        shape = (num_ranks, *self.shape) if self.name in GATHERS else self.shape
        return [shape] * (self.count if self.name in COALESCED else 1)


@dataclass
class Issued:
    """A call that is made on this rank: what it is given, and what to wait for."""

    call: Call
    seed: int
    group: dist.ProcessGroup
    inputs: list[View]
    results: list[View]
    waits: list[Any] = field(default_factory=list)
    over: bool = False

    def __post_init__(self) -> None:
        self._inputs_before = [bits(view.tensor) for view in self.inputs]

    def make(self) -> None:
        """Make the call, and do not wait for it if it is asynchronous."""
        tensors, outputs = [view.tensor for view in self.inputs], [view.tensor for view in self.results]
        works = _made(self.call, self.group, tensors, outputs)
        self.waits = [] if works is None else works if isinstance(works, list) else [works]

    def make_and_wait(self) -> None:
        """Make the call; when this returns it is over."""
        self.make()
        self.wait(random.Random(self.seed))

    @property
    def are_inputs_unchanged(self) -> bool:
        """Whether all tensors that the call was given are as they were before."""
        return [bits(view.tensor) for view in self.inputs] == self._inputs_before

    def wait(self, random: random.Random) -> None:
        """Until it is over; sometimes by a Future, which turns any error into a RuntimeError."""
        may_use_a_future = not self.call.may_be_refused
        for work in random.sample(self.waits, len(self.waits)):
            if may_use_a_future and random.random() < 0.2 and hasattr(work, "get_future"):
                work.get_future().wait()
            else:
                work.wait()
        self.over = True

    def problem(self) -> str:
        """Return the first fault of the tensors after the call, "" if there is none."""
        results = [view.tensor for view in self.results]
        size, rank = self.group.size(), self.group.rank()
        if text := difference(self.call, results, expected(self.call, self.seed, rank, size), size):
            return text
        in_place = self.call.name in IN_PLACE or self.call.input_layout == "in place"
        if not in_place and not self.are_inputs_unchanged:
            return "an input was changed"
        if not all(view.is_memory_around_untouched() for view in self.results + self.inputs):
            return "memory beside the tensors was changed"
        return ""

    def digest(self) -> bytes:
        """All bits of the results."""
        return b"".join(bits(view.tensor) for view in self.results)


def issue(call: Call, group: dist.ProcessGroup, seed: int) -> Issued:
    """Make the call, and do not wait for it if it is asynchronous; `seed` is that of its data."""
    issued = prepare(call, group, seed)
    issued.make()
    return issued


def prepare(call: Call, group: dist.ProcessGroup, seed: int) -> Issued:
    """Make the tensors of the call."""
    rank, size = group.rank(), group.size()
    inputs = contribution(call, seed, rank, size)
    if call.name in IN_PLACE:
        results = given = [laid_out(each, call.layout) for each in inputs]
    elif call.name == "barrier":
        results = given = []
    else:
        results = [laid_out(torch.zeros(shape).to(call.torch_dtype), call.layout) for shape in call.result_shapes(size)]
        given = _inputs(call, inputs, results, rank)
    return Issued(call, seed, group, given, results)


def _inputs(call: Call, inputs: list[torch.Tensor], results: list[View], rank: int) -> list[View]:
    if call.input_layout == "in place":  # a gathered share that is where it is to come
        places = [view.tensor for view in results]
        own = [places[rank]] if call.name == "all_gather" else [place[rank] for place in places]
        for tensor, values in zip(own, inputs, strict=True):
            tensor.detach().copy_(values)
        return [View(tensor, torch.zeros(1), torch.zeros(1, dtype=torch.bool)) for tensor in own]
    if call.input_layout in READ_ONLY:
        nothing = torch.zeros(1), torch.zeros(1, dtype=torch.bool)
        return [View(each.reshape(-1)[:1].clone().expand(each.numel()).view(each.shape), *nothing) for each in inputs]
    return [laid_out(each, call.input_layout) for each in inputs]


def _made(call: Call, group: dist.ProcessGroup, tensors: Tensors, outputs: Tensors) -> Any:
    ours = call.through == "functions"
    options: dict[str, Any] = {"group": group, "async_op": call.asynchronous}
    if ours and call.algorithm and call.name != "barrier":
        options["algorithm"] = call.algorithm
    if call.name in REDUCING:
        options["op"] = getattr(dist.ReduceOp, call.op)
        if ours and call.wire:
            options["wire"] = getattr(torch, call.wire)
    if name := {"broadcast": "group_src", "reduce": "group_dst"}.get(call.name):
        options[name] = call.root % group.size()
    if call.name == "barrier":
        return (collectives if ours else dist).barrier(**options)
    if call.name in COALESCED:
        return _coalesced(call, ours, tensors, outputs, options)
    function = getattr(collectives if ours else dist, call.name)
    if call.name in IN_PLACE:
        return function(tensors[0], **options)
    written, read = outputs if call.name == "all_gather" else outputs[0], tensors[0]
    return function(written, tensors if call.name == "reduce_scatter" else read, **options)


def _coalesced(call: Call, ours: bool, tensors: Tensors, outputs: Tensors, options: dict[str, Any]) -> Any:
    if call.name == "all_reduce_coalesced":
        return (functions if ours else dist).all_reduce_coalesced(tensors, **options)
    later = options.pop("async_op")
    single = getattr(collectives if ours else dist, call.name.removesuffix("_coalesced"))
    if ours:
        works = [single(*pair, async_op=True, **options) for pair in zip(outputs, tensors, strict=True)]
    else:
        with dist._coalescing_manager(options["group"], async_ops=True) as manager:
            for pair in zip(outputs, tensors, strict=True):
                single(*pair, **options)
        works = [manager]
    if later:
        return works
    for work in works:
        work.wait()
    return None
