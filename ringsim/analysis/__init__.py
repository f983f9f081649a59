"""What a simulation says: what bounds it, what it uses, which algorithm and placement are best."""

from ringsim.analysis.chunk_states import ChunkStates
from ringsim.analysis.congestion import Congestion
from ringsim.analysis.cost import cost_of, format_costs
from ringsim.analysis.critical_path import CriticalPath
from ringsim.analysis.explanation import Explanation, explain, why_not_explained
from ringsim.analysis.overview import Overview, check_few_ranks, make_overview
from ringsim.analysis.phases import CollectivePhase
from ringsim.analysis.rank_placement import RankPlacement, default_budget, find_placement
from ringsim.analysis.rates import algbw_bytes_per_s, busbw_bytes_per_s
from ringsim.analysis.stall import Stall, StalledRank, find_stall, format_stall, hanging_text
from ringsim.analysis.sweep import BASELINE, MAX_TRANSFERS, Sweep, Winner, run_sweep
from ringsim.analysis.usage import LinkUsage, RankUsage, among_most, waiting_times

__all__ = [
    "BASELINE",
    "MAX_TRANSFERS",
    "ChunkStates",
    "CollectivePhase",
    "Congestion",
    "CriticalPath",
    "Explanation",
    "LinkUsage",
    "Overview",
    "RankPlacement",
    "RankUsage",
    "Stall",
    "StalledRank",
    "Sweep",
    "Winner",
    "algbw_bytes_per_s",
    "among_most",
    "busbw_bytes_per_s",
    "check_few_ranks",
    "cost_of",
    "default_budget",
    "explain",
    "find_placement",
    "find_stall",
    "format_costs",
    "format_stall",
    "hanging_text",
    "make_overview",
    "run_sweep",
    "waiting_times",
    "why_not_explained",
]
