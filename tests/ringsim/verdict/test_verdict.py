"""Verdicts on measurements and jobs that were made up, so that the right answer is known."""

import re
from unittest.mock import patch

import pytest

from ringsim.calibration.noise import PredictedTime
from ringsim.measurements.measurements import Measurements
from ringsim.network.spec import SlowLink
from ringsim.verdict.bound import all_reduce_s
from ringsim.verdict.choices import AlgorithmChoice, rank_strategies, scatter, slowest_rank
from ringsim.verdict.finding import Topic, by_size, percent
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
from ringsim.verdict.verdict import Verdict, judge
from tests.ringsim.made_probes import hosts, made_measurements, one_host, without_probes
from tests.ringsim.verdict.made_jobs import made_job, made_strategy

pytestmark = pytest.mark.usefixtures("few_draws")

SLOW = tuple(SlowLink(f"host2.nic0.{way}", slowdown=5.0) for way in ("out", "in"))


def verdict_on(measurements: Measurements) -> Verdict:
    """Of a directory with that file alone."""
    return judge(RunDirectory("made", measurements={"m.json": measurements}))


def verdict_on_job(*strategies: dict[str, object], measurements: Measurements | None = None) -> Verdict:
    """Of a directory with the report of a strategy comparison alone."""
    data = made_job(measurements or made_measurements(3, 8, one_host(8)), list(strategies))
    return judge(RunDirectory("made", jobs={"report.json": JobReport.from_dict(data)}))


@pytest.mark.parametrize(
    ("measurements", "bound"),
    [
        (made_measurements(2, 8, one_host(8, latency_s=50e-3)), "latency"),
        (made_measurements(8, 1, one_host(1, latency_s=0.0)), "cores"),
    ],
    ids=["latency", "cores"],
)
def test_one_bound_at_every_size(measurements: Measurements, bound: str) -> None:
    """It is said of all sizes."""
    answer = verdict_on(measurements).finding(Topic.BOUND).answer
    ranks = measurements.num_ranks
    assert answer == f"An all_reduce on {ranks} ranks is bound by {bound} at all simulated sizes."


def test_bandwidth_bounds_long_messages() -> None:
    """And latency short ones, as on every network."""
    answer = verdict_on(made_measurements(4, 8, hosts(bandwidth=2e7))).finding(Topic.BOUND).answer
    assert answer == "An all_reduce on 4 ranks is bound by latency up to 4 KiB and by bandwidth from 16 KiB on."


def test_a_straggler_is_named_and_taken_away() -> None:
    """The link with its name, and the time without it, which is the simulator's on the network without it."""
    finding = verdict_on(made_measurements(4, 8, hosts(slow=SLOW))).finding(Topic.BOUND)
    assert finding.answer.endswith("by a straggler from 16 KiB on.")
    (sentence,) = [reason for reason in finding.reasons if "slower than the others" in reason]
    assert sentence.startswith(
        "host2.nic0.out and host2.nic0.in are 5 times slower than the others: with equal speeds, 16"
    )
    without_s = all_reduce_s(hosts(), "ring", 4, 2**24)
    said = re.search(r"would take (\d+) ms instead", sentence)
    assert said
    assert float(said[1]) / 1e3 == pytest.approx(without_s, rel=0.05)


def test_twice_the_ranks_are_simulated() -> None:
    """The time is that of the true network with as many more hosts, within two digits."""
    measurements = made_measurements(4, 8, hosts())
    verdict = verdict_on(measurements)
    assert verdict.forecast
    truth_s = all_reduce_s(hosts(), "ring", 8, 2**24)
    assert verdict.forecast.scaled[1].all_reduce_s.time_s == pytest.approx(truth_s, rel=0.02)
    assert verdict.finding(Topic.RANKS).answer.startswith(
        "On 8 ranks on 8 such hosts an all_reduce of 16 MiB would take "
    )


def test_the_fastest_algorithm_is_chosen_where_it_is_sure() -> None:
    """On the true network it is not slower than any other by more than a little."""
    verdict = verdict_on(made_measurements(4, 8, hosts()))
    assert verdict.forecast
    names = list(verdict.forecast.algorithms[0].times_s)
    for choice in verdict.forecast.algorithms:
        times = {name: all_reduce_s(hosts(), name, 4, choice.size_bytes) for name in names}
        assert times[choice.chosen] < 1.1 * min(times.values())
        assert choice.times_s[choice.fastest] <= choice.times_s["ring"]
        assert choice.gain.time_s == pytest.approx(choice.times_s["ring"] / choice.times_s[choice.fastest])
    assert verdict.forecast.algorithms[0].chosen != "ring"  # which sends six messages one after the other
    assert f"use `{verdict.forecast.algorithms[0].chosen}` " in verdict.finding(Topic.ALGORITHM).answer
    gain = PredictedTime(1.2, 0.9, 1.4)
    assert AlgorithmChoice(64, {"direct": 1.0, "ring": 1.2}, gain).chosen == "ring"  # not sure
    sure = PredictedTime(1.2, 1.15, 1.4)
    assert AlgorithmChoice(64, {"direct": 1.0, "ring": 1.2}, sure).chosen == "direct"
    assert AlgorithmChoice(64, {"direct": 1.0, "ring": 1.2}, sure, least_gain=1.3).chosen == "ring"  # within errors


