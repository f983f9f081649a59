"""The report of the strategy comparison: predictions and measurements of each strategy, and the files made of them."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ringsim.calibration import busy_warning
from ringsim.files import atomic_file, save_json
from ringsim.measurements import Measurements
from ringsim.network import Cluster
from ringsim.report import report_page
from ringsim.text_table import align_columns, wrap_text
from ringsim.training_step import StepProfile
from ringsim.units import plural
from ringsim.verdict import JobReport, RunDirectory, StrategyResult, TrainingComparison, Verdict, judge
from trainers.checkpoints.checkpoint import Checkpoint, save_checkpoint
from trainers.comparison import COMPARISON, ONE_PROCESS, RESULTS, JobConfig
from trainers.loop.batches import describe_batch
from trainers.loop.meter import Memory
from trainers.loop.train_step import StepMoments, StepResult
from trainers.strategies import steps_between_averages

MAX_WARM_UP_STEPS = 5  # not counted: DDP rebuilds its buckets, buffers are touched for the first time
LAST_LOSSES = 10  # the final loss is the mean over as many steps; a single batch is too noisy

Report = dict[str, Any]


class Column(NamedTuple):
    """A column of a table: its heading in two lines, and how a row's value of that name is written."""

    heading: str
    unit: str
    key: str
    form: str = ""
    scale: float = 1.0

    def cell(self, row: Mapping[str, Any]) -> str:
        """Return the text of a cell; "-" for a value that there is not."""
        value = row[self.key]
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
_MIB = 2**-20
_SIZES = {
    "predicted": "predicted", "held": "held", "params": "parameters", "grads": "gradients", "optim": "optimizer",
    "buffers": "vectors", "activ": "activations",
}  # fmt: skip
MEMORY = (
    Column("memory", "per rank", "strategy"),
    *(Column(heading, "MiB", key, ".2f", _MIB) for heading, key in _SIZES.items()),
)
COMPARED = (
    Column("compared with", ONE_PROCESS, "name"),
    Column("batch", "ms", "batch_s", ".1f", 1e3),
    Column("speed-up", "", "speed_up", ".2f"),
    Column("efficiency", "", "efficiency", ".0%"),
    Column("exposed", "", "sync_share", ".0%"),
    Column("loss off", "", "loss_difference", ".1e"),
    Column("grad off", "", "gradient_difference", ".1e"),
)


class StepPrediction(NamedTuple):
    """sync_s: from the last gradient's being ready, with what gathers parameters. step_s: the whole step.

    Of strategies that communicate every few steps only, the mean of these steps.
    """

    sync_s: float
    step_s: float


@dataclass(slots=True, eq=False)
class RankNotes:
    """One rank's record of a strategy; the losses are of the whole batch, the same on all ranks.

    fingerprint: of the parameters after the last step. memory: what this rank held after it.
    gradient_difference: how far the gradients of the first step were from those of one process, relative to the
    largest; None if that is not known.
    """

    results: list[StepResult] = field(default_factory=list)
    fingerprint: str = ""
    memory: Memory | None = None
    gradient_difference: float | None = None

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return [result.loss for result in self.results]


def make_report(
    config: JobConfig,
    measurements: Measurements,
    network: Cluster,
    profile: StepProfile,
    num_parameters: int,
    predicted: tuple[Mapping[str, StepPrediction], Mapping[str, Memory]],
    notes: Mapping[str, Sequence[RankNotes]],
) -> Report:
    """Return the report for JSON. profile: of a step without synchronisation. notes: of every rank, by strategy."""
    num_samples = config.step.batches(config.task, 0, measurements.num_ranks).num_samples(0)
    tokens = num_samples * getattr(config.task, "tokens_per_sample", 0)
    times, memory = predicted
    results = [summarise(name, times[name], memory[name], ranks, tokens) for name, ranks in notes.items()]
    return JobReport.FORMAT.write(
        {
            "num_ranks": measurements.num_ranks,
            "num_parameters": num_parameters,
            "task": config.task.config(),
            "train": config.training(),
            "network": network.as_dict(),
            "measurements": measurements.as_dict(),
            "profile": profile.as_dict(),
            "strategies": results,
        }
    )


