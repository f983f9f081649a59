"""`Verdict`: what a directory of measurements, predictions and training runs says, in plain words and as data."""

from dataclasses import dataclass

from ringsim.console import in_one_line
from ringsim.units import format_size
from ringsim.verdict.bound_finding import HALF, bound_of_sizes, bound_of_step
from ringsim.verdict.certainty import certainty
from ringsim.verdict.choice_findings import algorithm_finding, bucket_finding, ranks_finding
from ringsim.verdict.finding import Finding, Topic, by_size, percent
from ringsim.verdict.run_directory import RunDirectory
from ringsim.verdict.strategies import SlowestRank, StrategyRanking, rank_strategies, slowest_rank
from ringsim.verdict.subject import Forecast, Subject, find_subjects, make_forecast

MEASURE = "ringsim measure --ranks 2 -o measured.json"
TRAIN = "torchrun --nproc-per-node 2 -m trainers ring --output report"


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
        """Returns the answer on a topic."""
        return next(finding for finding in self.findings if finding.topic is topic)


def judge(contents: RunDirectory) -> Verdict:
    """Returns the verdict on a directory. What no prediction can be made from is added to `contents.refused`."""
    subjects = find_subjects(contents)
    while subjects:
        try:
            forecast = make_forecast(subjects[0])
        except ValueError as error:
            contents.refused[subjects[0].file] = in_one_line(str(error))
            del subjects[0]
            continue
        return _of_probes(contents, tuple(subjects), forecast)
    return Verdict(contents, _without_probes(contents))


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


def _without_probes(contents: RunDirectory) -> tuple[Finding, ...]:
    """What can be said without a network of this machine, and how to get one."""
    unknown = "Not known: no probes of this machine are here, from which to predict it."
    return (
        _bound_of_runs(contents),
        _algorithm_of_sweeps(contents),
        Finding(Topic.BUCKET, unknown, (), TRAIN),
        Finding(Topic.RANKS, unknown, (), MEASURE),
        certainty((), contents),
    )


def _bound_of_runs(contents: RunDirectory) -> Finding:
    """How much of their time training runs spend on exposed communication, as their logs say."""
    shares = {}
    for folder, log in contents.logs.items():
        known = [entry.sync_share for entry in log.entries if entry.sync_share is not None]
        if known:
            shares[folder] = known[-1]
    for file, comparison in contents.comparisons.items():
        shares |= {f"{file}, {run.name}": run.sync_share for run in comparison.runs if run.num_ranks > 1}
    if not shares and any(job.num_ranks == 1 for job in contents.jobs.values()):
        return Finding(Topic.BOUND, "Computing: one rank has nobody to synchronise with.", (), TRAIN)
    if not shares:
        return Finding(Topic.BOUND, "Not known: no probes of this machine and no training run are here.", (), MEASURE)
    name, share = max(shares.items(), key=lambda item: item[1])
    spends = f"spends {percent(share)} of its time synchronising or waiting for other ranks"
    if share < HALF:
        answer = f"Computing: of the training runs here {name} waits most, and it {spends}."
    else:
        answer = f"Synchronising: {name} {spends}. What bounds that needs probes."
    taken = f"Taken from the logs of {len(shares)} run{'s' * (len(shares) != 1)}."
    return Finding(Topic.BOUND, answer, (taken,), MEASURE)


def _algorithm_of_sweeps(contents: RunDirectory) -> Finding:
    """Who is fastest in the sweeps, which are of some network, not of this machine's."""
    reasons = []
    for file, sweep in contents.sweeps.items():
        winners, most = sweep.winners(), max(sweep.ranks)
        for network in sweep.networks:
            words = [
                (size, f"`{winners[network, most, size].cell.algorithm}`")
                for size in sweep.sizes_bytes
                if (network, most, size) in winners
            ]
            if words:
                sizes = f"{format_size(words[0][0])} to {format_size(words[-1][0])}"
                reasons.append(f"{file}: on {network} with {most} ranks, of {sizes}: {by_size(words)}.")
    if not reasons:
        return Finding(Topic.ALGORITHM, "Not known: no probes of this machine are here.", (), MEASURE)
    answer = "On the networks of the sweeps, which need not be this machine's, the fastest are named below."
    return Finding(Topic.ALGORITHM, answer, tuple(reasons), MEASURE)
