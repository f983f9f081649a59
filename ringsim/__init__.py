"""Collective algorithms as data: proved, simulated and timed. Imports neither torch nor matplotlib.

>>> from ringsim import algorithm, load_network, predict_time, verify
>>> ring = algorithm("ring", num_ranks=8)
>>> verify(ring)
Proof(num_steps=14, num_transfers=112)
>>> round(predict_time(ring, load_network("gbe"), 64 * 2**20), 2)
0.94
"""

__version__ = "0.1.0"

from typing import TYPE_CHECKING, Any

from ringsim.algorithms import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from ringsim.analysis import Explanation, RankPlacement, RunView, Sweep, explain, find_placement, run_sweep
from ringsim.calibration import Comparison, ProbeFit, calibrate, calibrate_logs, cases_of_tables, compare
from ringsim.formats import goal_lines, msccl_lines, read_msccl
from ringsim.measurements import Measurements, read_logs
from ringsim.network import Network, load_network
from ringsim.registry import ALGORITHMS, algorithm
from ringsim.report import animation_page, register, write_trace
from ringsim.schedule import (
    Collective,
    Schedule,
    ScheduleError,
    Step,
    Steps,
    Transfer,
    UnevenShares,
    merge,
    on_channel,
    on_groups,
    partition,
    permute_ranks,
    pipeline,
    replay,
    split,
    then,
    verify,
)
from ringsim.simulation import Runtime, Timeline, closed_form_s, predict_time, simulate
from ringsim.workers import WorkerError, Workers

if TYPE_CHECKING:
    from ringsim.report.plots import plot

__all__ = [
    "ALGORITHMS", "Collective", "Comparison", "Explanation", "Measurements", "Network", "ProbeFit",
    "RankPlacement", "RunView", "Runtime", "Schedule", "ScheduleError", "Step", "Steps", "Sweep", "Timeline",
    "Transfer", "UnevenShares", "WorkerError", "Workers", "algorithm", "animation_page", "calibrate",
    "calibrate_logs", "cases_of_tables", "closed_form_s", "compare", "explain", "find_placement", "goal_lines",
    "load_network", "merge", "msccl_lines", "on_channel", "on_groups", "partition", "permute_ranks", "pipeline",
    "plot", "predict_time", "read_logs", "read_msccl", "replay", "ring_all_gather", "ring_all_reduce",
    "ring_reduce_scatter", "run_sweep", "simulate", "split", "then", "verify", "write_trace",
]  # fmt: skip


register()


def __getattr__(name: str) -> Any:
    """Import `plot` on first use, because Matplotlib takes most of a second to import."""
    if name == "plot":
        from ringsim.report.plots import plot  # noqa: PLC0415

        return plot
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