def summarise(
    name: str, predicted: StepPrediction, predicted_memory: Memory, ranks: Sequence[RankNotes], tokens: int
) -> Report:
    """Return one strategy's row of the report, from every rank's notes.

    tokens: of a step, of all ranks together; 0 if the task has none.
    """
    losses, period = ranks[0].losses, steps_between_averages(name)
    steps = _counted(ranks)
    # Whoever is last to finish its backward pass waits for nobody: its time is the synchronisation itself,
    # the others' includes their waiting for it.
    sync_s = over_periods([min(moments.sync_s for moments in step) for step in steps], period)
    step_s = _steps_s(steps, period)
    measured_step_s = statistics.median(step_s)
    memory = max((rank.memory for rank in ranks if rank.memory is not None), key=lambda held: held.total)
    result = StrategyResult(
        strategy=name,
        predicted_sync_s=predicted.sync_s,
        measured_sync_s=statistics.median(sync_s),
        predicted_step_s=predicted.step_s,
        step_s=measured_step_s,
        tokens_per_s=tokens / measured_step_s if tokens else None,
        final_loss=statistics.mean(losses[-LAST_LOSSES:]),
        parameters_identical=len({rank.fingerprint for rank in ranks}) == 1,
        sync_s=tuple(sync_s),
        steps_s=tuple(step_s),
        losses=tuple(losses),
        # Whoever comes last waits for nobody: the rank that spends least here is the one that the others wait for.
        rank_sync_s=tuple(
            statistics.median(over_periods([moments.sync_s for moments in of_rank], period))
            for of_rank in zip(*steps, strict=True)
        ),
    )
    held = {"predicted_memory_bytes": predicted_memory._asdict(), "memory_bytes": memory._asdict()}
    return {**result.as_dict(), **held}


