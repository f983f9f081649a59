"""`trainers compare`, the strategy comparison: check all options before torch is loaded, run it, print the result."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ringsim import console
from ringsim.cli.options import style_option
from ringsim.console import Progress, examples
from ringsim.files import json_text
from ringsim.traces import RECORDING_ID
from ringsim.units import plural
from trainers.checkpoints.output import OPTIONS_FILE, locked, save_options
from trainers.cli.options import (
    TrainersCommand,
    all_options,
    as_toml,
    config_option,
    naming_options,
    rate_and_number_options,
    task_option,
    task_options,
    timeout_option,
)
from trainers.comparison import ONE_PROCESS, RESULTS, JobConfig
from trainers.launch.environment import DistributedEnvironment, read_environment
from trainers.launch.rendezvous import init_process_group
from trainers.launch.signals import end_together, leave, say_failures_before_the_end
from trainers.loop.config import StepConfig
from trainers.strategies import STRATEGIES
from trainers.tasks import load_task

if TYPE_CHECKING:
    from trainers.comparison.report import JobResult

DEFAULT_STRATEGIES = (
    f"{ONE_PROCESS},none,allreduce,flat,rs_ag,ring,bucketed,bucketed_bf16,ddp,ddp_hook,ddp_backend_ring,zero1"
)
START = "torchrun --nproc-per-node 4 -m trainers compare"


@click.command(
    cls=TrainersCommand,
    name="train_ring.py",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog=examples(
        f"{START} --output report", "torchrun --nproc-per-node 2 scripts/train_ring.py --strategies ring,ddp"
    ),
)
@task_option
@click.option("--batch-size", type=console.INT, default=8, help="Samples per rank and step.")
@click.option("--steps", type=console.INT, default=100, help="Number of training steps of each strategy.")
@rate_and_number_options
@click.option(
    "--strategies",
    type=console.Name("names", (ONE_PROCESS, *STRATEGIES), several=True),
    default=DEFAULT_STRATEGIES,
    help=f"Strategies to compare; {ONE_PROCESS} is the training in one process with the batch of all ranks.",
)
@timeout_option
@click.option("--profile", type=console.OUTPUT, help="Write when each gradient is ready to this file, for ringsim ddp.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("report"),
    help="Write the report, its pictures and a checkpoint to this directory.",
)
@style_option
@config_option
@console.json_option
def main(
    task: str,
    steps: int,
    strategies: str,
    timeout_s: float,
    profile: Path | None,
    output: Path,
    style: str | None,
    as_json: bool,
    **of_step: Any,
) -> None:
    """Train a task with several strategies, predict and measure each, and compare them with one process.

    Start it with torchrun; scripts/train_ring.py is the same. Options that are not listed are the task's, as in
    `trainers train`, such as --data and --d-model.
    """
    console.require_torch("this command")  # before anything is said of torchrun, which comes with it
    if os.environ.get("TORCHELASTIC_RUN_ID") == RECORDING_ID:
        raise click.UsageError(
            "it trains several times, but ringsim trace records one training: "
            "record -m trainers --strategy NAME, or run it without ringsim trace"
        )
    console.require_one_stdout(as_json, profile)
    options = task_options(task)
    step = StepConfig(**of_step)
    names = [name.strip() for name in strategies.split(",")]
    loaded = load_task(task, step.seed, **options)
    compared = tuple(name for name in names if name != ONE_PROCESS)
    config = JobConfig(loaded, step, compared, steps, one_process=ONE_PROCESS in names)
    step.batches(loaded, 0, console.num_ranks(START))
    environment = read_environment(os.environ)
    for name in RESULTS:  # found out before the work, not after it
        if (output / name).is_dir():
            raise click.UsageError(f"--output {output}: cannot be written: {name} is a directory there")
    console.check_writable(f"--output {output}", output)
    options_file = as_toml(click.get_current_context(), all_options(task, loaded, options))
    alone = locked(output, lambda text: console.say(naming_options(text)))  # one run at a time
    with alone if os.environ["RANK"] == "0" else nullcontext():
        if (result := _run(config, environment, timeout_s)) is None:
            return  # on another rank than the first
        from trainers.comparison.report import busy_lines, format_report  # noqa: PLC0415  loads NumPy

        verdict, report = result.verdict(), result.report
        files = [*result.save(verdict, output, style), output / OPTIONS_FILE]
        save_options(output, options_file)
    console.print_result(format_report(report, result.comparison), result.as_dict(), as_json, profile)
    for line in busy_lines(verdict):
        click.echo(line, err=as_json)  # one object alone may stand on stdout
    assert report.profile is not None
    if profile == console.STDOUT:
        click.echo(json_text(report.profile.as_dict()), nl=False)
    elif profile is not None:
        report.profile.save(profile)
        files.append(profile)
    for path in files:
        console.say_wrote(path)
    sys.exit(not all(result.parameters_identical for result in report.synchronising))


def _run(config: JobConfig, environment: DistributedEnvironment, timeout_s: float) -> "JobResult | None":
    progress = Progress(rank=int(os.environ["RANK"]))
    progress.begin(f"starting {plural(int(os.environ['WORLD_SIZE']), 'rank')}")
    import torch.distributed as dist  # noqa: PLC0415

    from collectives.runtime import CollectiveError  # noqa: PLC0415
    from trainers.comparison.job import run_job  # noqa: PLC0415
    from trainers.loop.train_step import DivergedError  # noqa: PLC0415

    say_failures_before_the_end()
    group = init_process_group(environment, timeout_s)
    with progress:
        try:
            done = run_job(config, group, progress)
        except CollectiveError as error:
            leave(str(error))
        except DivergedError as error:
            name = click.get_current_context().find_root().command.name
            sys.exit(end_together(naming_options(f"{name}: {error}"), 1, group))
    is_first = group.rank() == 0
    dist.destroy_process_group()  # rank 0 goes on alone: nobody waits for it, nor fails with it
    return done if is_first else None
