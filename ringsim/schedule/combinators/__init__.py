"""Schedules made from schedules, computed when asked for."""

from ringsim.schedule.combinators.merge import merge
from ringsim.schedule.combinators.on_groups import on_groups
from ringsim.schedule.combinators.relabel import on_channel, permute_ranks
from ringsim.schedule.combinators.segments import pipeline, split
from ringsim.schedule.combinators.then import ThenSteps, then
