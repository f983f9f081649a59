"""The report of the strategy comparison: predictions and measurements of each strategy, and the files made of them."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
from ringsim.verdict import JobReport, RunDirectory, StrategyResult, Verdict, judge
from trainers.checkpoints.checkpoint import Checkpoint, save_checkpoint
from trainers.loop.batches import describe_batch
from trainers.strategy_comparison.config import RESULTS, JobConfig
from trainers.strategy_comparison.profile import Memory
from trainers.strategy_names import steps_between_averages, strategy_info

MAX_WARM_UP_STEPS = 5  # not counted: DDP rebuilds its buckets, buffers are touched for the first time
LAST_LOSSES = 10  # the final loss is the mean over as many steps; a single batch is too noisy

Report = dict[str, Any]

COLUMNS = ("strategy", "predicted", "measured", "error", "predicted", "step", "error", "loss")
UNITS = ("", "sync ms", "sync ms", "", "step ms", "ms", "", "")
WIDE_COLUMNS, WIDE_UNITS = (*COLUMNS, "spread", "tokens/s"), (*UNITS, "sync ms", "")
MEMORY = ("memory", "predicted", "held", "params", "grads", "optim", "buffers", "activ")
MEMORY_UNITS = ("per rank", "MiB", "MiB", "MiB", "MiB", "MiB", "MiB", "MiB")


class StepPrediction(NamedTuple):
    """sync_s: from the last gradient's being ready, with what gathers parameters. step_s: the whole step.

    Of strategies that communicate every few steps only, the mean of these steps.
    """

    sync_s: float
    step_s: float


class RankNotes(NamedTuple):
    """One rank's record of a strategy's steps.

    losses: of the whole batch, the same on all ranks. fingerprint: of the parameters after the last step. memory: what
    the rank holds then.
    """

    losses: list[float]
    sync_s: list[float]
    step_s: list[float]
    fingerprint: str
    memory: Memory | None = None


def make_report(
    config: JobConfig,
    measurements: Measurements,
    network: Cluster,
    predictions: Mapping[str, StepPrediction],
    notes: Mapping[str, Sequence[RankNotes]],
    num_parameters: int,
    profile: StepProfile,
) -> Report:
    """For JSON. notes: of every rank, by strategy. profile: of a step without synchronisation."""
    tokens = tokens_per_step(config, measurements.num_ranks)
    results = [summarise(name, predictions[name], ranks, tokens) for name, ranks in notes.items()]
    curves = [result["losses"] for result in results if _has_same_curve(result["strategy"])]
    differences = [abs(a - b) for curve in curves[1:] for a, b in zip(curves[0], curve, strict=True)]
    return JobReport.FORMAT.write(
        {
            "num_ranks": measurements.num_ranks,
            "num_parameters": num_parameters,
            "data": config.data,
            "model": asdict(config.task.model_config),
            "train": config.training(),
            "network": network.as_dict(),
            "measurements": measurements.as_dict(),
            "profile": profile.as_dict(),
            "max_loss_difference": max(differences, default=0.0),
            "strategies": results,
        }
    )


def _has_same_curve(name: str) -> bool:
    """Return whether the loss curve should be that of one process, as far as the order of sums lets it."""
    info = strategy_info(name)
    return info.is_exact and not info.sends_bf16


def add_memory(report: Report, predicted: Mapping[str, Memory], notes: Mapping[str, Sequence[RankNotes]]) -> None:
    """Put the bytes that a rank holds into each strategy's row: predicted, and of the rank that holds most."""
    for result in report["strategies"]:
        name = result["strategy"]
        held = [rank.memory for rank in notes[name] if rank.memory is not None]
        result["predicted_memory_bytes"] = predicted[name]._asdict()
        result["memory_bytes"] = max(held, key=lambda memory: memory.total)._asdict()


def tokens_per_step(config: JobConfig, num_ranks: int) -> int:
    """Of all ranks together."""
    return config.step.batches(config.task, 0, num_ranks).num_samples(0) * config.task.tokens_per_sample


