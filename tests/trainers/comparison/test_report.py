"""The report of the ranks' notes, and its pictures; made up, so that every figure is known."""

import json
from dataclasses import replace
from unittest.mock import patch

import pytest
from msgspec import structs
from syrupy.assertion import SnapshotAssertion

from ringsim.measurements import Measurements
from ringsim.verdict import ComparedTraining, JobReport, TrainingComparison, TrainingRun
from ringsim.verdict.verdict import Topic
from tests.ringsim.commands import in_lines
from tests.ringsim.made_probes import made_measurements
from tests.ringsim.verdict.made_jobs import made_job, made_strategy
from trainers.cli.compare import DEFAULT_STRATEGIES
from trainers.comparison import report as reports
from trainers.comparison.report import JobResult, RankNotes, StepPrediction, format_report, over_periods, summarise
from trainers.comparison.report_plot import draw_memory, draw_report
from trainers.loop.meter import Memory
from trainers.loop.train_step import StepMoments, StepResult

TOKENS = 2 * 5 * 10
PREDICTION = StepPrediction(0.6, 2.5)
HELD = Memory(2**20, 2**21, 3 * 2**20, 0, 2**19)


def notes(sync_s: list[float], step_s: list[float], loss: float = 2.0) -> RankNotes:
    """One rank's notes, after the steps that are not counted, which are slow here."""

    def result(loss: float, sync_s: float, step_s: float) -> StepResult:
        return StepResult(loss, "", StepMoments(-step_s, *[-sync_s] * 3, *[0.0] * 4))

    slow = [result(5.0, 9.0, 9.0)] * reports.MAX_WARM_UP_STEPS
    counted = [result(loss, *times_s) for times_s in zip(sync_s, step_s, strict=True)]
    return RankNotes([*slow, *counted], "same", HELD)


FIRST = notes([0.1, 0.5, 0.3, 0.5, 0.2, 0.5, 0.3], [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0])
SECOND = notes([0.6, 0.4, 0.6, 0.2, 0.6, 0.3, 0.6], [2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0])
DIFFERING = replace(SECOND, fingerprint="other")
WHERE = {"machine": "m", "cores": 2, "torch": "t", "OMP_NUM_THREADS": "1", "date": "d"}


def test_two_ranks_become_one_row(snapshot: SnapshotAssertion) -> None:
    """Sync as the last to arrive sees it (the shorter), steps as the ranks take on average, tokens of all ranks."""
    result = summarise("ring", PREDICTION, HELD, [FIRST, SECOND], TOKENS)
    assert in_lines(json.dumps(result.as_dict())) == snapshot
    assert not summarise("ring", PREDICTION, HELD, [FIRST, DIFFERING], TOKENS).parameters_identical


def test_strategies_are_compared_with_one_process(snapshot: SnapshotAssertion) -> None:
    """Twice as fast on two ranks is all of what they could do."""
    one = notes([0.0] * 7, [3.0] * 7)
    off = replace(notes([0.6] * 7, [1.5] * 7, 2.25), gradient_difference=1e-7)
    compared = reports.compare_with_one(one, {"ring": [off, off]}, WHERE)
    rows = (summarise("ring", PREDICTION, HELD, [FIRST, DIFFERING], TOKENS),)
    report = JobReport(2, 7, Measurements(2, WHERE), rows, train={"batch_size": 5})
    text = format_report(report, compared)
    assert max(map(len, text.splitlines())) <= 80
    assert text == snapshot
    assert "one_process" not in format_report(report)


def test_what_comes_every_few_steps_is_shared_among_them() -> None:
    """Of a strategy that averages every third step, a step has the mean of three; those left over, of the last."""
    assert over_periods([0.0, 0.0, 0.6, 0.0, 0.3, 0.0, 0.0], 3) == pytest.approx([0.2] * 3 + [0.1] * 4)
    assert over_periods([0.25, 0.75], 3) == [0.5, 0.5]
    assert over_periods([0.1, 0.4], 1) == [0.1, 0.4]
    result = summarise("local_sgd/7", PREDICTION, HELD, [FIRST, SECOND], TOKENS)
    assert result.measured_sync_s == pytest.approx(1.8 / 7)
    assert result.step_s == pytest.approx(1.5)


def test_the_report_says_in_words_if_the_machine_was_busy() -> None:
    """By the probes in it, as `ringsim calibrate` would; of a quiet machine nothing."""
    report = JobReport.from_dict(made_job(made_measurements(2), [made_strategy("ring", 2, 0.01, 0.1)]))
    with patch("ringsim.calibration.from_probes._RESAMPLED", 4):
        verdict = JobResult(report, None).verdict()
    assert verdict.finding(Topic.BOUND).answer.startswith("The training step is compute-bound")
    assert reports.busy_lines(verdict) == []
    with patch("ringsim.calibration.from_probes.TOO_WIDE", 0.0):
        (line,) = reports.busy_lines(verdict)
    assert line.startswith("this machine was busy: a message of ")


LOSSES = [3.0 - 0.01 * step for step in range(50)]
NAMES = DEFAULT_STRATEGIES.split(",")[1:]


def made_report() -> JobReport:
    """Return a report of all strategies, as far as it is drawn."""
    results = [{**made_strategy(name, 2, 1e-3, 1e-2), "losses": LOSSES} for name in NAMES]
    for place, result in enumerate(results, 1):
        result["memory_bytes"] = Memory(*(factor * place * 2**20 for factor in range(1, 5)), 2**30)._asdict()
    results[0]["losses"] = [2 * loss for loss in LOSSES]
    measurements = made_measurements(2)
    where = {"machine": "a $ machine_1", "cores": 2, "torch": "2"}
    measurements = structs.replace(measurements, provenance={**measurements.provenance, **where})
    return JobReport.from_dict(made_job(measurements, results))


def test_equal_losses_are_one_line_with_all_names() -> None:
    """That of one process is among them; one that differs has its own line."""
    one = TrainingRun("one_process", 1, 1.0, 0.0, tuple(LOSSES))
    comparison = TrainingComparison((ComparedTraining(one, 1.0, 1.0, 0.0),), {})
    curves = draw_report(made_report(), comparison).axes[1].get_lines()
    names = [str(curve.get_label()).replace("\n", " ").split(" ≈ ") for curve in curves]
    assert names == [["one_process", *NAMES[1:]], ["none"]]
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in curves}) == 2


def test_memory_is_stacked_by_kind() -> None:
    """A row per strategy, whose bar ends at the sum; a dot for its step."""
    report = made_report()
    left, right = draw_memory(report).axes
    ends = [max(bar.get_x() + bar.get_width() for bar in bars) for bars in zip(*left.containers, strict=True)]
    assert ends == [10.0 * place for place in range(1, 12)]
    (steps,) = [line for line in right.get_lines() if len(line.get_xdata()) == 11]
    assert list(steps.get_xdata()) == [result.step_s for result in report.strategies]
