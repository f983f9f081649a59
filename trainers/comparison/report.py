"""The report of the strategy comparison: predictions, measurements, and the files made of them."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from ringsim.calibration import busy_warning
from ringsim.files import atomic_file
from ringsim.measurements import Measurements
from ringsim.network import Network
from ringsim.report import report_page
from ringsim.text_table import align_columns, wrap_text
from ringsim.training_step import StepProfile
from ringsim.units import plural
from ringsim.verdict import (
    ComparedTraining,
    JobReport,
    RunDirectory,
    StrategyResult,
    TrainingComparison,
    TrainingRun,
    Verdict,
    judge,
)
from trainers.checkpoints.checkpoint import Checkpoint, save_checkpoint
from trainers.comparison import COMPARISON, ONE_PROCESS, RESULTS, JobConfig
from trainers.loop.batches import describe_batch
from trainers.loop.meter import Memory
from trainers.loop.train_step import StepMoments, StepResult
from trainers.strategies import steps_between_averages

MAX_WARM_UP_STEPS = 5  # not counted: DDP rebuilds its buckets, buffers are touched for the first time
LAST_LOSSES = 10  # the final loss is the mean over as many steps; a single batch is too noisy


class Column(NamedTuple):
    """A table column: its heading in two lines, and the row's attribute that it shows."""

    heading: str
    unit: str
    attribute: str
    form: str = ""
    scale: float = 1.0

    def cell(self, row: object) -> str:
        value = attrgetter(self.attribute)(row)
        return "-" if value is None else format(value * self.scale if self.form else value, self.form)


TIMES = (
    Column("strategy", "", "strategy"),
    Column("predicted", "sync ms", "predicted_sync_s", ".2f", 1e3),
    Column("measured", "sync ms", "measured_sync_s", ".2f", 1e3),
    Column("error", "", "error", "+.0%"),
    Column("predicted", "step ms", "predicted_step_s", ".1f", 1e3),
    Column("step", "ms", "step_s", ".1f", 1e3),
    Column("error", "", "step_error", "+.0%"),
    Column("loss", "", "final_loss", ".3f"),
)
_SIZES = {
    "predicted": "predicted.total", "held": "held.total", "params": "held.parameters", "grads": "held.gradients",
    "optim": "held.optimizer", "buffers": "held.vectors", "activ": "held.activations",
}  # fmt: skip
MEMORY = (
    Column("memory", "per rank", "strategy"),
    *(Column(heading, "MiB", attribute, ".2f", 2**-20) for heading, attribute in _SIZES.items()),
)
COMPARED = (
    Column("compared with", ONE_PROCESS, "run.name"),
    Column("batch", "ms", "run.batch_s", ".1f", 1e3),
    Column("speed-up", "", "speed_up", ".2f"),
    Column("efficiency", "", "efficiency", ".0%"),
    Column("exposed", "", "run.sync_share", ".0%"),
    Column("loss off", "", "loss_difference", ".1e"),
    Column("grad off", "", "run.gradient_difference", ".1e"),
)


class StepPrediction(NamedTuple):
    """Mean times over a period.

    sync_s: from the last gradient on, with gathering parameters. step_s: the whole step.
    """

    sync_s: float
    step_s: float


@dataclass(slots=True, eq=False)
class RankNotes:
    """One rank's record of a strategy.

    fingerprint, memory: after the last step. gradient_difference: of the first step from one process, relative to the
    largest gradient.
    """

    results: list[StepResult] = field(default_factory=list)
    fingerprint: str = ""
    memory: Memory | None = None
    gradient_difference: float | None = None

    @property
    def losses(self) -> list[float]:
        return [result.loss for result in self.results]


def make_report(
    config: JobConfig,
    measurements: Measurements,
    network: Network,
    profile: StepProfile,
    num_parameters: int,
    predicted: tuple[Mapping[str, StepPrediction], Mapping[str, Memory]],
    notes: Mapping[str, Sequence[RankNotes]],
) -> JobReport:
    """Return the report. profile: without synchronisation. notes: by strategy and rank."""
    num_samples = config.step.batches(config.task, 0, measurements.num_ranks).num_samples(0)
    tokens = num_samples * getattr(config.task, "tokens_per_sample", 0)
    times, memory = predicted
    return JobReport(
        num_ranks=measurements.num_ranks,
        num_parameters=num_parameters,
        measurements=measurements,
        strategies=tuple(summarise(name, times[name], memory[name], ranks, tokens) for name, ranks in notes.items()),
        profile=profile,
        task=config.task.config(),
        train=config.training(),
        network=network.as_dict(),
    )