def summarise(name: str, predicted: StepPrediction, ranks: Sequence[RankNotes], tokens: int) -> Report:
    """One strategy's row of the report, from every rank's notes. tokens: of a step, of all ranks together."""
    losses = ranks[0].losses
    warm_up = min(MAX_WARM_UP_STEPS, len(losses) // 2)
    # Whoever is last to finish its backward pass waits for nobody: its time is the synchronisation itself,
    # the others' includes their waiting for it.
    period = steps_between_averages(name)
    least_s = [min(times) for times in zip(*(rank.sync_s for rank in ranks), strict=True)][warm_up:]
    sync_s = over_periods(least_s, period)
    # A rank begins a step when its last one ends: whoever begins early waits longer, so that only means add up to what
    # all steps take.
    mean_s = [statistics.mean(times) for times in zip(*(rank.step_s for rank in ranks), strict=True)][warm_up:]
    step_s = over_periods(mean_s, period)
    measured_step_s = statistics.median(step_s)
    return StrategyResult(
        strategy=name,
        predicted_sync_s=predicted.sync_s,
        measured_sync_s=statistics.median(sync_s),
        predicted_step_s=predicted.step_s,
        step_s=measured_step_s,
        tokens_per_s=tokens / measured_step_s,
        final_loss=statistics.mean(losses[-LAST_LOSSES:]),
        parameters_identical=len({rank.fingerprint for rank in ranks}) == 1,
        sync_s=tuple(sync_s),
        steps_s=tuple(step_s),
        losses=tuple(losses),
        # Whoever comes last waits for nobody: the rank that spends least here is the one that the others wait for.
        rank_sync_s=tuple(statistics.median(over_periods(rank.sync_s[warm_up:], period)) for rank in ranks),
    ).as_dict()


def over_periods(times_s: Sequence[float], period: int) -> list[float]:
    """Each step's time with the mean of its `period` steps in its place, of which one alone communicates.

    The steps after the last whole period get the mean of that.
    """
    num_periods = max(len(times_s) // period, 1)
    means = [statistics.mean(times_s[index * period : (index + 1) * period]) for index in range(num_periods)]
    return [means[min(index // period, num_periods - 1)] for index in range(len(times_s))]


def format_report(report: Report, wide: bool = False) -> str:
    """Return the table of strategies, and under it what holds for all of them; wide: with spread and tokens/s."""
    results = report["strategies"]
    head = (WIDE_COLUMNS, WIDE_UNITS) if wide else (COLUMNS, UNITS)
    rows = [(*_row(result), *(_more(result) if wide else ())) for result in results]
    footnotes = [note if wide else wrap_text(note, indent="  ") for note in _footnotes(report)]
    return "\n".join([*align_columns([*head, *rows], "lr"), "", *_memory_table(results), *footnotes])


def _row(result: Report) -> tuple[str, ...]:
    error = result["error"]
    return (
        result["strategy"],
        f"{result['predicted_sync_s'] * 1e3:.2f}",
        f"{result['measured_sync_s'] * 1e3:.2f}",
        "-" if error is None else f"{error:+.0%}",
        f"{result['predicted_step_s'] * 1e3:.1f}",
        f"{result['step_s'] * 1e3:.1f}",
        f"{result['step_error']:+.0%}",
        f"{result['final_loss']:.3f}",
    )


def _more(result: Report) -> tuple[str, str]:
    """Return the cells that only the wide table has."""
    low_s, high_s = result["measured_sync_p10_s"], result["measured_sync_p90_s"]
    return f"{low_s * 1e3:.2f}-{high_s * 1e3:.2f}", f"{result['tokens_per_s']:,.0f}"


def _memory_table(results: list[Report]) -> list[str]:
    """Return what a rank holds, and of what kind; nothing for a report that does not say. An empty line follows."""
    if any("memory_bytes" not in result for result in results):
        return []
    rows = []
    for result in results:
        held = result["memory_bytes"]
        sizes = (sum(result["predicted_memory_bytes"].values()), sum(held.values()), *held.values())
        rows.append((result["strategy"], *(f"{size / 2**20:.2f}" for size in sizes)))
    return [*align_columns([MEMORY, MEMORY_UNITS, *rows], "lr"), ""]


def _on_loss_curves(report: Report) -> str:
    """Return how far the loss curves are from one another that should be equal; "" if there are no two of them."""
    names = [result["strategy"] for result in report["strategies"] if result["strategy"] != "none"]
    others = [f"`{name}`" for name in names if not _has_same_curve(name)]
    if len(names) - len(others) < 2:
        return ""
    but_others = f", except those of {', '.join(others)} (trained or rounded differently)," if others else ""
    return f"; loss curves{but_others} differ by at most {report['max_loss_difference']:.1e}"


def _footnotes(report: Report) -> list[str]:
    results = report["strategies"]
    where = report["measurements"]["provenance"]
    batch_size, num_ranks = report["train"]["batch_size"], report["num_ranks"]
    batch = describe_batch(batch_size * num_ranks, num_ranks)
    drifting = [result["strategy"] for result in results if not result["parameters_identical"]]
    but_none = " except `none`" if "none" in drifting else ""
    identical = f"with every strategy{but_none} all ranks hold bit-identical parameters"
    if differing := [name for name in drifting if name != "none"]:
        identical = f"RANKS DIFFER: the parameters of {', '.join(differing)} are not bit-identical on all ranks"
    return [
        "sync: gradient synchronisation of one step, from the last gradient's being ready; measured: the median of "
        f"{results[0]['steps_measured']} steps, as the last rank to arrive sees it; spread: 10th to 90th "
        "percentile (--wide); predicted from point-to-point probes, and from steps that were recorded without sending.",
        f"{identical}{_on_loss_curves(report)}.",
        f"{plural(report['num_ranks'], 'rank')}, {batch}, {report['num_parameters']:,} parameters; {where['machine']}, "
        f"{where['cores']} cores, torch {where['torch']}, OMP_NUM_THREADS={where['OMP_NUM_THREADS']}, {where['date']}.",
    ]


def judge_report(report: Report) -> Verdict:
    """Return what the report says in plain words, as `ringsim report` finds it in report.json; takes some seconds."""
    return judge(RunDirectory("", jobs={RESULTS[-1]: JobReport.from_dict(report)}))


def busy_lines(verdict: Verdict) -> list[str]:
    """Return a line if the probes lie too far apart for the predictions, none otherwise."""
    return [line for subject in verdict.subjects if (line := busy_line(subject.measurements, subject.fit))]


def save_results(
    report: Report, verdict: Verdict, checkpoint: Checkpoint, output: Path, style: str | None = None
) -> None:
    """Write RESULTS to the directory `output`, report.json last: where it is, the others are; on one rank only.

    Raises OSError if one cannot be written.
    """
    from trainers.strategy_comparison.report_plot import (  # noqa: PLC0415  matplotlib, on rank 0 alone
        save_memory_plot,
        save_report_plot,
    )

    page = report_page(verdict, f"The strategy comparison on {report['num_ranks']} ranks")
    paths = [output / name for name in RESULTS]
    save_checkpoint(paths[0], checkpoint)
    save_report_plot(report, paths[1], style)
    save_memory_plot(report, paths[2], style)
    with atomic_file(paths[3]) as file:
        file.write(page.encode())
    save_json(paths[4], report)
