"""Predict steps that others published from the recordings of programs, as a part of docs/accuracy.md.

    python scripts/truth.py                           # all tables
    python scripts/truth.py megatron-a100-one-host    # one
    python scripts/truth.py --only "TP 1"             # some rows
    python scripts/truth.py --fit a100                # the figures of a GPU, from its rows on one host

Rows on one host give the figures of a GPU that no table of kernels gives: clock, share of the memory's bandwidth,
and the CPU's time for an operator and a call. Their errors are those of a fit and are counted apart. A recording is
kept in build/published_steps until it is removed, also if its program changes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

import click
import numpy as np

from accuracy_points import Point, write_points
from published_steps.predict import Predictor, fit, sample
from published_steps.record import record
from published_steps.rows import FITTED, RANKS_PER_HOST, TABLES, Row, rows_of
from ringsim.gpus import load_gpu

NAMES = sorted(path.stem for path in TABLES.glob("*.csv"))
NEAR = 0.12


class Truth:
    """Rows with their predictions, which may use the times of rows on one host."""

    def __init__(self, rows: Sequence[Row], predictor: Predictor) -> None:
        self.rows, self._predictor = rows, predictor
        self._alone = defaultdict[str, list[Row]](list)  # the rows on one host, by program
        for row in rows:
            if row.is_on_one_host:
                self._alone[row.program].append(row)
        shares = defaultdict[str, list[float]](list)
        for row in rows:
            if row.is_on_one_host:
                shares[row.gpu].append(self._share(row))
        self._shares = {gpu: median(found) for gpu, found in shares.items()}

    def predicted_s(self, row: Row) -> float:
        return self._predictor.step_s(row)

    def error(self, row: Row) -> float:
        return self.predicted_s(row) / row.measured_s - 1

    def is_inside(self, row: Row) -> bool:
        """Return whether the measured time lies in the predicted interval of 80 %."""
        interval = self._predictor.interval(row)
        return interval.low <= row.measured_s <= interval.high

    def memory_error(self, row: Row) -> float | None:
        """Return the error of the memory that torch's allocator reserves."""
        return self._predictor.reserved_bytes(row) / row.reserved_bytes - 1 if row.reserved_bytes else None

    def scaled(self, row: Row) -> float | None:
        """Return the error of a prediction that is scaled to the measured time of the nearest row on one host."""
        if (near := self._nearest(row)) is None:
            return None
        return (1 + self.error(row)) / (1 + self.error(near)) - 1

    def perfectly_scaled(self, row: Row) -> float | None:
        """Return the error if each rank were as fast as in the nearest row on one host."""
        near = self._nearest(row)
        return row.tokens_per_rank_s / near.tokens_per_rank_s - 1 if near else None

    def at_share(self, row: Row) -> float | None:
        """Return the error of a constant share of the peak rate, the median of the GPU's rows on one host."""
        return self._share(row) / self._shares[row.gpu] - 1 if row.gpu in self._shares else None

    def regrets(self) -> list[float]:
        """Return for each program and number of ranks how much slower the predicted choice is than the best."""
        groups = defaultdict[tuple[str, int], list[Row]](list)
        for row in self.rows:
            groups[row.program, row.num_ranks].append(row)
        return [
            min(group, key=lambda row: self._predictor.step_s(row) / row.tokens).measured_s
            / min(row.measured_s for row in group)
            - 1
            for group in groups.values()
            if len(group) > 1 and len({row.tokens for row in group}) == 1
        ]

    def _share(self, row: Row) -> float:
        return self._predictor.flops(row) / row.measured_s / load_gpu(row.gpu).roofline.peak("bfloat16")

    def _nearest(self, row: Row) -> Row | None:
        """Return the row on one host that is the most like it: the same parallelism, then the same parts."""
        alone = self._alone.get(row.program, [])
        if row.is_on_one_host or not alone:
            return None
        own = row.parts[0][0].arguments
        return max(
            alone,
            key=lambda other: (
                other.parallelism == row.parallelism,
                sum(one == another for one, another in zip(own, other.parts[0][0].arguments, strict=False)),
            ),
        )


