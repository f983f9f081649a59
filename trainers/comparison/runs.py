"""One process with the whole batch beside several with shares of it: whether losses are the same, and time less."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringsim.text_table import align_columns, wrap_text
from ringsim.verdict import TrainingComparison

HEADER = ("", "ranks", "batch ms", "speed-up", "efficiency", "exposed", "loss off", "grad off")
FOOTNOTE = (
    "exposed: the share of the time in which a rank communicates or waits for others and does not compute, with the "
    "strategy none waiting alone; off: the largest difference from a single process, of gradients relative to the "
    "largest gradient"
)


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One run as log.jsonl, with a line for each step, and the gradient check have it.

    losses: of the whole batch, by step. batch_s: seconds a batch, the median. sync_share: of that time.
    gradient_difference: see `largest_difference`; None where it was not looked at.
    """

    name: str
    num_ranks: int
    losses: tuple[float, ...]
    batch_s: float
    sync_share: float
    gradient_difference: float | None = None


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """A run beside that of one process.

    speed_up: how many times as fast; efficiency: of that, the part per rank. loss_difference: the largest of a step.
    """

    run: TrainingRun
    speed_up: float
    efficiency: float
    loss_difference: float


def run_of_log(
    name: str,
    num_ranks: int,
    lines: Sequence[Mapping[str, Any]],
    global_batch_size: int,
    gradient_difference: float | None,
) -> TrainingRun:
    """lines: of log.jsonl, one for each step. The first steps, a tenth of them, do not count for the times."""
    timed = lines[len(lines) // 10 :]
    return TrainingRun(
        name,
        num_ranks,
        tuple(line["loss"] for line in lines),
        statistics.median(global_batch_size / line["samples_per_s"] for line in timed),
        statistics.median(line["sync_share"] for line in timed),
        gradient_difference,
    )


def compare(runs: Sequence[TrainingRun]) -> list[ComparisonRow]:
    """Each beside the first, which is that of one process."""
    one = runs[0]
    return [
        ComparisonRow(
            run,
            speed_up := one.batch_s / run.batch_s,
            speed_up / run.num_ranks,
            max(abs(a - b) for a, b in zip(one.losses, run.losses, strict=True)),
        )
        for run in runs
    ]


def format_comparison(rows: Sequence[ComparisonRow]) -> str:
    """Return the comparison as a table."""
    table = [HEADER, *(_cells(row) for row in rows)]
    return "\n".join([*align_columns(table, "lr"), wrap_text(FOOTNOTE, indent="  ")])


def _cells(row: ComparisonRow) -> tuple[str, ...]:
    run = row.run
    off = "-" if run.gradient_difference is None else f"{run.gradient_difference:.1e}"
    return (
        run.name, f"{run.num_ranks}", f"{run.batch_s * 1e3:.1f}", f"{row.speed_up:.2f}", f"{row.efficiency:.0%}",
        f"{run.sync_share:.0%}", f"{row.loss_difference:.1e}", off,
    )  # fmt: skip


def as_dict(rows: Sequence[ComparisonRow], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the comparison for JSON."""
    return TrainingComparison.FORMAT.write({"provenance": provenance, "runs": list(rows)})
