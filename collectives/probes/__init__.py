"""Measurements of the cost of sending and reducing on this machine."""

from collectives.probes.probe import places_of, probe, provenance
from collectives.probes.timing import Blocks, ProbeWorkload, Rounds
from collectives.probes.workloads import shift_schedule