def summarise(
    name: str, predicted: StepPrediction, predicted_memory: Memory, ranks: Sequence[RankNotes], tokens: int
) -> StrategyResult:
    """Return one strategy's row from every rank's notes. tokens: of a step of all ranks, or 0."""
    losses, period = ranks[0].losses, steps_between_averages(name)
    steps = _counted(ranks)
    # The last rank to finish its backward pass waits for nobody: its time is the synchronisation alone.
    sync_s = over_periods([min(moments.sync_s for moments in step) for step in steps], period)
    steps_s = _steps_s(steps, period)
    step_s = statistics.median(steps_s)
    memory = max((rank.memory for rank in ranks if rank.memory is not None), key=lambda held: held.total)
    return StrategyResult(
        strategy=name,
        predicted_sync_s=predicted.sync_s,
        measured_sync_s=statistics.median(sync_s),
        predicted_step_s=predicted.step_s,
        step_s=step_s,
        tokens_per_s=tokens / step_s if tokens else None,
        final_loss=statistics.mean(losses[-LAST_LOSSES:]),
        parameters_identical=len({rank.fingerprint for rank in ranks}) == 1,
        sync_s=tuple(sync_s),
        steps_s=tuple(steps_s),
        losses=tuple(losses),
        # The rank that spends least here is the one that the others wait for.
        rank_sync_s=tuple(
            statistics.median(over_periods([moments.sync_s for moments in of_rank], period))
            for of_rank in zip(*steps, strict=True)
        ),
        predicted_memory_bytes=predicted_memory._asdict(),
        memory_bytes=memory._asdict(),
    )


