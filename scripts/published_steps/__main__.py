"""Predict steps that others published from the recordings of programs: `python scripts/published_steps TABLE ...`.

    python scripts/published_steps                           # all tables
    python scripts/published_steps megatron-a100-one-host    # one
    python scripts/published_steps --fit h100                # the figures of a GPU, from its rows on one host
    python scripts/published_steps --fit a100 --only "TP 1"  # from some of them

Rows on one host give the figures of a GPU that no table of kernels gives: clock, share of the memory's bandwidth,
and the CPU's time for an operator and a call. Their errors are those of a fit. A recording is kept in
build/published_steps until it is removed, also if its program changes.
"""

from collections.abc import Iterable, Sequence
from statistics import median

import click
import numpy as np
from msgspec.structs import replace
from record import RANKS_PER_HOST, record
from rows import TABLES, Recording, Row, rows_of
from scipy.optimize import minimize

from ringsim.gpus import Gpu, load_gpu
from ringsim.network import Network, load_network
from ringsim.text_table import align_columns
from ringsim.traces import ProgramTrace
from ringsim.training_step import Computing, predict_trace

NETWORKS = {"a100": "dgx-a100", "a100-40gb": "dgx-a100", "h100": "dgx-h100-cluster"}
FITTED = (("kernel", "clock"), ("kernel", "memory_share"), ("cpu", "operator_s"), ("cpu", "call_s"))
MOST_PROGRAMS = 18  # to fit
NAMES = sorted(path.stem for path in TABLES.glob("*.csv"))


class Predictor:
    """Predicts rows; a recording that several rows need is predicted once."""

    def __init__(self, traces: dict[Recording, ProgramTrace], gpu: Gpu, network: Network) -> None:
        self._traces, self._network = traces, network
        self._computing = Computing(on_gpu=True, rates=gpu)
        self._steps_s: dict[Recording, float] = {}

    def step_s(self, row: Row) -> float:
        return sum(weight * self._recorded_s(recording) for recording, weight in row.parts)

    def _recorded_s(self, recording: Recording) -> float:
        if recording not in self._steps_s:
            prediction = predict_trace(self._traces[recording], self._network, self._computing)
            self._steps_s[recording] = prediction.mean.step_s
        return self._steps_s[recording]


def errors(predictor: Predictor, rows: Iterable[Row]) -> np.ndarray:
    """Return predicted over measured times, minus 1."""
    return np.array([predictor.step_s(row) / row.measured_s - 1 for row in rows])


def fit(gpu: Gpu, rows: Sequence[Row], traces: dict[Recording, ProgramTrace], network: Network) -> Gpu:
    """Return the GPU with `FITTED` at the least mean error."""

    def changed(logarithms: np.ndarray) -> Gpu:
        tables: dict[str, dict[str, float]] = {}
        for (table, name), value in zip(FITTED, np.exp(logarithms).tolist(), strict=True):
            tables.setdefault(table, {})[name] = value if name.endswith("_s") else min(value, 1.0)
        return replace(gpu, **{table: replace(getattr(gpu, table), **values) for table, values in tables.items()})

    def cost(logarithms: np.ndarray) -> float:
        return float(np.abs(errors(Predictor(traces, changed(logarithms), network), rows)).mean())

    start = np.log([getattr(getattr(gpu, table), name) for table, name in FITTED])
    return changed(minimize(cost, start, method="Nelder-Mead", options={"maxfev": 100, "xatol": 0.02}).x)


def sample(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of some programs, as each takes time to simulate."""
    programs = sorted({row.parts[0][0] for row in rows})
    return [row for row in rows if row.parts[0][0] in programs[:: max(1, len(programs) // MOST_PROGRAMS)]]


def told(name: str, found: np.ndarray) -> list[str]:
    """Return a row of the table of errors."""
    sizes = np.abs(found)
    return [
        name,
        str(len(found)),
        f"{np.median(sizes):.1%}",
        f"{np.percentile(sizes, 90):.1%}",
        f"{median(found):+.1%}",
    ]


@click.command()
@click.argument("tables", nargs=-1, type=click.Choice(NAMES))
@click.option("--fit", "to_fit", type=click.Choice(list(NETWORKS)), help="Fit this GPU's figures to one host's rows.")
@click.option("--only", default="", help="Take the rows whose names contain this text.")
@click.option("--worst", type=int, default=10, help="Number of rows with the largest errors to print.")
def main(tables: tuple[str, ...], to_fit: str | None, only: str, worst: int) -> None:
    """Print the errors of predicted steps."""
    lines, all_rows = [["rows", "number", "median error", "90th percentile", "median"]], []
    for table in tables or NAMES:
        rows = [row for row in rows_of(table) if row.num_ranks <= RANKS_PER_HOST and only in row.name]
        if not rows or (to_fit and rows[0].gpu != to_fit):
            continue
        traces = record(recording for row in rows for recording, _ in row.parts)
        gpu, network = load_gpu(rows[0].gpu), load_network(NETWORKS[rows[0].gpu])
        if to_fit:
            gpu = fit(gpu, sample(rows), traces, network)
            click.echo(f"{table}: {gpu.kernel} {gpu.cpu}")
        found = errors(Predictor(traces, gpu, network), rows)
        lines.append(told(f"{table}, one host", found))
        all_rows += [(abs(error), error, row) for error, row in zip(found, rows, strict=True)]
    click.echo("\n".join(align_columns(lines)))
    for _, error, row in sorted(all_rows, key=lambda item: -item[0])[:worst]:
        click.echo(f"{error:+.1%}  {row.measured_s * 1e3:.0f} ms  {row.name}")


if __name__ == "__main__":
    main()
