"""Collective algorithms as data: proved, simulated and timed. Imports neither torch nor matplotlib."""

__version__ = "0.1.0"

from ringsim.algorithms import (
    build,
    gloo_ring_all_gather,
    gloo_ring_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from ringsim.closed_form import closed_form_s
from ringsim.cluster import Cluster, load_network
from ringsim.collective import Collective
from ringsim.combinators import merge, on_groups, pipeline, relabel, split, then
from ringsim.network import Network
from ringsim.partition import partition
from ringsim.replay import replay
from ringsim.schedule import NEVER, Schedule, ScheduleError, Step, Steps, Transfer
from ringsim.simulate import predict_time, simulate
from ringsim.timeline import Timeline
from ringsim.verify import verify

__all__ = [
    "NEVER",
    "Cluster",
    "Collective",
    "Network",
    "Schedule",
    "ScheduleError",
    "Step",
    "Steps",
    "Timeline",
    "Transfer",
    "build",
    "closed_form_s",
    "gloo_ring_all_gather",
    "gloo_ring_all_reduce",
    "load_network",
    "merge",
    "on_groups",
    "partition",
    "pipeline",
    "predict_time",
    "relabel",
    "replay",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "simulate",
    "split",
    "then",
    "verify",
]
