"""The verdict on a directory of results."""

from ringsim.verdict.predictions import Attribution
from ringsim.verdict.records import (
    ComparedTraining,
    JobReport,
    StrategyResult,
    TrainingComparison,
    TrainingRun,
    TrainingSession,
)
from ringsim.verdict.run_directory import KINDS, RunDirectory, read_directory
from ringsim.verdict.verdict import MEASURE, Finding, Verdict, judge
