"""What a simulation says: what bounds it, what it uses, which algorithm and placement are best."""

from ringsim.analysis.congestion import Congestion
from ringsim.analysis.cost import Cost, cost_of, format_costs
from ringsim.analysis.critical_path import CriticalPath
from ringsim.analysis.explanation import Explanation, explain, why_not_explained
from ringsim.analysis.overview import Overview, make_overview
from ringsim.analysis.rank_placement import RankPlacement, default_budget, find_placement
from ringsim.analysis.rates import algbw_bytes_per_s, busbw_bytes_per_s
from ringsim.analysis.stall import format_stall
from ringsim.analysis.sweep import BASELINE, MAX_TRANSFERS, Sweep, Winner, run_sweep
from ringsim.analysis.usage import LinkUsage, RankUsage, among_most

__all__ = [
    "BASELINE",
    "MAX_TRANSFERS",
    "Congestion",
    "Cost",
    "CriticalPath",
    "Explanation",
    "LinkUsage",
    "Overview",
    "RankPlacement",
    "RankUsage",
    "Sweep",
    "Winner",
    "algbw_bytes_per_s",
    "among_most",
    "busbw_bytes_per_s",
    "cost_of",
    "default_budget",
    "explain",
    "find_placement",
    "format_costs",
    "format_stall",
    "make_overview",
    "run_sweep",
    "why_not_explained",
]
