"""The report of the ranks' notes; made up, so that every figure is known."""

from unittest.mock import patch

import pytest

from ringsim.verdict.finding import Topic
from tests.ringsim.made_probes import made_measurements
from tests.ringsim.verdict.made_jobs import made_job, made_strategy
from trainers.strategy_comparison.report import (
    MAX_WARM_UP_STEPS,
    RankNotes,
    StepPrediction,
    busy_lines,
    format_report,
    judge_report,
    over_periods,
    summarise,
)

TOKENS = 2 * 5 * 10
PREDICTION = StepPrediction(0.6, 2.5)


def notes(sync_s: list[float], step_s: list[float]) -> RankNotes:
    """One rank's notes, after the steps that are not counted, which are slow here."""
    slow = [9.0] * MAX_WARM_UP_STEPS
    start = [5.0] * MAX_WARM_UP_STEPS
    return RankNotes(start + [2.0] * 7, slow + sync_s, slow + step_s, "same")


FIRST = notes([0.1, 0.5, 0.3, 0.5, 0.2, 0.5, 0.3], [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0])
SECOND = notes([0.6, 0.4, 0.6, 0.2, 0.6, 0.3, 0.6], [2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0])


def test_two_ranks_become_one_row() -> None:
    """Sync as the last to arrive sees it (the shorter), steps as the ranks take on average, tokens of all ranks."""
    result = summarise("ring", PREDICTION, [FIRST, SECOND], TOKENS)
    assert result["sync_s"] == [0.1, 0.4, 0.3, 0.2, 0.2, 0.3, 0.3]
    assert result["measured_sync_s"] == 0.3
    assert result["error"] == pytest.approx(1.0)
    assert result["step_s"] == 1.5
    assert result["step_error"] == pytest.approx(2.5 / 1.5 - 1)
    assert result["tokens_per_s"] == 2 * 5 * 10 / 1.5
    assert result["final_loss"] == pytest.approx((7 * 2.0 + 3 * 5.0) / 10)
    assert result["steps_measured"] == 7
    assert result["parameters_identical"]


def test_ranks_that_differ_are_reported() -> None:
    """In the row, and in words under the table."""
    result = summarise("ring", PREDICTION, [FIRST, SECOND._replace(fingerprint="other")], TOKENS)
    assert not result["parameters_identical"]
    where = {"machine": "m", "cores": 2, "torch": "t", "OMP_NUM_THREADS": "1", "date": "d"}
    report = {
        "strategies": [result, {**result, "strategy": "ddp", "parameters_identical": True}],
        "measurements": {"provenance": where},
        "num_ranks": 2,
        "train": {"batch_size": 5},
        "num_parameters": 7,
        "max_loss_difference": 0.25,
    }
    text = format_report(report, wide=True)
    assert "RANKS DIFFER: the parameters of ring are not bit-identical on all ranks" in text
    assert "2 ranks, batch 5 per rank, 10 in all, 7 parameters; m" in text
    assert "loss curves differ by at most 2.5e-01" in text
    narrow = format_report(report).splitlines()
    row = ["ring", "600.00", "300.00", "+100%", "2500.0", "1500.0", "+67%", "2.900"]
    assert narrow[2].split() == row
    assert text.splitlines()[2].split() == [*row, "160.00-340.00", "67"]
    assert max(map(len, narrow)) <= 80


def test_the_report_says_in_words_if_the_machine_was_busy() -> None:
    """By the probes in it, as `ringsim calibrate` would; of a quiet machine nothing."""
    report = made_job(made_measurements(2), [made_strategy("ring", 2, 0.01, 0.1)])
    with patch("ringsim.calibration.from_probes._RESAMPLED", 4):
        verdict = judge_report(report)
    assert verdict.finding(Topic.BOUND).answer.startswith("The training step is compute-bound")
    assert busy_lines(verdict) == []
    with patch("ringsim.calibration.noise.TOO_WIDE", 0.0):
        (line,) = busy_lines(verdict)
    assert line.startswith("this machine was busy: a message of ")


def test_what_each_rank_spends_synchronising_is_kept() -> None:
    """The median of each, without the first steps: who spends least is the rank that the others wait for."""
    assert summarise("ring", PREDICTION, [FIRST, SECOND], TOKENS)["rank_sync_s"] == [0.3, 0.6]


def test_what_comes_every_few_steps_is_shared_among_them() -> None:
    """Of a strategy that averages every third step, a step has the mean of three; those left over, of the last."""
    assert over_periods([0.0, 0.0, 0.6, 0.0, 0.3, 0.0, 0.0], 3) == pytest.approx([0.2] * 3 + [0.1] * 4)
    assert over_periods([0.25, 0.75], 3) == [0.5, 0.5]
    assert over_periods([0.1, 0.4], 1) == [0.1, 0.4]
    result = summarise("local_sgd/7", PREDICTION, [FIRST, SECOND], TOKENS)
    assert result["measured_sync_s"] == pytest.approx(1.8 / 7)
    assert result["step_s"] == pytest.approx(1.5)


@pytest.mark.parametrize("name", ["diloco/8", "bucketed_bf16"])
def test_a_strategy_that_trains_or_rounds_otherwise_is_named(name: str) -> None:
    """Its losses are not counted among those that should be the same."""
    result = summarise(name, PREDICTION, [FIRST, SECOND], TOKENS)
    where = {"machine": "m", "cores": 2, "torch": "t", "OMP_NUM_THREADS": "1", "date": "d"}
    equal = [{**result, "strategy": same} for same in ("ring", "ddp")]
    report = {
        "strategies": [result, *equal],
        "measurements": {"provenance": where},
        "num_ranks": 2,
        "train": {"batch_size": 5},
        "num_parameters": 7,
        "max_loss_difference": 0.0,
    }
    text = format_report(report, True)
    assert f"loss curves, except those of `{name}` (trained or rounded differently), differ by at" in text
    assert "loss curves" not in format_report({**report, "strategies": [result, equal[0]]}, True)
