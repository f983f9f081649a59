"""What sending and reducing cost on this machine, measured."""

from collectives.probes.clock import Clock, read_clock
from collectives.probes.hosts import places_of
from collectives.probes.probe import probe
from collectives.probes.provenance import provenance
from collectives.probes.schedules import shift_schedule
from collectives.probes.workload import Blocks, ProbeWorkload, Rounds

__all__ = [
    "Blocks",
    "Clock",
    "ProbeWorkload",
    "Rounds",
    "places_of",
    "probe",
    "provenance",
    "read_clock",
    "shift_schedule",
]
