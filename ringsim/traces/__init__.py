"""Traces of programs: what one rank of a training program computes, and which collectives it asks for."""

from ringsim.traces.trace import (
    INTERRUPTED,
    RECORDING_ID,
    Call,
    Device,
    Group,
    HeldBytes,
    Operator,
    ProgramTrace,
    StepMemory,
    TracedStep,
    TraceEvent,
    TraceEventKind,
    TraceRequest,
)
