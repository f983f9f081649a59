"""Fit the figures of GPUs to measured times of kernels, and print the errors for sizes that were not fitted.

    python scripts/kernel_times.py        # all tables in examples/kernels
    python scripts/kernel_times.py a100   # of one GPU

Half of the rows with sizes as in training, from 512 on, are fitted; errors are those of the other half.
"""

import csv
import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

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
TOKENS, HIDDEN = 16_384, 2048  # of all sequences, and of all heads, in the tables of rates
Timed = tuple[Operator, float]  # with seconds


def read(name: str) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with gzip.open(TABLES / f"{name}.csv.gz", "rt") as table:
        return list(csv.DictReader(table))


def products(gpu: str) -> list[Timed]:
    """Return the products of a GPU's table that are large enough."""
    timed = []
    for row in read(f"gemm-bf16-{gpu}"):
        m, n, k = (int(row[name]) for name in "mnk")
        if min(m, n, k) >= SMALLEST:
            costs = 2 * m * n * k, BYTES * (m * k + n * k + m * n)
            timed.append((Operator("mm", "bfloat16", *costs, product=Product(m, n, k)), float(row["ms"]) / 1e3))
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
            operator = Operator("cudnn", "bfloat16", flops, size_bytes, attention=attention)
            timed.append((operator, float(row["ms"]) / 1e3))
    return timed


def rates_of_attention(gpu: str, kernels: str, passes: Sequence[str] = ("forward", "backward")) -> list[Timed]:
    """Return the kernels of a table of rates, in FLOP/s, of heads that are HIDDEN wide together."""
    timed = []
    for row in read(f"attention-fp16-{gpu}"):
        if row["kernels"] != kernels or row["pass"] not in passes:
            continue
        length, width, is_causal = int(row["length"]), int(row["head_dim"]), row["is_causal"] == "yes"
        attention = Attention(TOKENS // length, HIDDEN // width, length, length, width)
        whole = 4 * TOKENS * HIDDEN * length * (2.5 if row["pass"] == "backward" else 1)
        kept = (length + 1) / (2 * length) if is_causal else 1
        operator = Operator(f"{kernels} {row['pass']}", "float16", round(whole * kept), 0, attention=attention)
        timed.append((operator, whole * (0.5 if is_causal else 1) / (float(row["tflops"]) * 1e12)))
    return timed


def errors(gpu: Gpu, timed: Sequence[Timed]) -> np.ndarray:
    """Return the logarithms of predicted over measured times."""
    return np.log([gpu.kernel_s(operator) / seconds for operator, seconds in timed])


def fitted(gpu: Gpu, kind: str, names: Sequence[str], timed: Sequence[Timed]) -> Gpu:
    """Return the GPU with these figures of a table at the least mean error."""
    table = getattr(gpu, kind)

    def changed(logarithms: np.ndarray) -> Gpu:
        limits = [1.0 if name.endswith("share") or name == "tail" else np.inf for name in names]
        figures = dict(zip(names, np.minimum(np.exp(logarithms), limits).tolist(), strict=True))
        return replace(gpu, **{kind: replace(table, **figures)})

    def cost(logarithms: np.ndarray) -> float:
        return float(np.abs(errors(changed(logarithms), timed)).mean())

    start = np.log([getattr(table, name) for name in names])
    return changed(minimize(cost, start, method="Nelder-Mead", options={"maxfev": 400, "xatol": 0.01, "fatol": 1e-4}).x)


class Fit(NamedTuple):
    """A table of a GPU's file, the figures that measured kernels give it, and how to read these."""

    kind: str
    figures: Sequence[str]
    read: Callable[[], list[Timed]]


_PRODUCT = "share", "depth", "traffic", "start_s"
_FORWARD = "share", "width", "depth", "tail", "start_s"
FITS = {
    "a100": [
        Fit("product", _PRODUCT, lambda: products("a100-sxm-80gb")),
        Fit("attention", [name for name in _FORWARD if name != "width"], lambda: attentions("a100-sxm-80gb")),
    ],
    "h100": [
        Fit("product", _PRODUCT, lambda: products("h100-sxm-80gb")),
        Fit("attention", (*_FORWARD, "backward_share"), lambda: rates_of_attention("h100-sxm-80gb", "flash-2")),
        Fit("cudnn_attention", _FORWARD, lambda: attentions("h100-sxm-80gb")),
        Fit("cudnn_attention", ["backward_share"], lambda: rates_of_attention("h100-sxm-80gb", "cudnn", ["backward"])),
    ],
    "h200": [Fit("product", _PRODUCT, lambda: products("h200-sxm"))],
    "b200": [
        Fit("product", _PRODUCT, lambda: products("b200-sxm")),
        Fit("cudnn_attention", _FORWARD, lambda: attentions("b200-sxm")),
    ],
    "b300": [Fit("product", _PRODUCT, lambda: products("b300-sxm"))],
    "gb200": [Fit("product", _PRODUCT, lambda: products("gb200"))],
    "l40s": [
        Fit("product", _PRODUCT, lambda: products("l40s")),
        Fit("attention", _FORWARD, lambda: attentions("l40s")),
    ],
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(FITS)))
def main(names: tuple[str, ...]) -> None:
    """Print the figures for the files of the GPUs, and their errors."""
    rows = [["GPU", "kernels", "rows", "median error", "90th percentile", "figures"]]
    for name in names or FITS:
        gpu = load_gpu(name)
        # A kernel alone: at the full clock, one launch after the other.
        gpu = replace(gpu, kernel=replace(gpu.kernel, clock=1.0, gap_s=0.0))
        for fit in FITS[name]:
            gpu, told = carried_out(fit, gpu)
            rows.append([name, *told])
    click.echo("\n".join(align_columns(rows)))


def carried_out(fit: Fit, gpu: Gpu) -> tuple[Gpu, list[str]]:
    """Return the GPU with the figures that half of the rows give, and the errors of the other half."""
    timed = fit.read()
    order = np.random.default_rng(0).permutation(len(timed))
    half = len(order) // 2
    gpu = fitted(gpu, fit.kind, fit.figures, [timed[index] for index in order[: min(half, MAX_ROWS)]])
    found = np.abs(np.expm1(errors(gpu, [timed[index] for index in order[half:]])))
    told = ", ".join(f"{figure} {getattr(getattr(gpu, fit.kind), figure):.4g}" for figure in fit.figures)
    return gpu, [fit.kind, str(len(found)), *(f"{np.percentile(found, share):.1%}" for share in (50, 90)), told]


if __name__ == "__main__":
    main()
