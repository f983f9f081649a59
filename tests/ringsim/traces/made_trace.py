"""Traces that are made up, of programs that nobody has run."""

from ringsim.traces import Group, Operator, ProgramTrace, TraceCall, TracedStep, TraceEvent, TraceRequest
from ringsim.traces import TraceEventKind as Kind

ALL = Group((0, 1, 2, 3), "gloo")


def compute(seconds: float, *operators: Operator) -> TraceEvent:
    """A computation."""
    return TraceEvent(Kind.COMPUTE, seconds, operators=operators)


def call(index: int) -> TraceEvent:
    """The call of that index is made."""
    return TraceEvent(Kind.CALL, call=index)


def wait(index: int) -> TraceEvent:
    """The call of that index is waited for."""
    return TraceEvent(Kind.WAIT, call=index)


def read(index: int) -> TraceEvent:
    """The result of the call of that index is read."""
    return TraceEvent(Kind.READ, call=index)


def all_reduce(size_bytes: int, is_async: bool = False, group: int = 0) -> TraceCall:
    """Of numbers of one byte."""
    return TraceCall("all_reduce", size_bytes, "uint8", group, is_async)


def call_of(collective: str, size_bytes: int, element_bytes: int, algorithm: str = "") -> TraceCall:
    """A call of all ranks that is not asynchronous."""
    dtype = {1: "uint8", 2: "bfloat16", 4: "float32"}[element_bytes]
    return TraceCall(collective, size_bytes, dtype, 0, False, algorithm)


def traced(*steps: TracedStep, groups: tuple[Group, ...] = (ALL,), num_ranks: int = 4) -> ProgramTrace:
    """A trace of these steps, on hosts of 2 ranks."""
    return ProgramTrace(num_ranks, 0, 2, groups, steps)


def recorded(request: TraceRequest) -> ProgramTrace:
    """A trace as if a program had been recorded: 10 ms of computing, and an all_reduce of 1 KiB for each rank."""
    step = TracedStep((compute(0.01), call(0)), (all_reduce(1024 * request.num_ranks),))
    group = Group(tuple(range(request.num_ranks)), "gloo")
    per_host = min(request.ranks_per_host, request.num_ranks)
    return ProgramTrace(request.num_ranks, request.rank, per_host, (group,), (step,), request=request)
