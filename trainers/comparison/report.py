"""The report of the strategy comparison: predictions and measurements of each strategy, and the files made of them."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from ringsim.calibration import busy_line
from ringsim.files import atomic_file, save_json
from ringsim.measurements import Measurements
from ringsim.network import Cluster
from ringsim.report import report_page
from ringsim.text_table import align_columns, wrap_text
from ringsim.training_step import StepProfile
from ringsim.units import plural
from ringsim.verdict import JobReport, RunDirectory, StrategyResult, TrainingComparison, Verdict, judge
from trainers.checkpoints.checkpoint import Checkpoint, save_checkpoint
from trainers.comparison.config import COMPARISON, ONE_PROCESS, RESULTS, JobConfig
from trainers.comparison.profile import Memory
from trainers.loop.batches import describe_batch
from trainers.loop.train_step import StepResult
from trainers.strategy_names import steps_between_averages

MAX_WARM_UP_STEPS = 5  # not counted: DDP rebuilds its buckets, buffers are touched for the first time
LAST_LOSSES = 10  # the final loss is the mean over as many steps; a single batch is too noisy

Report = dict[str, Any]

Column = tuple[str, str, Callable[[Mapping[str, Any]], str]]  # heading, unit, and the text of a row's cell


def _ms(key: str, digits: int) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: f"{row[key] * 1e3:.{digits}f}"


def _percent(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "-" if row[key] is None else f"{row[key]:+.0%}"


def _held_mib(kind: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: f"{row['memory_bytes'][kind] / 2**20:.2f}"


def _sum_mib(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: f"{sum(row[key].values()) / 2**20:.2f}"


def _off(row: Mapping[str, Any]) -> str:
    difference = row["run"]["gradient_difference"]
    return "-" if difference is None else f"{difference:.1e}"


TIMES: Sequence[Column] = (
    ("strategy", "", itemgetter("strategy")),
    ("predicted", "sync ms", _ms("predicted_sync_s", 2)),
    ("measured", "sync ms", _ms("measured_sync_s", 2)),
    ("error", "", _percent("error")),
    ("predicted", "step ms", _ms("predicted_step_s", 1)),
    ("step", "ms", _ms("step_s", 1)),
    ("error", "", _percent("step_error")),
    ("loss", "", lambda row: f"{row['final_loss']:.3f}"),
)
MEMORY: Sequence[Column] = (
    ("memory", "per rank", itemgetter("strategy")),
    ("predicted", "MiB", _sum_mib("predicted_memory_bytes")),
    ("held", "MiB", _sum_mib("memory_bytes")),
    *(
        (heading, "MiB", _held_mib(kind))
        for heading, kind in zip(("params", "grads", "optim", "buffers", "activ"), Memory._fields, strict=True)
    ),
)
COMPARISON_COLUMNS: Sequence[Column] = (
    ("compared with", ONE_PROCESS, lambda row: row["run"]["name"]),
    ("batch", "ms", lambda row: f"{row['run']['batch_s'] * 1e3:.1f}"),
    ("speed-up", "", lambda row: f"{row['speed_up']:.2f}"),
    ("efficiency", "", lambda row: f"{row['efficiency']:.0%}"),
    ("exposed", "", lambda row: f"{row['run']['sync_share']:.0%}"),
    ("loss off", "", lambda row: f"{row['loss_difference']:.1e}"),
    ("grad off", "", _off),
)


class StepPrediction(NamedTuple):
    """sync_s: from the last gradient's being ready, with what gathers parameters. step_s: the whole step.

    Of strategies that communicate every few steps only, the mean of these steps.
    """

    sync_s: float
    step_s: float


class RankNotes(NamedTuple):
    """One rank's record of a strategy; fields as of `StrategyRun`. fingerprint: of the parameters after the last step.

    The losses are of the whole batch, the same on all ranks.
    """

    results: list[StepResult]
    fingerprint: str
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
    sync_s = over_periods([min(result.sync_s for result in step) for step in steps], period)
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
            statistics.median(over_periods([result.sync_s for result in of_rank], period))
            for of_rank in zip(*steps, strict=True)
        ),
    )
    held = {"predicted_memory_bytes": predicted_memory._asdict(), "memory_bytes": memory._asdict()}
    return {**result.as_dict(), **held}


def _counted(ranks: Sequence[RankNotes]) -> list[tuple[StepResult, ...]]:
    """Return the steps that count, without the first ones, each as all ranks took it."""
    steps = list(zip(*(rank.results for rank in ranks), strict=True))
    return steps[min(MAX_WARM_UP_STEPS, len(steps) // 2) :]


def _steps_s(steps: Sequence[Sequence[StepResult]], period: int) -> list[float]:
    """Return the time of each step, the mean over the ranks.

    A rank begins a step when its last one ends: whoever begins early waits longer, so that only means add up to what
    all steps take.
    """
    return over_periods([statistics.mean(result.step_s for result in step) for step in steps], period)


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
    results = [result for step in steps for result in step]
    period = 1 if name == ONE_PROCESS else steps_between_averages(name)
    return {
        "name": name,
        "num_ranks": len(ranks),
        "losses": ranks[0].losses,
        "batch_s": statistics.median(_steps_s(steps, period)),
        "sync_share": sum(result.communication_s for result in results) / sum(result.step_s for result in results),
        "gradient_difference": ranks[0].gradient_difference,
    }


def format_report(report: Report, comparison: Mapping[str, Any] | None = None) -> str:
    """Return the table of strategies, that of their memory, the comparison with one process, and footnotes."""
    tables = [(TIMES, report["strategies"]), (MEMORY, report["strategies"])]
    if comparison:
        tables.append((COMPARISON_COLUMNS, comparison["runs"]))
    lines = []
    for columns, rows in tables:
        headings, units, cells = zip(*columns, strict=True)
        lines += [*align_columns([headings, units, *([cell(row) for cell in cells] for row in rows)], "lr"), ""]
    return "\n".join([*lines, *(wrap_text(note, indent="  ") for note in _footnotes(report, comparison))])


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


def judge_report(report: Report, comparison: Mapping[str, Any] | None = None) -> Verdict:
    """Return the verdict, as `ringsim report` finds it in the files of the job; takes some seconds."""
    comparisons = {COMPARISON: TrainingComparison.from_dict(comparison)} if comparison else {}
    return judge(RunDirectory("", jobs={RESULTS[-1]: JobReport.from_dict(report)}, comparisons=comparisons))


def busy_lines(verdict: Verdict) -> list[str]:
    """Return a line if the probes lie too far apart for the predictions, none otherwise."""
    return [line for subject in verdict.subjects if (line := busy_line(subject.measurements, subject.fit))]


def save_results(
    report: Report,
    comparison: Mapping[str, Any] | None,
    verdict: Verdict,
    checkpoint: Checkpoint,
    output: Path,
    style: str | None = None,
) -> list[Path]:
    """Write the results to the directory `output`, report.json last: where it is, the others are; on one rank only.

    Returns the files. Raises OSError if one cannot be written.
    """
    from ringsim.report.plots.style import save_figure  # noqa: PLC0415  matplotlib, on rank 0 alone
    from trainers.comparison.report_plot import draw_memory, draw_report  # noqa: PLC0415

    page = report_page(verdict, f"The strategy comparison on {report['num_ranks']} ranks")
    checkpoint_path, times_path, memory_path, page_path, report_path = (output / name for name in RESULTS)
    save_checkpoint(checkpoint_path, checkpoint)
    save_figure(lambda: draw_report(report, comparison), times_path, style)
    save_figure(lambda: draw_memory(report), memory_path, style)
    with atomic_file(page_path) as file:
        file.write(page.encode())
    comparison_path = output / COMPARISON
    if comparison:
        save_json(comparison_path, comparison)
    else:
        comparison_path.unlink(missing_ok=True)  # of an earlier run
    save_json(report_path, report)
    return [*(output / name for name in RESULTS), *([comparison_path] if comparison else [])]
