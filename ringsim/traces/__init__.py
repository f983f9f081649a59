"""Traces of programs: what one rank of a training program computes, and which collectives it asks for."""

from ringsim.traces.trace import (
    INTERRUPTED,
    RECORDING_ID,
    Call,
    Device,
    Group,
    Operator,
    ProgramTrace,
    TracedStep,
    TraceEvent,
    TraceEventKind,
    TraceRequest,
)
