"""Fit the figures of GPUs to measured times of kernels, and print the errors for sizes that were not fitted.

    python scripts/kernel_times.py        # all tables in examples/kernels
    python scripts/kernel_times.py a100   # of one GPU

Half of the rows with sizes as in training, from 512 on, are fitted; errors are those of the other half.
"""

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from msgspec.structs import replace
from scipy.optimize import minimize

from ringsim.gpus import Gpu, load_gpu
from ringsim.text_table import align_columns
from ringsim.traces import Attention, Operator, Product

TABLES = Path(__file__).parents[1] / "examples" / "kernels"
SMALLEST = 512  # tokens or columns of kernels that matter in training
SMALLEST_BATCH = 8 * 2048  # tokens, of all heads
MAX_ROWS = 2000  # fitted, of each table
BYTES = 2  # of an element of bfloat16
Timed = tuple[Operator, float]  # with seconds


def read(name: str) -> list[dict[str, float]]:
    """Return the rows of a table."""
    with gzip.open(TABLES / f"{name}.csv.gz", "rt") as table:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(table)]


def products(gpu: str) -> list[Timed]:
    """Return the products of a GPU's table that are large enough."""
    timed = []
    for row in read(f"gemm-bf16-{gpu}"):
        m, n, k = (int(row[name]) for name in "mnk")
        if min(m, n, k) >= SMALLEST:
            costs = 2 * m * n * k, BYTES * (m * k + n * k + m * n)
            timed.append((Operator("mm", "bfloat16", *costs, product=Product(m, n, k)), row["ms"] / 1e3))
    return timed


def attentions(gpu: str) -> list[Timed]:
    """Return the kernels of attention of a GPU's table that are large enough."""
    timed = []
    for row in read(f"attention-causal-forward-bf16-{gpu}"):
        batch, length, heads, kv_heads, width = (int(value) for value in list(row.values())[:5])
        if length >= SMALLEST and batch * heads * length >= SMALLEST_BATCH and width % 64 == 0:
            flops = 4 * batch * heads * width * length * (length + 1) // 2
            size_bytes = BYTES * batch * length * width * 2 * (heads + kv_heads)
            attention = Attention(batch, heads, length, length, width)
            timed.append((Operator("attention", "bfloat16", flops, size_bytes, attention=attention), row["ms"] / 1e3))
    return timed


def errors(gpu: Gpu, timed: Sequence[Timed]) -> np.ndarray:
    """Return the logarithms of predicted over measured times."""
    return np.log([gpu.kernel_s(operator) / seconds for operator, seconds in timed])


def fitted(gpu: Gpu, kind: str, names: Sequence[str], timed: Sequence[Timed]) -> Gpu:
    """Return the GPU with these figures of a table, product or attention, at the least mean error."""
    table = getattr(gpu, kind)

    def changed(logarithms: np.ndarray) -> Gpu:
        limits = [1.0 if name == "share" else np.inf for name in names]
        figures = dict(zip(names, np.minimum(np.exp(logarithms), limits).tolist(), strict=True))
        return replace(gpu, **{kind: replace(table, **figures)})

    def cost(logarithms: np.ndarray) -> float:
        return float(np.abs(errors(changed(logarithms), timed)).mean())

    start = np.log([getattr(table, name) for name in names])
    return changed(minimize(cost, start, method="Nelder-Mead", options={"maxfev": 400, "xatol": 0.01, "fatol": 1e-4}).x)


FITS = (
    ("product", "gemm", ("share", "depth", "traffic", "start_s")),
    ("attention", "attention", ("share", "width", "depth", "tail", "start_s")),
)
GPUS = {"a100": "a100-sxm-80gb", "h100": "h100-sxm-80gb", "h200": "h200-sxm"}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(GPUS)))
def main(names: tuple[str, ...]) -> None:
    """Print the figures for the files of the GPUs, and their errors."""
    rows = [["GPU", "kernels", "rows", "median error", "90th percentile", "figures"]]
    for name in names or GPUS:
        gpu = load_gpu(name)
        # A kernel alone: at the full clock, one launch after the other.
        gpu = replace(gpu, kernel=replace(gpu.kernel, clock=1.0, gap_s=0.0))
        rows += [
            fit(name, gpu, kind, figures)
            for kind, table, figures in FITS
            if any(TABLES.glob(f"{table}-*{GPUS[name]}*"))
        ]
    click.echo("\n".join(align_columns(rows)))


def fit(name: str, gpu: Gpu, kind: str, figures: Sequence[str]) -> list[str]:
    """Return the row of a GPU and a kind of kernels."""
    timed = (products if kind == "product" else attentions)(GPUS[name])
    if len({operator.attention.width for operator, _ in timed if operator.attention}) == 1:
        figures = [figure for figure in figures if figure != "width"]  # which no row tells
    order = np.random.default_rng(0).permutation(len(timed))
    half = len(order) // 2
    gpu = fitted(gpu, kind, figures, [timed[index] for index in order[: min(half, MAX_ROWS)]])
    found = np.abs(np.expm1(errors(gpu, [timed[index] for index in order[half:]])))
    told = ", ".join(f"{figure} {getattr(getattr(gpu, kind), figure):.4g}" for figure in figures)
    return [name, kind, str(len(found)), *(f"{np.percentile(found, share):.1%}" for share in (50, 90)), told]


if __name__ == "__main__":
    main()
