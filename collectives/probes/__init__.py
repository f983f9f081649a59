"""Measurements of the cost of sending and reducing on this machine."""

from collectives.probes.probe import Blocks, places_of, probe, provenance
from collectives.probes.workloads import ProbeWorkload, Rounds, shift_schedule
