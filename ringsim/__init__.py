"""Collective algorithms as data: proved, simulated and timed. Imports neither torch nor matplotlib."""

__version__ = "0.1.0"

from ringsim.algorithms import (
    gloo_ring_all_gather,
    gloo_ring_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from ringsim.network import Cluster, Network, load_network
from ringsim.registry import build
from ringsim.schedule import (
    NEVER,
    Collective,
    Schedule,
    ScheduleError,
    Step,
    Steps,
    Transfer,
    merge,
    on_groups,
    partition,
    permute_ranks,
    pipeline,
    replay,
    split,
    then,
    verify,
)
from ringsim.simulation import Timeline, closed_form_s, predict_time, simulate

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
    "permute_ranks",
    "pipeline",
    "predict_time",
    "replay",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "simulate",
    "split",
    "then",
    "verify",
]
