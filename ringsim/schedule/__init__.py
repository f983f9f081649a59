"""Schedules: what a collective is, the steps that carry it out, its proof and its replay."""

from ringsim.schedule.collective import Collective, Counts, held_at_end, held_at_start, initial_counts, required
from ringsim.schedule.combinators.merge import merge
from ringsim.schedule.combinators.on_groups import on_groups
from ringsim.schedule.combinators.relabel import on_channel, permute_ranks
from ringsim.schedule.combinators.segments import pipeline, split
from ringsim.schedule.combinators.then import then
from ringsim.schedule.dependencies import Dependencies, RankOperation, dependencies, operations_of_ranks
from ringsim.schedule.flow import NO_ROW, Flow, Rows, flow, stable_order
from ringsim.schedule.listed_steps import BYTES_LISTED
from ringsim.schedule.memory import (
    estimated_transfers,
    format_count,
    require_few_transfers,
    require_installed_memory,
    require_memory,
)
from ringsim.schedule.memory_passes import MemoryPasses, memory_passes, most_published, stays_until_read
from ringsim.schedule.partition import UnevenShares, gloo_partition, partition
from ringsim.schedule.program import RankProgram, Receive, Send, rank_program
from ringsim.schedule.replay import replay
from ringsim.schedule.schedule import Columns, Schedule
from ringsim.schedule.step import (
    NEVER,
    Bools,
    Copies,
    Ints,
    Relay,
    ScheduleError,
    Step,
    Steps,
    Transfer,
    constant,
    only_value,
    same_transfers,
)
from ringsim.schedule.user_steps import require_count
from ringsim.schedule.verify import Proof, received_chunks, verify