def _counted(ranks: Sequence[RankNotes]) -> list[tuple[StepMoments, ...]]:
    """Return the steps that count, without the first ones, each as all ranks took it."""
    steps = list(zip(*([result.moments for result in rank.results] for rank in ranks), strict=True))
    return steps[min(MAX_WARM_UP_STEPS, len(steps) // 2) :]


def _steps_s(steps: Sequence[Sequence[StepMoments]], period: int) -> list[float]:
    """Return the time of each step, the mean over the ranks.

    A rank begins a step when its last one ends: whoever begins early waits longer, so that only means add up to what
    all steps take.
    """
    return over_periods([statistics.mean(moments.step_s for moments in step) for step in steps], period)


def over_periods(times_s: Sequence[float], period: int) -> list[float]:
    """Return each step's time, or of steps of which one in `period` communicates, the mean over the period.

    The steps after the last whole period get the mean of that.
    """
    num_periods = max(len(times_s) // period, 1)
    means = [statistics.mean(times_s[index * period : (index + 1) * period]) for index in range(num_periods)]
    return [means[min(index // period, num_periods - 1)] for index in range(len(times_s))]


def compare_with_one(
    one: RankNotes, notes: Mapping[str, Sequence[RankNotes]], provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the comparison of one process with each strategy for JSON. notes: of every rank, by strategy."""
    runs = [_run(name, ranks) for name, ranks in {ONE_PROCESS: [one], **notes}.items()]
    rows = [
        {
            "run": run,
            "speed_up": (speed_up := runs[0]["batch_s"] / run["batch_s"]),
            "efficiency": speed_up / run["num_ranks"],
            "loss_difference": max(abs(a - b) for a, b in zip(one.losses, run["losses"], strict=True)),
        }
        for run in runs
    ]
    return TrainingComparison.FORMAT.write({"provenance": provenance, "runs": rows})


def _run(name: str, ranks: Sequence[RankNotes]) -> dict[str, Any]:
    steps = _counted(ranks)
    period = 1 if name == ONE_PROCESS else steps_between_averages(name)
    return {
        "name": name,
        "num_ranks": len(ranks),
        "losses": ranks[0].losses,
        "batch_s": statistics.median(_steps_s(steps, period)),
        "sync_share": sum(m.communication_s for step in steps for m in step)
        / sum(m.step_s for step in steps for m in step),
        "gradient_difference": ranks[0].gradient_difference,
    }


def format_report(report: Report, comparison: Mapping[str, Any] | None = None) -> str:
    """Return the table of strategies, that of their memory, the comparison with one process, and footnotes."""
    results = report["strategies"]
    lines = _table(TIMES, results) + _table(MEMORY, map(_memory_row, results))
    if comparison:
        lines += _table(COMPARED, ({**row, **row["run"]} for row in comparison["runs"]))
    return "\n".join([*lines, *(wrap_text(note, indent="  ") for note in _footnotes(report, comparison))])


def _table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    head = [column.heading for column in columns], [column.unit for column in columns]
    return [*align_columns([*head, *([column.cell(row) for column in columns] for row in rows)], "lr"), ""]


def _memory_row(result: Report) -> dict[str, Any]:
    predicted, held = result["predicted_memory_bytes"], result["memory_bytes"]
    return {**result, **held, "predicted": sum(predicted.values()), "held": sum(held.values())}


def _footnotes(report: Report, comparison: object) -> Iterator[str]:
    results, where = report["strategies"], report["measurements"]["provenance"]
    num_ranks = report["num_ranks"]
    yield (
        "sync: gradient synchronisation of one step, from the last gradient's being ready; measured: the median of "
        f"{results[0]['steps_measured']} steps, as the last rank to arrive sees it; predicted from point-to-point "
        "probes, and from steps that were recorded without sending."
    )
    if comparison:
        yield (
            "exposed: the share of the time in which a rank communicates or waits for others; off: the largest "
            f"difference from {ONE_PROCESS}, which has the batch of all ranks: of the loss of a step, and of the "
            "gradients of the first step, relative to the largest gradient."
        )
    drifting = [result["strategy"] for result in results if not result["parameters_identical"]]
    if differing := [name for name in drifting if name != "none"]:
        yield f"RANKS DIFFER: the parameters of {', '.join(differing)} are not bit-identical on all ranks."
    else:
        yield f"with every strategy{' except `none`' if drifting else ''} all ranks hold bit-identical parameters."
    yield (
        f"{plural(num_ranks, 'rank')}, {describe_batch(report['train']['batch_size'] * num_ranks, num_ranks)}, "
        f"{report['num_parameters']:,} parameters; {where['machine']}, {where['cores']} cores, torch {where['torch']}, "
        f"OMP_NUM_THREADS={where['OMP_NUM_THREADS']}, {where['date']}."
    )


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of the strategy comparison on rank 0. comparison: with one process, for JSON, if it was asked for."""

    report: Report
    comparison: dict[str, Any] | None
    checkpoint: Checkpoint | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return report and comparison for JSON."""
        return {**self.report, "comparison": self.comparison} if self.comparison else self.report

    def verdict(self) -> Verdict:
        """Return the verdict, as `ringsim report` finds it in the files of the job; takes some seconds."""
        comparisons = {COMPARISON: TrainingComparison.from_dict(self.comparison)} if self.comparison else {}
        return judge(RunDirectory("", jobs={RESULTS[-1]: JobReport.from_dict(self.report)}, comparisons=comparisons))

    def save(self, verdict: Verdict, output: Path, style: str | None) -> list[Path]:
        """Write the results to the directory `output`, report.json last: where it is, the others are; return the files.

        Raises OSError if one cannot be written.
        """
        from ringsim.report.plots.style import save_figure  # noqa: PLC0415  matplotlib, on rank 0 alone
        from trainers.comparison.report_plot import draw_memory, draw_report  # noqa: PLC0415

        files = [output / name for name in RESULTS]
        assert self.checkpoint is not None
        save_checkpoint(files[0], self.checkpoint)
        save_figure(lambda: draw_report(self.report, self.comparison), files[1], style)
        save_figure(lambda: draw_memory(self.report), files[2], style)
        with atomic_file(files[3]) as file:
            file.write(report_page(verdict, f"The strategy comparison on {self.report['num_ranks']} ranks").encode())
        if self.comparison:
            files.insert(-1, output / COMPARISON)
            save_json(output / COMPARISON, self.comparison)
        else:
            (output / COMPARISON).unlink(missing_ok=True)  # of an earlier run
        save_json(files[-1], self.report)
        return files


def busy_lines(verdict: Verdict) -> list[str]:
    """Return a line if the probes lie too far apart for the predictions, none otherwise."""
    return [line for subject in verdict.subjects if (line := busy_warning(subject.measurements, subject.fit))]