def errors_of(
    name: str, rows: Iterable[Row], error: Callable[[Row], float | None], is_inside: Callable[[Row], bool] | None = None
) -> list[str]:
    """Return a line of the table of errors."""
    pairs = [(row, value) for row in rows if (value := error(row)) is not None]
    if not pairs:
        return []
    found = np.array([value for _, value in pairs])
    sizes = np.abs(found)
    inside = [is_inside(row) for row, _ in pairs] if is_inside else []
    return [
        name, str(len(found)), f"{np.median(sizes):.1%}", f"{np.percentile(sizes, 90):.1%}",
        f"{np.mean(sizes <= NEAR):.0%}", f"{np.median(found):+.1%}", f"{np.mean(inside):.0%}" if inside else "",
    ]  # fmt: skip


def table_of_errors(truth: Truth) -> str:
    """Return the errors by table and number of ranks, with those of the null models."""
    header = ["rows", "number", "median error", "90th percentile", f"within {NEAR:.0%}", "median", "in their 80 %"]
    lines = []
    groups = defaultdict[tuple[str, bool, int, str], list[Row]](list)
    for row in truth.rows:
        kind = ", tensors over hosts" * (row.tensor > RANKS_PER_HOST) or f", TP {row.tensor}" * (row.gpu == "a100")
        groups[row.gpu, not row.is_fitted, row.num_ranks, kind].append(row)
    for (gpu, is_predicted, num_ranks, kind), rows in sorted(groups.items()):
        name = f"{gpu}, {num_ranks} GPUs{kind}{'' if is_predicted else ' (fitted)'}"
        lines.append(errors_of(name, rows, truth.error, truth.is_inside))
    many = [row for row in truth.rows if not row.is_on_one_host]
    lines += [
        errors_of("all on several hosts", many, truth.error, truth.is_inside),
        errors_of("the same, scaled to one host", many, truth.scaled),
        errors_of("null model: perfect scaling from one host", many, truth.perfectly_scaled),
        errors_of("null model: constant share of the peak", many, truth.at_share),
        errors_of("memory reserved", truth.rows, truth.memory_error),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *lines] if line)


@click.command()
@click.argument("tables", nargs=-1, type=click.Choice(NAMES))
@click.option("--fit", "to_fit", type=click.Choice(FITTED), help="Fit this GPU's figures to one host's rows.")
@click.option("--only", default="", help="Take the rows whose names contain this text.")
@click.option("--points", type=click.Path(path_type=Path), help="Write the times that are not fitted to this file.")
@click.option("--worst", type=int, default=10, help="Number of rows with the largest errors to print.")
def main(tables: tuple[str, ...], to_fit: str | None, only: str, points: Path | None, worst: int) -> None:
    """Print the errors of predicted steps."""
    rows = [row for table in tables or NAMES for row in rows_of(table) if only in row.name]
    if to_fit:
        rows = sample([row for row in rows if row.gpu == to_fit and row.is_fitted])
    traces = record(recording for row in rows for recording, _ in row.parts)
    gpus = {}
    if to_fit:
        gpus[to_fit] = fit(to_fit, rows, traces)
        click.echo(f"{gpus[to_fit].kernel} {gpus[to_fit].cpu}\n")
    truth = Truth(rows, Predictor(traces, gpus))
    click.echo(table_of_errors(truth))
    if regrets := truth.regrets():
        click.echo(f"\nRegret: median {np.median(regrets):.1%}, 90th percentile {np.percentile(regrets, 90):.1%}.")
    if points:
        predicted = [row for row in rows if not row.is_fitted]
        write_points(
            points, [Point("published step", row.name, truth.predicted_s(row), row.measured_s) for row in predicted]
        )
    click.echo(f"\nThe {worst} largest errors, with the measured times:\n")
    for row in sorted(rows, key=lambda row: -abs(truth.error(row)))[:worst]:
        click.echo(f"- {truth.error(row):+.1%}: {row.measured_s * 1e3:.0f} ms, {row.name}")


if __name__ == "__main__":
    main()
