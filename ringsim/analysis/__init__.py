"""Analysis of simulations: lower bounds, use of ranks and links, algorithms and rank placements."""

from ringsim.analysis.advice import Advice, advise, better_networks
from ringsim.analysis.contributions import ChunkStates
from ringsim.analysis.costs import Cost, algbw_bytes_per_s, busbw_bytes_per_s, candidates, cost_of
from ringsim.analysis.explanation import (
    Explanation,
    among_most,
    explain,
    pack_rows,
    pack_sends,
    waiting_times,
    why_not_explained,
)
from ringsim.analysis.faults import (
    BlockedRun,
    SlowParts,
    find_blocked,
    format_blocked,
    format_slow_parts,
    hanging_text,
    slow_pairs,
)
from ringsim.analysis.graph_layout import GraphLayout, GraphShape, lay_out_graph
from ringsim.analysis.network_bound import BOUNDED, Links, NetworkBound, bound_of
from ringsim.analysis.rank_placement import RankPlacement, default_budget, find_placement
from ringsim.analysis.run_view import RunView, check_animated, check_few_ranks
from ringsim.analysis.summary import RANK_TIMES, SimulatedCollective, summarise, times_of_ranks
from ringsim.analysis.sweep import BASELINE, Sweep, Winner, run_sweep
from ringsim.analysis.walkthrough import COMPLETE, goal_sentence, templates, walk_through
