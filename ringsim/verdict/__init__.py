"""The verdict on a directory of results in plain words: what bounds, what to use, what more ranks would cost."""

from ringsim.verdict.bound import Attribution, Bound
from ringsim.verdict.finding import Finding
from ringsim.verdict.records import (
    ComparedCell,
    JobReport,
    SimulatedCollective,
    StrategyResult,
    TrainingComparison,
    TrainingSession,
)
from ringsim.verdict.run_directory import KINDS, RunDirectory, read_directory
from ringsim.verdict.verdict import MEASURE, Verdict, judge
