"""The command line of the benchmark."""

import datetime
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch.distributed as dist

from collectives import runtime
from collectives.benchmark.case import COLLECTIVES, DTYPES, BenchmarkPlan, growing_sizes
from collectives.benchmark.job import run_plan
from collectives.benchmark.table import format_table
from collectives.calls import AUTO
from ringsim import console
from ringsim.measurements import Measurements
from ringsim.registry import ALGORITHMS
from ringsim.schedule import Collective
from ringsim.suggestions import suggestion
from ringsim.units import parse_size_of_nccl_tests, plural

START = "torchrun --nproc-per-node 4 -m collectives.benchmark"
MAX_TIMEOUT_S = 86400.0
NCCL_SIZE = console.Quantity("size", parse_size_of_nccl_tests)


def _names(_: click.Context, __: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for value in values for name in value.split(",")))


def _collectives(context: click.Context, option: click.Parameter, values: Sequence[str]) -> tuple[Collective, ...]:
    names = _names(context, option, values)
    for name in names:
        if name not in COLLECTIVES:
            listed = f"{', '.join(COLLECTIVES)}{suggestion(name, list(COLLECTIVES))}"
            raise click.BadParameter(f"{name!r} is not one of {listed}", param=option)
    return tuple(COLLECTIVES[name] for name in names)


def _positive(_: click.Context, option: click.Parameter, value: float) -> float:
    if not 0 < value <= MAX_TIMEOUT_S:
        raise click.BadParameter(f"{value} s: must be greater than 0 and at most {MAX_TIMEOUT_S:.0f}", param=option)
    return value


_duration = partial(click.option, type=console.TIME, callback=_positive)


@click.command(
    cls=console.TorchrunCommand,
    name="benchmark",
    epilog=console.examples(f"{START} --algorithm ring", f"{START} -b 1KiB -e 1MiB"),
)
@click.option(
    "--collective",
    "collectives",
    type=console.Name("names", list(COLLECTIVES), several=True),
    multiple=True,
    callback=_collectives,
    default=("all_reduce",),
    help=f"Collective to time, one of {', '.join(COLLECTIVES)}; repeat the option, or separate several by commas.",
)
@click.option(
    "--algorithm",
    "algorithms",
    type=console.Name("names", sorted({AUTO, *(name for _, name in ALGORITHMS)}), several=True),
    multiple=True,
    callback=_names,
    help="Algorithm to time, one that ringsim algorithms lists, compared with torch's own [default: "
    "the collective's own].",
)
@click.option(
    "-b", "--begin", type=NCCL_SIZE, default="64", help="Size of the smallest tensor; 8M is 8MiB, unlike 8MB."
)
@click.option("-e", "--end", type=NCCL_SIZE, default="64MiB", help="Upper limit of the tensor's size.")
@click.option("-f", "--factor", type=console.IntRange(2), default=4, help="Factor between one size and the next.")
@click.option("--dtype", type=console.Choice(list(DTYPES)), default="float32", help="Data type of the elements.")
@click.option(
    "-n",
    "--iterations",
    type=console.IntRange(1),
    help="Iterations per cell of the table [default: as many as fit the time, at least 5].",
)
@click.option(
    "--calls",
    type=console.IntRange(1, 1000),
    help="Calls in a row per iteration, of which the mean counts [default: as many as take 50 ms, at most 500].",
)
@_duration("--cell-time", "cell_time_s", default="1s", help="Time per cell, without -n.")
@click.option("-w", "--warm-up", type=console.IntRange(0), default=2, help="Warm-up iterations, which are not counted.")
@click.option("--in-place/--out-of-place", default=None, help="Time only this half of the table [default: both].")
@click.option("--plain-ring", is_flag=True, help="Also time a hand-written ring of isend and irecv, for sums.")
@click.option(
    "--limit/--no-limit",
    default=None,
    help="Also time the limit of the memory that all ranks share [default: without --probes].",
)
@click.option(
    "--shared", is_flag=True, help="Allocate the tensors with collectives.empty, so that they are not copied."
)
@click.option("--probes", is_flag=True, help="Probe messages and additions first, for ringsim calibrate.")
@click.option(
    "--record", is_flag=True, help="Record a run of each algorithm, transfer by transfer, for ringsim compare."
)
@click.option(
    "--transport",
    type=console.Choice(list(runtime.TRANSPORTS)),
    help="Transport of our chunks; auto is shared memory within a host [default: COLLECTIVES_TRANSPORT].",
)
@click.option(
    "--gloo-thread-policy",
    type=console.Choice(runtime.GLOO_THREAD_POLICIES),
    default="batch",
    help="Scheduling policy of Gloo's polling threads: with batch they do not take a core that is in use.",
)
@_duration("--timeout", "timeout_s", default="60s", help="Time that a rank waits for a peer.")
@console.wide_option
@console.json_option
@click.option("-o", "--output", type=console.FILE, help="Write the times of every iteration to FILE, as JSON.")
def main(
    begin: int,
    end: int,
    factor: int,
    in_place: bool | None,
    limit: bool | None,
    transport: str | None,
    gloo_thread_policy: runtime.GlooThreadPolicy,
    timeout_s: float,
    wide: bool,
    as_json: bool,
    output: Path | None,
    **rest: Any,
) -> None:
    """Time our collectives, interleaved with those of torch.distributed.

    Start it with torchrun: torchrun --nproc-per-node 4 -m collectives.benchmark
    """
    console.require_one_stdout(as_json, output)
    limit = not rest["probes"] if limit is None else limit  # what is calibrated needs no limit
    places = (False, True) if in_place is None else (in_place,)
    plan = BenchmarkPlan(sizes_bytes=growing_sizes(begin, end, factor), in_place=places, limit=limit, **rest)
    num_ranks = console.num_ranks(START)
    plan.check(num_ranks, console.ranks_here())
    if output is not None and output != console.STDOUT:
        console.check_writable(f"--output {output}", output.parent)
    rank = int(os.environ["RANK"])
    progress = console.Progress(rank=rank)
    progress.begin(f"starting {plural(num_ranks, 'rank')}")
    try:
        with runtime.naming_failures(f"rank {rank}: meeting the other ranks failed"):
            dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
        runtime.set_gloo_thread_policy(gloo_thread_policy)
        if transport is not None:
            runtime.use_transport(transport)
        with progress:
            measurements = run_plan(plan, runtime.resolve(None), progress)
    except runtime.CollectiveError as error:
        console.clear_line()
        click.echo(str(error), err=True)
        sys.stdout.flush()
        # Threads of the broken group may still wait, and would abort a process that ends in order.
        os._exit(1)
    dist.destroy_process_group()
    if rank == 0:
        console.print_result(format_table(measurements, wide), measurements.as_dict(), as_json, output)
        _write(measurements, output)


def _write(measurements: Measurements, output: Path | None) -> None:
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        console.write_output(output, [measurements.as_text()])
    wrong = sum(times.wrong or 0 for times in measurements.collectives)
    if wrong:
        click.echo(f"benchmark: {wrong} elements are wrong: see the table", err=True)
        sys.exit(1)