def _counted(ranks: Sequence[RankNotes]) -> list[tuple[StepMoments, ...]]:
    steps = list(zip(*([result.moments for result in rank.results] for rank in ranks), strict=True))
    return steps[min(MAX_WARM_UP_STEPS, len(steps) // 2) :]


def _steps_s(steps: Sequence[Sequence[StepMoments]], period: int) -> list[float]:
    """Return each step's mean time over the ranks: a rank that begins early waits longer."""
    return over_periods([statistics.mean(moments.step_s for moments in step) for step in steps], period)


def over_periods(times_s: Sequence[float], period: int) -> list[float]:
    """Return each step's mean time over `period` steps; the last period includes the rest."""
    num_periods = max(len(times_s) // period, 1)
    means = [statistics.mean(times_s[index * period : (index + 1) * period]) for index in range(num_periods)]
    return [means[min(index // period, num_periods - 1)] for index in range(len(times_s))]


def compare_with_one(
    one: RankNotes, notes: Mapping[str, Sequence[RankNotes]], provenance: Mapping[str, Any]
) -> TrainingComparison:
    """Compare one process with each strategy. notes: by strategy and rank."""
    first, *others = (_run(name, ranks) for name, ranks in {ONE_PROCESS: [one], **notes}.items())
    rows = []
    for run in (first, *others):
        speed_up = first.batch_s / run.batch_s
        loss_difference = max(abs(a - b) for a, b in zip(first.losses, run.losses, strict=True))
        rows.append(ComparedTraining(run, speed_up, speed_up / run.num_ranks, loss_difference))
    return TrainingComparison(tuple(rows), dict(provenance))


def _run(name: str, ranks: Sequence[RankNotes]) -> TrainingRun:
    steps = _counted(ranks)
    all_moments = [moments for step in steps for moments in step]
    return TrainingRun(
        name=name,
        num_ranks=len(ranks),
        batch_s=statistics.median(_steps_s(steps, 1 if name == ONE_PROCESS else steps_between_averages(name))),
        sync_share=sum(m.communication_s for m in all_moments) / sum(m.step_s for m in all_moments),
        losses=tuple(ranks[0].losses),
        gradient_difference=ranks[0].gradient_difference,
    )


class _MemoryRow(NamedTuple):
    strategy: str
    predicted: Memory
    held: Memory


def format_report(report: JobReport, comparison: TrainingComparison | None = None) -> str:
    """Return the tables of strategies and memory, the comparison with one process, and footnotes."""
    memory = [
        _MemoryRow(result.strategy, Memory(**result.predicted_memory_bytes), Memory(**result.memory_bytes))
        for result in report.strategies
    ]
    lines = _table(TIMES, report.strategies) + _table(MEMORY, memory)
    if comparison:
        lines += _table(COMPARED, comparison.runs)
    return "\n".join([*lines, *(wrap_text(note, indent="  ") for note in _footnotes(report, comparison))])


def _table(columns: Sequence[Column], rows: Sequence[object]) -> list[str]:
    head = [column.heading for column in columns], [column.unit for column in columns]
    return [*align_columns([*head, *([column.cell(row) for column in columns] for row in rows)], "lr"), ""]


def _footnotes(report: JobReport, comparison: object) -> Iterator[str]:
    num_ranks, where = report.num_ranks, report.provenance
    yield (
        "sync: gradient synchronisation of one step, from the last gradient's being ready; measured: the median of "
        f"{len(report.strategies[0].sync_s)} steps, as the last rank to arrive sees it; predicted from point-to-point "
        "probes, and from steps that were recorded without sending."
    )
    if comparison:
        yield (
            "exposed: the share of the time in which a rank communicates or waits for others; off: the largest "
            f"difference from {ONE_PROCESS}, which has the batch of all ranks: of the loss of a step, and of the "
            "gradients of the first step, relative to the largest gradient."
        )
    drifting = [result.strategy for result in report.strategies if not result.parameters_identical]
    if differing := [name for name in drifting if name != "none"]:
        yield f"RANKS DIFFER: the parameters of {', '.join(differing)} are not bit-identical on all ranks."
    else:
        yield f"with every strategy{' except `none`' if drifting else ''} all ranks hold bit-identical parameters."
    yield (
        f"{plural(num_ranks, 'rank')}, {describe_batch(report.train['batch_size'] * num_ranks, num_ranks)}, "
        f"{report.num_parameters:,} parameters; {where['machine']}, {where['cores']} cores, torch {where['torch']}, "
        f"OMP_NUM_THREADS={where['OMP_NUM_THREADS']}, {where['date']}."
    )


@dataclass(frozen=True, slots=True)
class JobResult:
    """The comparison's result on rank 0. comparison: with one process, if requested."""

    report: JobReport
    comparison: TrainingComparison | None
    checkpoint: Checkpoint | None = None

    def as_dict(self) -> dict[str, Any]:
        report = self.report.as_dict()
        return {**report, "comparison": self.comparison.as_dict()} if self.comparison else report

    def verdict(self) -> Verdict:
        """Return the verdict of `ringsim report` on the job's files; takes some seconds."""
        comparisons = {COMPARISON: self.comparison} if self.comparison else {}
        return judge(RunDirectory("", jobs={RESULTS[-1]: self.report}, comparisons=comparisons))

    def save(self, verdict: Verdict, output: Path, style: str | None) -> list[Path]:
        """Write the results to `output`, report.json last; return the files. Raises OSError."""
        from ringsim.report.plots.style import save_figure  # noqa: PLC0415  matplotlib, on rank 0 alone
        from trainers.comparison.report_plot import draw_memory, draw_report  # noqa: PLC0415

        files = [output / name for name in RESULTS]
        assert self.checkpoint is not None
        save_checkpoint(files[0], self.checkpoint)
        save_figure(lambda: draw_report(self.report, self.comparison), files[1], style)
        save_figure(lambda: draw_memory(self.report), files[2], style)
        with atomic_file(files[3]) as file:
            file.write(report_page(verdict, f"The strategy comparison on {self.report.num_ranks} ranks").encode())
        if self.comparison:
            files.insert(-1, output / COMPARISON)
            self.comparison.save(output / COMPARISON)
        else:
            (output / COMPARISON).unlink(missing_ok=True)  # of an earlier run
        self.report.save(files[-1])
        return files


def busy_lines(verdict: Verdict) -> list[str]:
    """Return a warning for each subject whose probes lie too far apart for predictions."""
    return [line for subject in verdict.subjects if (line := busy_warning(subject.measurements, subject.fit))]
