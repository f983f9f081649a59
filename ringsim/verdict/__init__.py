"""The verdict on a directory of results."""

from ringsim.verdict.predictions import Attribution
from ringsim.verdict.run_directory import (
    KINDS,
    ComparedTraining,
    JobReport,
    RunDirectory,
    StrategyResult,
    TrainingComparison,
    TrainingRun,
    TrainingSession,
    read_directory,
)
from ringsim.verdict.verdict import MEASURE, Finding, Verdict, judge
