"""`Verdict`: what a directory of measurements, predictions and training runs says, in plain words and as data."""

from dataclasses import dataclass

from ringsim.console import in_one_line
from ringsim.verdict.bound_finding import bound_of_sizes, bound_of_step
from ringsim.verdict.certainty import certainty
from ringsim.verdict.choice_findings import algorithm_finding, bucket_finding, ranks_finding
from ringsim.verdict.finding import Finding, Topic
from ringsim.verdict.predicted_findings import findings_without_probes
from ringsim.verdict.run_directory import RunDirectory
from ringsim.verdict.strategies import SlowestRank, StrategyRanking, rank_strategies, slowest_rank
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
    return Verdict(contents, (*findings_without_probes(contents), certainty((), contents)))


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
        certainty(subjects, contents),
    )
    return Verdict(contents, findings, subjects, forecast, ranking, slowest)
