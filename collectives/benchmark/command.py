"""The command line of the benchmark: parse, check, start the process group, run, print."""

import datetime
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import torch.distributed as dist

from collectives.benchmark.case import DTYPES, OPS
from collectives.benchmark.job import run_plan
from collectives.benchmark.plan import COLLECTIVES, BenchmarkPlan, growing_sizes
from collectives.benchmark.table import format_table
from collectives.runtime import (
    GLOO_THREAD_POLICIES,
    CollectiveError,
    GlooThreadPolicy,
    naming_failures,
    resolve,
    set_gloo_thread_policy,
)
from ringsim.console import FILE, SIZE, TIME, TorchrunCommand, check_writable, progress_bar, torchrun
from ringsim.measurements import Measurements

START = "torchrun --nproc-per-node 4 -m collectives.benchmark"
MAX_TIMEOUT_S = 86400.0


def _listed(known: Sequence[str] | None) -> Callable[..., tuple[str, ...]]:
    """Reads an option that may be repeated, and may hold several names with commas between."""

    def read(_: click.Context, option: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
        names = tuple(name for value in values for name in value.split(","))
        for name in names:
            if name not in (known or names) or not name:
                raise click.BadParameter(f"{name!r} is not one of {', '.join(known or ['the names'])}", param=option)
            if names.count(name) > 1:
                raise click.BadParameter(f"{name!r} is named twice", param=option)
        return names

    return read


def _positive(_: click.Context, option: click.Parameter, value: float) -> float:
    if not 0 < value <= MAX_TIMEOUT_S:
        raise click.BadParameter(f"{value} s: must be greater than 0 and at most {MAX_TIMEOUT_S:.0f}", param=option)
    return value


@click.command(cls=TorchrunCommand, name="benchmark", context_settings={"show_default": True})
@click.option(
    "--collective",
    "collectives",
    multiple=True,
    callback=_listed(list(COLLECTIVES)),
    default=("all_reduce",),
    help=f"Of {', '.join(COLLECTIVES)}; repeatable, or with commas.",
)
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    callback=_listed(None),
    help="See ringsim algorithms; each is timed beside torch's own.  [default: the collective's own]",
)
@click.option("-b", "--begin", type=SIZE, default="64", help="The smallest size, of the whole tensor.")
@click.option("-e", "--end", type=SIZE, default="64MiB", help="The largest.")
@click.option("-f", "--factor", type=click.IntRange(2), default=4, help="From one size to the next.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32")
@click.option("--op", type=click.Choice(list(OPS)), default="sum")
@click.option(
    "-n",
    "--iterations",
    type=click.IntRange(1),
    help="Of each cell of the table.  [default: what fits the time, at least 5]",
)
@click.option(
    "--calls",
    type=click.IntRange(1, 1000),
    help="In a row, in each iteration; their mean counts.  [default: what takes 50 ms, at most 500]",
)
@click.option("--cell-time", "cell_time_s", type=TIME, callback=_positive, default="1s", help="Without -n, for a cell.")
@click.option("-w", "--warm-up", type=click.IntRange(0), default=2, help="Iterations that are not counted.")
@click.option("--in-place/--out-of-place", default=None, help="Only this half of the table.  [default: both]")
@click.option("--raw-sockets", is_flag=True, help="Beside all_reduce, its bytes over bare TCP, nothing added up.")
@click.option("--probes", is_flag=True, help="First probe messages and additions, for ringsim calibrate.")
@click.option(
    "--record", is_flag=True, help="Record a run of each algorithm, transfer by transfer, for ringsim compare."
)
@click.option("--record-size", "record_bytes", type=SIZE, help="Of the tensor in it.  [default: the largest]")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, help="Of the data.")
@click.option(
    "--gloo-thread-policy",
    type=click.Choice(GLOO_THREAD_POLICIES),
    default="batch",
    help="Of the kernel for Gloo's polling threads: as batch they take no core that is in use.",
)
@click.option("--timeout", "timeout_s", type=TIME, callback=_positive, default="60s", help="To wait for a peer.")
@click.option("--check", is_flag=True, help="Check these options, and do nothing.")
@click.option("-o", "--output", type=FILE, help="Write the times of every iteration there, as JSON.")
def main(
    collectives: tuple[str, ...],
    begin: int,
    end: int,
    factor: int,
    in_place: bool | None,
    gloo_thread_policy: GlooThreadPolicy,
    timeout_s: float,
    check: bool,
    output: Path | None,
    **rest: Any,
) -> None:
    """Time our collectives and, in turn with them, torch.distributed's own; print nccl-tests' table.

    Start it with torchrun: torchrun --nproc-per-node 4 -m collectives.benchmark
    """
    plan = BenchmarkPlan(
        collectives=tuple(COLLECTIVES[name] for name in collectives),
        sizes_bytes=growing_sizes(begin, end, factor),
        in_place=(False, True) if in_place is None else (in_place,),
        **rest,
    )
    num_ranks = torchrun.num_ranks(START)
    plan.check(num_ranks, torchrun.ranks_here())
    if output is not None:
        check_writable(f"--output {output}", output.parent)
    if check:
        return
    sys.exit(_run(plan, num_ranks, gloo_thread_policy, timeout_s, output))


def _run(plan: BenchmarkPlan, num_ranks: int, policy: GlooThreadPolicy, timeout_s: float, output: Path | None) -> int:
    try:
        with naming_failures(f"rank {os.environ['RANK']}: meeting the other ranks failed"):
            dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
        group = resolve(None)
        set_gloo_thread_policy(policy)
        with progress_bar(len(plan.cases(num_ranks)), "timing", rank=group.rank()) as bar:
            measurements = run_plan(plan, group, timeout_s, lambda: bar.update(1))
    except CollectiveError as error:
        click.echo(str(error), err=True)
        sys.stdout.flush()
        # Threads of the broken group may still be waiting, and would abort a process that takes leave in order.
        os._exit(1)
    is_first = group.rank() == 0
    dist.destroy_process_group()
    if is_first:
        _report(measurements, output)
    return 1 if any(times.wrong for times in measurements.collectives) else 0


def _report(measurements: Measurements, output: Path | None) -> None:
    click.echo(format_table(measurements))
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        measurements.save(output)
        click.echo(f"wrote {output}")
    wrong = sum(times.wrong or 0 for times in measurements.collectives)
    if wrong:
        click.echo(f"benchmark: {wrong} elements are wrong: see #wrong", err=True)
