"""Measurements of the cost of sending and reducing on this machine."""

from collectives.probes.hosts import places_of, provenance
from collectives.probes.probe import probe
from collectives.probes.timing import Blocks, ProbeWorkload, Rounds
from collectives.probes.workloads import shift_schedule
