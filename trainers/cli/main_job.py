"""The command line of the main job: parse, check, start the process group, run, print.

Everything a user can get wrong is checked before torch is imported, which takes seconds.
"""

import datetime
import sys
from functools import partial
from pathlib import Path
from typing import Literal

import click

from ringsim.cli.options import style_option
from ringsim.console import OUTPUT, TorchrunCommand, check_writable, progress_bar, torchrun
from trainers.cli.options import batch_size_option, model_options, seed_option, timeout_option
from trainers.loop.config import StepConfig
from trainers.loop.rank import end_together, leave, say_failures_before_the_end
from trainers.main_job.config import RESULTS, JobConfig
from trainers.strategy_names import check_strategy
from trainers.tasks.lm import LEARNING_RATE, LanguageModel

DEFAULT_STRATEGIES = "none,allreduce,flat,rs_ag,ring,bucketed,bucketed_bf16,ddp,ddp_ring,ddp_on_ring,zero1"
START = "torchrun --nproc-per-node 4 scripts/train_ring.py"
BATCH_SIZE, STEPS = 8, 100


def _names(_: click.Context, option: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(value.split(","))
    for name in names:
        try:
            check_strategy(name)
        except ValueError as error:
            raise click.BadParameter(str(error), param=option) from error
    if len(set(names)) != len(names):
        raise click.BadParameter(f"{value!r} names a strategy twice", param=option)
    return names


@click.command(cls=TorchrunCommand, name="train_ring.py", context_settings={"show_default": True})
@click.option(
    "--data", default="topics", help="topics (Python's own help pages), random, or a file to read bytes from."
)
@model_options
@batch_size_option(BATCH_SIZE)
@click.option("--steps", type=int, default=STEPS)
@click.option("--learning-rate", type=float, default=LEARNING_RATE)
@seed_option
@click.option("--strategies", callback=_names, default=DEFAULT_STRATEGIES, help="Which, and in which order.")
@click.option(
    "--gloo-thread-policy",
    type=click.Choice(["batch", "normal"]),
    default="batch",
    help="Of the kernel for Gloo's polling threads: as batch they take no core that is in use.",
)
@timeout_option
@click.option("--profile", type=OUTPUT, help="Where to save when each gradient is ready, for ringsim ddp.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), default=Path("report"))
@style_option
def main(
    data: str,
    batch_size: int,
    steps: int,
    learning_rate: float,
    seed: int,
    strategies: tuple[str, ...],
    gloo_thread_policy: Literal["batch", "normal"],
    timeout_s: float,
    profile: Path | None,
    output: Path,
    style: str | None,
    **sizes: int,
) -> None:
    """Train a tiny transformer with each strategy of gradient synchronisation; predict and measure each.

    Start it with torchrun: torchrun --nproc-per-node 4 scripts/train_ring.py
    """
    step = StepConfig(batch_size=batch_size, seed=seed)
    task = LanguageModel(seed, data, learning_rate, **sizes)
    config = JobConfig(task, data, step, strategies, steps, profile)
    step.batches(task, 0, torchrun.num_ranks(START))
    _check_writable(output)
    sys.exit(_run(config, gloo_thread_policy, timeout_s, output, style))


def _check_writable(output: Path) -> None:
    """Find out before the work, not after it, that the results cannot be written."""
    for name in RESULTS:
        if (output / name).is_dir():
            raise click.UsageError(f"--output {output}: cannot be written: {name} is a directory there")
    check_writable(f"--output {output}", output)


def _run(
    config: JobConfig, policy: Literal["batch", "normal"], timeout_s: float, output: Path, style: str | None
) -> int:
    import torch.distributed as dist  # noqa: PLC0415

    from collectives.runtime import CollectiveError, set_gloo_thread_policy  # noqa: PLC0415
    from trainers.loop.loss_sync import DivergedError  # noqa: PLC0415
    from trainers.main_job.job import run_job  # noqa: PLC0415
    from trainers.main_job.report import busy_lines, judge_report, save_results  # noqa: PLC0415
    from trainers.main_job.report_table import format_report  # noqa: PLC0415

    say_failures_before_the_end()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
    group = dist.group.WORLD
    assert group is not None
    set_gloo_thread_policy(policy)
    try:
        with progress_bar(config.steps, "training", rank=group.rank()) as bar:
            report, checkpoint = run_job(config, group, lambda _: bar.update(1))
    except CollectiveError as error:
        leave(str(error))
    except DivergedError as error:
        return end_together(f"train_ring.py: {error}", 1, group)
    dist.destroy_process_group()  # rank 0 goes on alone: nobody waits for it, nor fails with it
    if group.rank() == 0:
        click.echo(format_report(report))
        verdict = judge_report(report)
        for line in busy_lines(verdict):
            click.echo(line)
        say = partial(click.echo, err=True)
        for path in save_results(report, verdict, checkpoint, output, say, style=style):
            click.echo(f"wrote {path}")
    results = report["strategies"]
    return 0 if all(result["parameters_identical"] or result["strategy"] == "none" for result in results) else 1
