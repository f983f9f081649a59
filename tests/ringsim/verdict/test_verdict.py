"""Verdicts on measurements and jobs that were made up, so that the right answer is known."""

import re
from dataclasses import replace
from unittest.mock import patch

import pytest

from ringsim.calibration.from_probes import PredictedTime, calibrate
from ringsim.measurements.measurements import Measurements
from ringsim.network.spec import SlowLink
from ringsim.verdict.predictions import AlgorithmChoice, _choose_algorithm, all_reduce_s, scatter
from ringsim.verdict.records import (
    ComparedCell,
    ComparedCells,
    DdpPrediction,
    JobReport,
    LogEntry,
    PredictedDdpStep,
    TrainingLog,
)
from ringsim.verdict.run_directory import RunDirectory
from ringsim.verdict.verdict import Topic, Verdict, find_straggler, judge, step_cost
from tests.ringsim.made_probes import hosts, made_measurements, one_host, without_probes
from tests.ringsim.verdict.made_jobs import made_job, made_strategy

pytestmark = pytest.mark.usefixtures("few_draws")

SLOW = tuple(SlowLink(f"host2.nic0.{way}", slowdown=5.0) for way in ("out", "in"))


def verdict_on(measurements: Measurements) -> Verdict:
    """Of a directory with that file alone, with predictions for two sizes."""
    with patch("ringsim.verdict.predictions._sizes", lambda last: [2**10, last]):
        return judge(RunDirectory("made", measurements={"m.json": measurements}))


def verdict_on_job(*strategies: dict[str, object], measurements: Measurements | None = None) -> Verdict:
    """Of a directory with the report of a strategy comparison alone, with predictions for its gradients' size only."""
    data = made_job(measurements or made_measurements(3, 8, one_host(8)), list(strategies))
    with patch("ringsim.verdict.predictions._sizes", lambda last: [last]):
        return judge(RunDirectory("made", jobs={"report.json": JobReport.from_dict(data)}))


def test_what_bounds_an_all_reduce() -> None:
    """Latency bounds short messages and bandwidth long ones, on usual networks."""
    answer = verdict_on(made_measurements(4, 8, hosts(bandwidth=2e7))).finding(Topic.BOUND).answer
    assert answer == "An all_reduce on 4 ranks is bound by latency up to 1 KiB, bandwidth from 16 MiB."


def test_a_straggler_is_named_and_taken_away() -> None:
    """The link with its name, and the time without it, which is the simulator's on the network without it."""
    finding = verdict_on(made_measurements(4, 8, hosts(slow=SLOW))).finding(Topic.BOUND)
    assert finding.answer.endswith("a straggler from 16 MiB.")
    (sentence,) = [reason for reason in finding.reasons if "Slower than the other links" in reason]
    assert sentence.startswith(
        "Slower than the other links (125 MB/s): host2.nic0.out (25 MB/s), host2.nic0.in (25 MB/s). With equal"
    )
    said = re.search(r"would take (\d+) ms instead", sentence)
    assert said
    assert float(said[1]) / 1e3 == pytest.approx(all_reduce_s(hosts(), "ring", 4, 2**24), rel=0.05)


def test_predictions_on_the_fitted_network() -> None:
    """Twice the ranks are as on the true network with as many more hosts; the fastest algorithm is chosen if sure."""
    measurements = made_measurements(4, 8, hosts())
    verdict = verdict_on(replace(measurements, collectives=measurements.collectives[:2]))
    assert verdict.forecast
    truth_s = all_reduce_s(hosts(), "ring", 8, 2**16)
    assert verdict.forecast.scaled[1].all_reduce_s.time_s == pytest.approx(truth_s, rel=0.02)
    assert verdict.finding(Topic.RANKS).answer.startswith(
        "On 8 ranks on 8 such hosts an all_reduce of 64 KiB would take "
    )
    first = verdict.forecast.algorithms[0]
    for choice in verdict.forecast.algorithms:
        times = {name: all_reduce_s(hosts(), name, 4, choice.size_bytes) for name in first.times_s}
        assert times[choice.chosen] < 1.1 * min(times.values())
    assert first.gain
    assert first.gain.time_s == pytest.approx(first.times_s["ring"] / first.times_s[first.chosen])
    assert first.chosen != "ring"  # which sends six messages one after the other
    assert f"use `{first.chosen}` " in verdict.finding(Topic.ALGORITHM).answer
    assert AlgorithmChoice(64, {"direct": 1.0, "ring": 1.2}, None).chosen == "ring"  # not sure


@pytest.mark.parametrize(("low", "is_sure"), [(0.9, False), (1.1, False), (1.3, True)])
def test_a_gain_within_the_errors_of_predictions_is_not_sure(low: float, is_sure: bool) -> None:
    """Both ends count: the interval of the bootstrap, and how far predictions scatter."""
    fit = calibrate(made_measurements(2))
    with patch("ringsim.verdict.predictions.with_interval", lambda *_: PredictedTime(1.5, low, 2.0)):
        choice = _choose_algorithm(fit, ["ring", "recursive_doubling"], 2, 2**10, 1.2)
    assert (choice.chosen == "recursive_doubling") == is_sure
    assert _choose_algorithm(fit, ["ring", "recursive_doubling"], 2, 2**10, 100.0).chosen == "ring"