def test_errors_that_all_predictions_have_in_common_do_not_count() -> None:
    """Twice too long everywhere changes no order; half of them twice too long does."""
    assert scatter([2.0, 2.0, 2.0]) == 1.0
    assert scatter([1.0, 2.0, 1.0, 2.0]) == pytest.approx(2**0.5)
    assert scatter([]) == 1.0


def test_how_sure_it_is_follows_the_errors() -> None:
    """Measured as predicted; twice as long; and without collectives that could tell."""
    right = verdict_on(made_measurements(2)).finding(Topic.SURE)
    assert right.answer.startswith("Reliable: the median error of the predictions is ")
    wrong = verdict_on(made_measurements(2, slower=2.0)).finding(Topic.SURE)
    assert "the median error of the predictions is 50 %" in wrong.answer
    measurements = made_measurements(2)
    alone = Measurements(2, measurements.provenance, measurements.probes)
    assert verdict_on(alone).finding(Topic.SURE).answer.startswith("Not verified: ")


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
    assert "It does not include other waiting for late ranks" in alone.reasons[0]
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
    assert slowest_rank(report.strategies) is None
    changing = [made_strategy("ring", 3, 0.01, 0.1, 0.06, 0), made_strategy("flat", 3, 0.01, 0.1, 0.06, 1)]
    assert slowest_rank(JobReport.from_dict(made_job(made_measurements(3), changing)).strategies) is None


def test_strategies_within_their_noise_are_draws() -> None:
    """Steps are compared in turn, as they were taken."""
    near = made_strategy("flat", 2, 0.01, 0.100)
    near["steps_s"] = list(reversed(near["steps_s"]))
    job = JobReport.from_dict(made_job(made_measurements(2), [made_strategy("ring", 2, 0.01, 0.0999), near]))
    ranking = rank_strategies(job)
    assert ranking
    assert [result.strategy for result in ranking.draws] == ["flat"]


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
        PredictedDdpStep(num_ranks, cap * 2**20, 3, 0.02, exposed_s, 0.1 + exposed_s, 0.1)
        for num_ranks, cap, exposed_s in ((64, 25, 0.010), (128, 25, 0.030), (64, 100, 0.002))
    ]
    prediction = DdpPrediction("mine", steps[0], 0.11, (steps[0], steps[2]), (steps[0], steps[1]))
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
    ("used", "answer"),
    [
        (True, "Not known: all measurements here were used in the calibration."),
        (False, "Reliable for a ranking, but not for small differences: the median error of the predictions is "),
    ],
)
def test_what_a_network_was_fitted_to_does_not_say_how_sure_it_is(used: bool, answer: str) -> None:
    """It is not passed over in silence either."""
    cell = ComparedCell("all_reduce", "nccl", 2**20, 8, 1e-3, 2e-3, 0.1, used)
    verdict = judge(RunDirectory("made", cells={"compare.json": ComparedCells("mine", (cell,))}))
    assert verdict.finding(Topic.SURE).answer.startswith(answer)


@pytest.mark.parametrize(("network", "is_told"), [("mine", False), ("other", True), ("uniform", False)])
def test_predictions_for_a_network_that_nothing_was_measured_on_are_not_called_reliable(
    network: str, is_told: bool
) -> None:
    """The errors of another network say nothing of it."""
    cell = ComparedCell("all_reduce", "nccl", 2**20, 8, 1e-3, 1.01e-3, 0.1, False)
    step = PredictedDdpStep(64, 2**20, 3, 0.02, 0.01, 0.11, 0.1)
    contents = RunDirectory(
        "made",
        cells={"compare.json": ComparedCells("mine", (cell,))},
        predicted={"ddp.json": DdpPrediction(network, step, None, (), ())},
    )
    answer = judge(contents).finding(Topic.SURE).answer
    assert answer.startswith("Reliable: ")
    assert (
        answer.endswith(" There are also predictions for other, with which no measurement here is compared.") == is_told
    )


def test_one_rank_alone_is_bound_by_computing() -> None:
    """The strategy comparison on one rank has probes of nothing that is sent."""
    alone = Measurements(1, {"cores": 2})
    verdict = verdict_on_job(made_strategy("ring", 1, 0.0, 0.1), measurements=alone)
    assert verdict.finding(Topic.BOUND).answer == "Computation: a single rank does not communicate."


def test_a_log_says_how_much_is_synchronising() -> None:
    """Without probes it is known whether that bounds a run, though not why."""
    log = TrainingLog((LogEntry(10, 2.0, 100.0, 0.7),))
    verdict = judge(RunDirectory("made", logs={"runs/mlp": log}))
    assert verdict.finding(Topic.BOUND).answer.startswith(
        "Synchronisation: runs/mlp spends 70 % of its time on synchronisation"
    )


def test_a_busy_machine_is_not_trusted() -> None:
    """Whatever else the data say."""
    measurements = made_measurements(2)
    with patch("ringsim.calibration.noise.TOO_WIDE", 0.0):
        finding = verdict_on(measurements).finding(Topic.SURE)
    assert finding.answer.startswith("Not reliable: the machine was busy while messages of ")
    assert "this machine was busy: a message of " in finding.reasons[0]


def test_words() -> None:
    """Which name holds for which sizes, and shares."""
    assert by_size([(1, "a")]) == "a"
    assert by_size([(1024, "a"), (4096, "b"), (2**14, "b"), (2**16, "a")]) == (
        "a up to 1 KiB, b from 4 KiB to 16 KiB and a from 64 KiB on"
    )
    assert [percent(share) for share in (0.123, 0.005, 1e-9, 0.0)] == ["12 %", "0.5 %", "0 %", "0 %"]
