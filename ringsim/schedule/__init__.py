"""Schedules: collectives, their steps, the proof and the replay."""

from ringsim.schedule.collective import Collective, Counts, held_at_end, held_at_start, initial_counts, required
from ringsim.schedule.combinators import merge, on_channel, on_groups, permute_ranks, pipeline, split, then
from ringsim.schedule.flow import NO_ROW, Dependencies, Flow, RankOperation, dependencies, flow, operations_of_ranks
from ringsim.schedule.memory_passes import MemoryPasses, memory_passes, most_published, stays_until_read
from ringsim.schedule.partition import UnevenShares, gloo_partition, partition
from ringsim.schedule.program import RankProgram, Receive, Send, rank_program
from ringsim.schedule.replay import replay, run
from ringsim.schedule.schedule import Columns, Schedule
from ringsim.schedule.steps import (
    BYTES_LISTED,
    AnyInts,
    Bools,
    Copies,
    Ints,
    Relay,
    Rows,
    ScheduleError,
    Step,
    Steps,
    Transfer,
    TransferTable,
    same_transfers,
    stable_order,
)
from ringsim.schedule.user_steps import require_count
from ringsim.schedule.verify import Proof, received_chunks, verify