def test_errors_that_all_predictions_have_in_common_do_not_count() -> None:
    """Twice too long everywhere changes no order; half of them twice too long does."""
    assert scatter([2.0, 2.0, 2.0]) == 1.0
    assert scatter([1.0, 2.0, 1.0, 2.0]) == pytest.approx(2**0.5)
    assert scatter([]) == 1.0


def test_how_sure_it_is_follows_the_errors() -> None:
    """Measured as predicted; twice as long; without collectives that could tell; and on a busy machine."""
    right = verdict_on(made_measurements(2)).finding(Topic.RELIABILITY)
    assert right.answer.startswith("Reliable: the median error of the predictions is ")
    wrong = verdict_on(made_measurements(2, slower=2.0)).finding(Topic.RELIABILITY)
    assert "the median error of the predictions is 50 %" in wrong.answer
    measurements = made_measurements(2)
    alone = Measurements(2, measurements.provenance, measurements.probes)
    assert verdict_on(alone).finding(Topic.RELIABILITY).answer.startswith("Not verified: ")
    with patch("ringsim.calibration.from_probes.TOO_WIDE", 0.0):
        busy = verdict_on(measurements).finding(Topic.RELIABILITY)
    assert busy.answer.startswith("Not reliable: the machine was busy while messages of ")
    assert "this machine was busy: a message of " in busy.reasons[0]


def test_computing_bounds_a_step() -> None:
    """The share of synchronising is that of the strategy with the shortest step, and those within noise are draws."""
    verdict = verdict_on_job(
        made_strategy("none", 3, 1e-6, 0.09),
        made_strategy("ring", 3, 0.010, 0.100),
        made_strategy("ddp", 3, 0.012, 0.1001),
        made_strategy("flat", 3, 0.030, 0.130),
    )
    assert verdict.finding(Topic.BOUND).answer == (
        "The training step is compute-bound: it takes 100 ms with `ring`, and 90 ms without synchronisation (`none`), "
        "10 % less."
    )
    answer = verdict.finding(Topic.ALGORITHM).answer
    assert answer.startswith("Train with `ring`: its step of 100 ms is the shortest of those tried.")
    assert verdict.finding(Topic.BUCKET).answer.startswith(("Set bucket_cap_mb to ", "Keep the default bucket_cap_mb"))
    alone = verdict_on_job(made_strategy("ring", 1, 0.0, 0.1), measurements=Measurements(1, {"cores": 2}))
    assert alone.finding(Topic.BOUND).answer == "Computation: a single rank does not communicate."


def test_what_synchronising_costs_is_measured_without_it() -> None:
    """A step with `none` says it, where most of the cost is waiting; without it the answer names what it leaves out."""
    ring = made_strategy("ring", 2, 0.0043, 0.0541)
    finding = verdict_on_job(made_strategy("none", 2, 1e-6, 0.0395), ring, measurements=made_measurements(2)).finding(
        Topic.BOUND
    )
    assert finding.answer == (
        "The training step is compute-bound: it takes 54 ms with `ring`, and 40 ms without synchronisation (`none`), "
        "27 % less."
    )
    assert "differ by 15 ms; the synchronisation itself takes 4.3 ms, measured on the" in finding.reasons[0]
    alone = verdict_on_job(ring, measurements=made_measurements(2)).finding(Topic.BOUND)
    assert alone.answer.endswith("it takes 54 ms with `ring`; 4.3 ms of this (8 %) is synchronisation.")
    assert "This does not include other waiting for late ranks" in alone.reasons[0]
    mostly_waiting = verdict_on_job(
        made_strategy("none", 2, 1e-6, 0.02), ring, measurements=made_measurements(2)
    ).finding(Topic.BOUND)
    assert mostly_waiting.answer.startswith("The training step is bound by the synchronisation of gradients")


def test_synchronising_bounds_a_step() -> None:
    """And what bounds that in turn, as the probes say."""
    measurements = made_measurements(3, 8, hosts(bandwidth=1e7))
    verdict = verdict_on_job(made_strategy("ring", 3, 0.5, 0.6), measurements=measurements)
    assert verdict.finding(Topic.BOUND).answer == (
        "The training step is bound by the synchronisation of gradients, mostly by bandwidth: it takes 600 ms with "
        "`ring`; 500 ms of this (83 %) is synchronisation."
    )


