"""`Subject`: one set of probes with the network fitted to it, which the verdict's predictions are made from."""

import statistics
from dataclasses import dataclass
from pathlib import Path

from ringsim.calibration import (
    Comparison,
    ProbeFit,
    calibrate,
    cases_of_measurements,
    compare_measurements,
    num_hosts,
)
from ringsim.console import in_one_line
from ringsim.measurements import Measurements, p10_p90
from ringsim.training_step import StepProfile
from ringsim.verdict.bound import Attribution, attribute
from ringsim.verdict.choices import (
    AlgorithmChoice,
    BucketChoice,
    ScaledTime,
    choose_algorithms,
    choose_buckets,
    scale_ranks,
    scatter,
)
from ringsim.verdict.records import JobReport
from ringsim.verdict.run_directory import RunDirectory

SMALLEST = 2**10  # of the sizes in tables and pictures
MOST_SIZES = 10
MOST_ATTRIBUTED = 32  # ranks; with more a page would take minutes
MAX_FITS = 16  # of a directory with many files; each takes a second


@dataclass(frozen=True, slots=True)
class Subject:
    """A file with probes.

    size_bytes: of the all_reduce that the verdict is about. job: the strategy comparison that made them, if one did.
    """

    file: str
    measurements: Measurements
    fit: ProbeFit
    size_bytes: int
    job: JobReport | None = None
    profile: StepProfile | None = None
    comparison: Comparison | None = None

    @property
    def num_ranks(self) -> int:
        """The number of ranks that were probed."""
        return self.measurements.num_ranks


@dataclass(frozen=True, slots=True)
class Forecast:
    """All that is simulated on the fitted network of a subject."""

    attributions: tuple[Attribution, ...]
    algorithms: tuple[AlgorithmChoice, ...]
    buckets: BucketChoice | None
    scaled: tuple[ScaledTime, ...]

    def at(self, size_bytes: int) -> Attribution:
        """Return what the time of that size is due to."""
        return next(a for a in self.attributions if a.size_bytes == size_bytes)


def make_forecast(subject: Subject) -> Forecast:
    """Return the predictions for a subject. Raises ValueError for what its network cannot hold."""
    ranks, fit = subject.num_ranks, subject.fit
    if ranks > MOST_ATTRIBUTED:
        raise ValueError(f"{ranks} ranks: a report makes predictions for up to {MOST_ATTRIBUTED}")
    sizes, least_gain = _sizes(subject), max(scatter(_ratios(subject)), 1 + _half_spread(subject.measurements))
    algorithms = choose_algorithms(fit, ranks, sizes, least_gain)
    return Forecast(
        tuple(attribute(fit.cluster, ranks, size) for size in sizes),
        tuple(algorithms),
        choose_buckets(fit, subject.profile, ranks, least_gain) if subject.profile else None,
        tuple(scale_ranks(fit, ranks, subject.size_bytes, subject.profile)),
    )


def _sizes(subject: Subject) -> list[int]:
    """Powers of four, or of more, from SMALLEST up to the size that the verdict is about, and that."""
    last, factor = subject.size_bytes, 4
    while SMALLEST * factor**MOST_SIZES < last:
        factor *= 4
    sizes = {SMALLEST * factor**power for power in range(MOST_SIZES)}
    return sorted({size for size in sizes if size < last} | {last})


def _half_spread(measurements: Measurements) -> float:
    """Return how far the blocks of a probe lie to either side of its median; a smaller gain would not be seen."""
    ends = [(p10_p90(probe.times_s), probe.median_s) for probe in measurements.probes_of("shift")]
    return statistics.median([(high_s - low_s) / median_s / 2 for (low_s, high_s), median_s in ends] or [0.0])


def _ratios(subject: Subject) -> list[float]:
    """Predicted over measured, of collectives and of strategies' synchronisation; else of the probes themselves."""
    cases = subject.comparison.cases if subject.comparison else ()
    ratios = [1 + case.error for case in cases if case.error is not None]
    for result in subject.job.synchronising if subject.job else ():
        if result.error is not None:
            ratios.append(result.predicted_sync_s / result.measured_sync_s)
    return ratios or [1 + residual for _, residual in subject.fit.residuals]


def find_subjects(contents: RunDirectory) -> list[Subject]:
    """Return a subject for each set of probes that a network can be fitted to, the one to go by first.

    That is the strategy comparison's, since it also knows the training step; of several the latest. What cannot be
    fitted is added to `contents.refused`.
    """
    given: list[tuple[str, Measurements, JobReport | None]] = [
        (file, job.measurements, job) for file, job in contents.jobs.items()
    ]
    given += [(file, measurements, None) for file, measurements in contents.measurements.items()]
    given.sort(key=lambda entry: (entry[2] is not None, str(entry[1].provenance.get("date", ""))), reverse=True)
    subjects = []
    for file, measurements, job in given[:MAX_FITS]:
        if measurements.num_ranks == 1 or not measurements.probes:
            continue
        try:
            subjects.append(_subject(file, measurements, job, contents))
        except ValueError as error:
            contents.refused[file] = in_one_line(f"no network can be fitted to it: {error}")
    return subjects


def _subject(file: str, measurements: Measurements, job: JobReport | None, contents: RunDirectory) -> Subject:
    fit = calibrate(measurements, Path(file).stem, file=Path(file).name)
    profile = job.profile if job else None
    return Subject(
        file,
        measurements,
        fit,
        _size_of_interest(measurements, job),
        job,
        profile or next(iter(contents.profiles.values()), None),
        _compare(file, measurements, fit) if measurements.collectives else None,
    )


def _size_of_interest(measurements: Measurements, job: JobReport | None) -> int:
    """Return the bytes of the gradients, else the largest tensor timed, or that the longest message is cut from."""
    if job:
        return job.gradient_bytes
    messages = [probe.size_bytes for probe in measurements.probes_of("shift")]
    timed = [times.size_bytes for times in measurements.collectives]
    return max(timed, default=max(messages, default=SMALLEST) * measurements.num_ranks)


def _compare(file: str, measurements: Measurements, fit: ProbeFit) -> Comparison:
    return compare_measurements(cases_of_measurements(measurements, num_hosts(measurements), file), fit.cluster)
