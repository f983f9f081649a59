"""Schedules made from schedules, computed when asked for."""

from ringsim.combinators.merge import merge
from ringsim.combinators.on_groups import on_groups
from ringsim.combinators.pipeline import pipeline
from ringsim.combinators.relabel import relabel
from ringsim.combinators.split import split
from ringsim.combinators.then import ThenSteps, then

__all__ = ["ThenSteps", "merge", "on_groups", "pipeline", "relabel", "split", "then"]