def test_a_rank_that_all_others_wait_for_is_a_straggler() -> None:
    """Its wait counts as synchronising, and is named; waits within what synchronising varies are no straggler."""
    results = [made_strategy(name, 3, 0.010, 0.100, waits_s=0.060, straggler=1) for name in ("ring", "flat", "ddp")]
    verdict = verdict_on_job(*results)
    finding = verdict.finding(Topic.BOUND)
    assert finding.answer == (
        "The training step is bound by the synchronisation of gradients, mostly by a straggler: it takes 100 ms with "
        "`ring`; 70 ms of this (70 %) is synchronisation and waiting for a straggler."
    )
    sentence = "Rank 1 is a straggler: the other ranks wait 60 ms for it in each step"
    assert any(reason.startswith(sentence) for reason in finding.reasons)
    little = [made_strategy(name, 3, 0.010, 0.100, waits_s=0.0001, straggler=1) for name in ("ring", "flat", "ddp")]
    report = JobReport.from_dict(made_job(made_measurements(3), little))
    assert find_straggler(report.strategies) is None
    changing = [made_strategy("ring", 3, 0.01, 0.1, 0.06, 0), made_strategy("flat", 3, 0.01, 0.1, 0.06, 1)]
    assert find_straggler(JobReport.from_dict(made_job(made_measurements(3), changing)).strategies) is None


def test_strategies_within_their_noise_are_draws() -> None:
    """Steps are compared in turn, as they were taken."""
    near = made_strategy("flat", 2, 0.01, 0.100)
    near["steps_s"] = list(reversed(near["steps_s"]))
    job = JobReport.from_dict(made_job(made_measurements(2), [made_strategy("ring", 2, 0.01, 0.0999), near]))
    cost = step_cost(job)
    assert cost
    assert [result.strategy for result in cost.draws] == ["flat"]


def test_without_probes_it_says_what_to_measure() -> None:
    """Each answer that needs a network of this machine has the command that makes one."""
    verdict = verdict_on(without_probes(made_measurements(2)))
    assert verdict.forecast is None
    for topic in (Topic.BOUND, Topic.ALGORITHM, Topic.RANKS):
        assert verdict.finding(topic).answer.startswith("Not known")
        assert verdict.finding(topic).command == "ringsim measure --ranks 2 -o measured.json"


def test_predictions_for_a_network_answer_without_probes() -> None:
    """A step of DDP on 64 ranks and on twice as many, by cap too; what is missing is asked of that network."""
    steps = [
        PredictedDdpStep(num_ranks, cap * 2**20, 0.02, exposed_s, 0.1 + exposed_s, 0.1)
        for num_ranks, cap, exposed_s in ((64, 25, 0.010), (128, 25, 0.030), (64, 100, 0.002))
    ]
    prediction = DdpPrediction(steps[0], 0.11, (steps[0], steps[2]), (steps[0], steps[1]), "mine")
    verdict = judge(RunDirectory("made", predicted={"ddp.json": prediction}))
    assert verdict.finding(Topic.BOUND).answer == (
        "A training step on 64 ranks of mine is predicted to be compute-bound: 10 ms of 110 ms (9 %) is exposed "
        "communication."
    )
    assert verdict.finding(Topic.BUCKET).answer == (
        "Set bucket_cap_mb to 100 on mine: a step is predicted to take 100 ms instead of 110 ms with torch's default "
        "caps."
    )
    assert verdict.finding(Topic.RANKS).answer == (
        "On 128 ranks of mine a step with DDP would take 130 ms instead of 110 ms."
    )
    assert "this machine" not in "".join(finding.answer for finding in verdict.findings)
    assert verdict.finding(Topic.ALGORITHM).command == "ringsim sweep --network mine --ranks 8 --csv sweep.csv"


@pytest.mark.parametrize(
    ("network", "used", "predicted_s", "answer"),
    [
        ("mine", True, 1e-3, "Not known: all measurements here were used in the calibration. Compare with "),
        ("mine", False, 0.5e-3, "Reliable for a ranking, but not for small differences: the median error of the pred"),
        ("mine", False, 1e-3, "Reliable: the median error of the predictions is 2 %."),
        ("uniform", False, 1e-3, "Reliable: the median error of the predictions is 2 %."),
        ("other", False, 1e-3, "Reliable: the median error of the predictions is 2 %. There are also predictions for "
         "other, with which no measurement here is compared."),
    ],
)  # fmt: skip
def test_reliability_follows_from_what_nothing_was_fitted_to(
    network: str, used: bool, predicted_s: float, answer: str
) -> None:
    """The errors of one network say nothing of another."""
    cell = ComparedCell("all_reduce", "nccl", 2**20, 8, predicted_s, 1.02e-3, 0.1, used)
    step = PredictedDdpStep(64, 2**20, 0.02, 0.01, 0.11, 0.1)
    contents = RunDirectory(
        "made",
        cells={"compare.json": ComparedCells("mine", (cell,))},
        predicted={"ddp.json": DdpPrediction(step, None, (), (), network)},
    )
    assert judge(contents).finding(Topic.RELIABILITY).answer.startswith(answer)


def test_a_log_says_how_much_is_synchronising() -> None:
    """Without probes it is known whether that bounds a run, though not why."""
    log = TrainingLog((LogEntry(10, 2.0, 100.0, 0.7),))
    verdict = judge(RunDirectory("made", logs={"runs/mlp": log}))
    assert verdict.finding(Topic.BOUND).answer.startswith(
        "Synchronisation: runs/mlp spends 70 % of its time on synchronisation"
    )
