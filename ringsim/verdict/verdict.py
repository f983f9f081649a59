"""`Verdict`: what a directory of measurements, predictions and training runs says, in plain words and as data."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ringsim.calibration import MISFIT, ProbeNoise, probe_noise
from ringsim.console import in_one_line
from ringsim.measurements import p95
from ringsim.units import format_size
from ringsim.verdict.choices import SlowestRank, StrategyRanking, rank_strategies, slowest_rank
from ringsim.verdict.finding import Finding, Topic, percent
from ringsim.verdict.predicted_findings import findings_without_probes
from ringsim.verdict.probe_findings import (
    algorithm_finding,
    bound_of_sizes,
    bound_of_step,
    bucket_finding,
    ranks_finding,
)
from ringsim.verdict.records import UNIFORM
from ringsim.verdict.run_directory import RunDirectory
from ringsim.verdict.subject import Forecast, Subject, find_subjects, make_forecast


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answers, and what they were derived from; pages draw both.

    subjects: all sets of probes with their networks; the first is the one that the answers go by. forecast: of that.
    """

    contents: RunDirectory
    findings: tuple[Finding, ...]
    subjects: tuple[Subject, ...] = ()
    forecast: Forecast | None = None
    ranking: StrategyRanking | None = None
    slowest: SlowestRank | None = None

    @property
    def subject(self) -> Subject | None:
        """The set of probes that the answers go by."""
        return self.subjects[0] if self.forecast else None

    def finding(self, topic: Topic) -> Finding:
        """Return the answer on a topic."""
        return next(finding for finding in self.findings if finding.topic is topic)


def judge(contents: RunDirectory) -> Verdict:
    """Return the verdict on a directory. What no prediction can be made from is added to `contents.refused`."""
    subjects = find_subjects(contents)
    while subjects:
        try:
            forecast = make_forecast(subjects[0])
        except ValueError as error:
            contents.refused[subjects[0].file] = in_one_line(str(error))
            del subjects[0]
            continue
        return _of_probes(contents, tuple(subjects), forecast)
    return Verdict(contents, (*findings_without_probes(contents), _certainty((), contents)))


def _of_probes(contents: RunDirectory, subjects: tuple[Subject, ...], forecast: Forecast) -> Verdict:
    subject = subjects[0]
    ranking = rank_strategies(subject.job) if subject.job else None
    slowest = slowest_rank(subject.job.synchronising) if subject.job else None
    bound = bound_of_step(subject, forecast, ranking, slowest) if ranking else bound_of_sizes(subject, forecast)
    findings = (
        bound,
        algorithm_finding(subject, forecast, ranking),
        bucket_finding(subject, forecast.buckets),
        ranks_finding(subject, forecast),
        _certainty(subjects, contents),
    )
    return Verdict(contents, findings, subjects, forecast, ranking, slowest)


def _certainty(subjects: Sequence[Subject], contents: RunDirectory) -> Finding:
    """Return how far to trust the predictions, from the first subject's probes and all that was compared."""
    errors, reasons = [], []
    for subject in subjects:
        known = (_compared(subject) if subject.comparison else None, _strategies(subject) if subject.job else None)
        for error, reason in filter(None, known):
            errors.append(error)
            reasons.append(reason)
    only_fitted = False
    for file, compared in contents.cells.items():
        only_fitted |= any(cell.used_in_calibration for cell in compared.cells)
        unused = [cell for cell in compared.cells if not cell.used_in_calibration]
        held_out = [abs(cell.error) for cell in unused if cell.error is not None]
        if held_out:
            errors.append(statistics.median(held_out))
            reasons.append(f"{file}: {_errors(held_out)} for collectives predicted from {compared.network}.")
    noise = probe_noise(subjects[0].measurements, subjects[0].fit) if subjects else None
    noisy = _noise(subjects[0].file, noise) if noise else ""
    answer = _answer(errors, noise, only_fitted)
    if errors and not subjects and (networks := _unchecked(contents)):
        answer += f" There are also predictions for {', '.join(networks)}, with which no measurement here is compared."
    return Finding(Topic.SURE, answer, tuple(filter(None, (noisy, *reasons))))


def _unchecked(contents: RunDirectory) -> list[str]:
    """Return the networks with a name that something was predicted or simulated for, and that no comparison is of."""
    predicted = {prediction.network for prediction in contents.predicted.values()}
    predicted |= {run.network for run in contents.simulated.values()}
    return sorted(predicted - {UNIFORM} - {compared.network for compared in contents.cells.values()})


def _answer(errors: Sequence[float], noise: ProbeNoise | None, only_fitted: bool) -> str:
    worst = max(errors, default=0.0)
    off = f"the median error of the predictions is {percent(worst)}"
    if noise and noise.too_wide:
        size = format_size(noise.probe.size_bytes)
        seen = f"; {off}" if errors else ""
        return (
            f"Not reliable: the machine was busy while messages of {size} were probed{seen}. Measure again on an idle "
            "machine."
        )
    if not errors and only_fitted:
        return (
            "Not known: all measurements here were used in the calibration. Compare with other logs: ringsim compare."
        )
    if not errors and noise is None:
        return "Not known: no prediction here has a measurement to compare with. Make some with ringsim compare."
    if not errors:
        return "Not verified: the predictions follow from the probes, and no measurement here checks them."
    return f"Reliable: {off}." if worst <= MISFIT else f"Reliable for a ranking, but not for small differences: {off}."


def _noise(file: str, noise: ProbeNoise) -> str:
    if noise.too_wide:
        return f"{file}: {noise.line()}."
    low, high = noise.predicted.off_by
    return f"{file}: the noise of the probes alone changes a prediction by {low:+.0%} to {high:+.0%} (95 % interval)."


def _compared(subject: Subject) -> tuple[float, str] | None:
    assert subject.comparison
    cases = [case for case in subject.comparison.cases if case.error is not None]
    if not cases:
        return None
    errors = [abs(case.error or 0.0) for case in cases]
    spread = statistics.median(case.spread for case in cases)
    draws = sum(abs(case.error or 0.0) <= case.spread for case in cases)
    return statistics.median(errors), (
        f"{subject.file}: {_errors(errors)} for collectives predicted from the probes; the measured times "
        f"vary by {percent(spread)} (10th to 90th percentile, median), and {draws} of the errors are within that range."
    )


def _strategies(subject: Subject) -> tuple[float, str] | None:
    assert subject.job
    results = [result for result in subject.job.synchronising if result.error is not None]
    if not results:
        return None
    errors = [abs(result.error or 0.0) for result in results]
    within = sum(result.sync_p10_p90_s[0] <= result.predicted_sync_s <= result.sync_p10_p90_s[1] for result in results)
    return statistics.median(errors), (
        f"{subject.file}: {_errors(errors)} for the synchronisation of {len(results)} strategies; {within} of the "
        "predictions lie between the 10th and the 90th percentile of the steps."
    )


def _errors(errors: Sequence[float]) -> str:
    return f"the median error is {percent(statistics.median(errors))}, 95 % are below {percent(p95(errors))}"
