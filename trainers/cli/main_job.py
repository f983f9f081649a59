"""The command line of the main job: parse, check, start the process group, run, print.

Everything a user can get wrong is checked before torch is imported, which takes seconds.
"""

import datetime
import sys
from pathlib import Path
from typing import Any, Literal

import click

from ringsim.console import OUTPUT, TorchrunCommand, check_writable, progress_bar, torchrun
from trainers.loop.rank import leave
from trainers.strategy_names import check_strategy
from trainers.tasks.config import RESULTS, Job, ModelConfig, TrainConfig
from trainers.tasks.data import Tokens, load_tokens

STRATEGIES = "none,allreduce,flat,rs_ag,ring,bucketed,bucketed_bf16,ddp,ddp_ring,ddp_on_ring,zero1"
START = "torchrun --nproc-per-node 4 scripts/train_ring.py"
MAX_TIMEOUT_S = 86400


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


def _seconds(_: click.Context, option: click.Parameter, value: float) -> float:
    if not 0 < value <= MAX_TIMEOUT_S:
        raise click.BadParameter(f"{value}: must be greater than 0 and at most {MAX_TIMEOUT_S}", param=option)
    return value


@click.command(cls=TorchrunCommand, name="train_ring.py", context_settings={"show_default": True})
@click.option(
    "--data", default="topics", help="topics (Python's own help pages), random, or a file to read bytes from."
)
@click.option("--vocabulary", type=int, default=ModelConfig().vocabulary)
@click.option("--d-model", type=int, default=ModelConfig().d_model)
@click.option("--heads", type=int, default=ModelConfig().heads)
@click.option("--layers", type=int, default=ModelConfig().layers)
@click.option("--d-ff", type=int, default=ModelConfig().d_ff)
@click.option("--sequence-length", type=int, default=ModelConfig().sequence_length)
@click.option("--batch-size", type=int, default=TrainConfig().batch_size, help="Sequences per rank and step.")
@click.option("--steps", type=int, default=TrainConfig().steps)
@click.option("--learning-rate", type=float, default=TrainConfig().learning_rate)
@click.option("--seed", type=int, default=TrainConfig().seed)
@click.option("--strategies", callback=_names, default=STRATEGIES, help="Which, and in which order.")
@click.option(
    "--gloo-thread-policy",
    type=click.Choice(["batch", "normal"]),
    default="batch",
    help="Of the kernel for Gloo's polling threads: as batch they take no core that is in use.",
)
@click.option("--timeout", type=float, callback=_seconds, default=60.0, help="Seconds to wait for a peer.")
@click.option("--profile", type=OUTPUT, help="Where to save when each gradient is ready, for ringsim ddp.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), default=Path("report"))
def main(
    data: str,
    strategies: tuple[str, ...],
    gloo_thread_policy: Literal["batch", "normal"],
    timeout: float,
    profile: Path | None,
    output: Path,
    **sizes: Any,
) -> None:
    """Train a tiny transformer with each strategy of gradient synchronisation; predict and measure each.

    Start it with torchrun: torchrun --nproc-per-node 4 scripts/train_ring.py
    """
    train = TrainConfig(*(sizes.pop(name) for name in ("batch_size", "steps", "learning_rate", "seed")))
    model = ModelConfig(**sizes)
    num_ranks = torchrun.num_ranks(START)
    tokens = load_tokens(data, model, num_ranks, train.seed)
    _check_writable(output)
    sys.exit(_run(Job(model, train, data, strategies, profile), tokens, gloo_thread_policy, timeout, output))


def _check_writable(output: Path) -> None:
    """Find out before the work, not after it, that the results cannot be written."""
    for name in RESULTS:
        if (output / name).is_dir():
            raise click.UsageError(f"--output {output}: cannot be written: {name} is a directory there")
    check_writable(f"--output {output}", output)


def _run(job: Job, tokens: Tokens, policy: Literal["batch", "normal"], timeout_s: float, output: Path) -> int:
    import torch.distributed as dist  # noqa: PLC0415

    from collectives.runtime import CollectiveError, set_gloo_thread_policy  # noqa: PLC0415
    from trainers.loop.training import DivergedError  # noqa: PLC0415
    from trainers.main_job.job import run_job, save_results  # noqa: PLC0415
    from trainers.main_job.report_table import format_report  # noqa: PLC0415

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
    group = dist.group.WORLD
    assert group is not None
    set_gloo_thread_policy(policy)
    try:
        with progress_bar(job.train.steps, "training", rank=group.rank()) as bar:
            report, checkpoint = run_job(job, tokens, group, lambda _: bar.update(1))
    except (CollectiveError, DivergedError) as error:
        leave(str(error))
    dist.destroy_process_group()  # rank 0 goes on alone: nobody waits for it, nor fails with it
    if group.rank() == 0:
        click.echo(format_report(report))
        for path in save_results(report, checkpoint, output, lambda text: click.echo(text, err=True)):
            click.echo(f"wrote {path}")
    return 0 if all(each["parameters_identical"] or each["strategy"] == "none" for each in report["strategies"]) else 1
