"""Traces of programs: what one rank of a training program computes, and which collectives it asks for."""

from ringsim.traces.trace import Call as Call
from ringsim.traces.trace import Group as Group
from ringsim.traces.trace import ProgramTrace as ProgramTrace
from ringsim.traces.trace import TracedStep as TracedStep
from ringsim.traces.trace import TraceEvent as TraceEvent
from ringsim.traces.trace import TraceEventKind as TraceEventKind
from ringsim.traces.trace import TraceRequest as TraceRequest
