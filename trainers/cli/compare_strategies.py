"""`trainers compare-strategies`, which is the strategy comparison: parse, check, start the process group, run, print.

Everything a user can get wrong is checked before torch is imported, which takes seconds.
"""

import datetime
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import click

from ringsim.cli.options import style_option
from ringsim.console import (
    INT,
    OUTPUT,
    REAL,
    STDOUT,
    Choice,
    Name,
    Progress,
    TorchrunCommand,
    check_writable,
    examples,
    json_option,
    print_result,
    require_one_stdout,
    require_torch,
    say,
    say_wrote,
    torchrun,
    wide_option,
)
from ringsim.units import plural
from trainers.checkpoints.output import OPTIONS_FILE, locked
from trainers.checkpoints.step_log import FOLDER, LOG, require_tensorboard
from trainers.cli.options import (
    config_of,
    log_options,
    model_options,
    rate_and_number_options,
    refuse_recording,
    strategy_names,
    timeout_option,
)
from trainers.cli.settings import as_toml, config_option
from trainers.loop.config import StepConfig, require_compiler
from trainers.loop.rank import end_together, leave, say_failures_before_the_end
from trainers.strategy_comparison.config import RESULTS, JobConfig, LogConfig
from trainers.strategy_names import STRATEGY_NAMES
from trainers.tasks.lm import LEARNING_RATE, LanguageModel

DEFAULT_STRATEGIES = "none,allreduce,flat,rs_ag,ring,bucketed,bucketed_bf16,ddp,ddp_hook,ddp_backend_ring,zero1"
START = "torchrun --nproc-per-node 4 -m trainers compare-strategies"
BATCH_SIZE, STEPS = 8, 100


@click.command(
    cls=TorchrunCommand,
    name="train_ring.py",
    epilog=examples(
        f"{START} --output report", "torchrun --nproc-per-node 2 scripts/train_ring.py --strategies ring,ddp"
    ),
)
@click.option(
    "--data",
    default="topics",
    help="Training data: topics (Python's own help pages), random bytes (random), or this file.",
)
@model_options
@click.option("--batch-size", type=INT, default=BATCH_SIZE, help="Samples per rank and step.")
@click.option("--steps", type=INT, default=STEPS, help="Number of training steps of each strategy.")
@click.option("--learning-rate", type=REAL, default=LEARNING_RATE, help="Learning rate of AdamW.")
@rate_and_number_options
@click.option(
    "--strategies",
    type=Name("names", STRATEGY_NAMES, several=True),
    callback=strategy_names,
    default=DEFAULT_STRATEGIES,
    help="Strategies to compare, in this order.",
)
@click.option(
    "--gloo-thread-policy",
    type=Choice(["batch", "normal"]),
    default="batch",
    help="Scheduling policy of Gloo's polling threads: with batch they do not take a core that is in use.",
)
@timeout_option
@click.option(
    "--profile",
    type=OUTPUT,
    help="Write the time at which each gradient is ready to this file, for ringsim ddp.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("report"),
    help="Write the report, its picture and a checkpoint to this directory.",
)
@log_options
@style_option
@wide_option
@config_option
@json_option
def main(
    gloo_thread_policy: Literal["batch", "normal"],
    timeout_s: float,
    style: str | None,
    wide: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Train a tiny transformer with several gradient synchronisation strategies; predict and measure each.

    Start it with torchrun; scripts/train_ring.py is the same.

    torchrun --nproc-per-node 4 -m trainers compare-strategies
    """
    require_torch("this command")  # before anything is said of torchrun, which comes with it
    refuse_recording()
    require_one_stdout(as_json, given["profile"])
    step = config_of(StepConfig, given)
    if step.compile:
        require_compiler()
    logged = config_of(LogConfig, given, options=as_toml(click.get_current_context(), {}))
    of_task = {name: given.pop(name) for name in LanguageModel.options if name != "data"}
    config = JobConfig(task=LanguageModel(step.seed, given["data"], **of_task), step=step, **given)
    step.batches(config.task, 0, torchrun.num_ranks(START))
    _check_output(logged)
    with locked(logged.output, say) if os.environ["RANK"] == "0" else nullcontext():  # one run at a time
        done = _run(config, gloo_thread_policy, timeout_s, logged, style)
    if done is not None:  # on rank 0
        report, busy = done
        from trainers.strategy_comparison.report import format_report  # noqa: PLC0415  with NumPy

        print_result(format_report(report, wide), report, as_json, config.profile)
        for line in busy:
            click.echo(line, err=as_json)  # one object alone may stand on stdout
        logs = [*([LOG] if logged.log_every else []), *([FOLDER] if logged.tensorboard else [])]
        for name in (*logs, OPTIONS_FILE, *RESULTS):
            say_wrote(logged.output / name)
        if config.profile and config.profile != STDOUT:
            say_wrote(config.profile)
        results = report["strategies"]
        sys.exit(not all(result["parameters_identical"] or result["strategy"] == "none" for result in results))


def _check_output(logged: LogConfig) -> None:
    """Find out before the work, not after it, that the results cannot be written."""
    output = logged.output
    if logged.tensorboard and os.environ["RANK"] == "0":
        require_tensorboard()
    for name in (LOG, *RESULTS):
        if (output / name).is_dir():
            raise click.UsageError(f"--output {output}: cannot be written: {name} is a directory there")
    check_writable(f"--output {output}", output)


def _run(
    config: JobConfig, policy: Literal["batch", "normal"], timeout_s: float, logged: LogConfig, style: str | None
) -> tuple[dict[str, Any], list[str]] | None:
    """The report, which has been saved, and a line if the machine was busy; None on other ranks than the first.

    Exits with 1 if the job fails.
    """
    progress = Progress(rank=int(os.environ["RANK"]))
    progress.begin(f"starting {plural(int(os.environ['WORLD_SIZE']), 'rank')}")
    import torch.distributed as dist  # noqa: PLC0415

    from collectives.runtime import CollectiveError, set_gloo_thread_policy  # noqa: PLC0415
    from trainers.loop.loss_sync import DivergedError  # noqa: PLC0415
    from trainers.strategy_comparison.job import run_job  # noqa: PLC0415
    from trainers.strategy_comparison.report import busy_lines, judge_report, save_results  # noqa: PLC0415

    say_failures_before_the_end()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
    group = dist.group.WORLD
    assert group is not None
    set_gloo_thread_policy(policy)
    with progress:
        try:
            report, checkpoint = run_job(config, group, progress, logged)
        except CollectiveError as error:
            leave(str(error))
        except DivergedError as error:
            sys.exit(end_together(f"{click.get_current_context().find_root().command.name}: {error}", 1, group))
        dist.destroy_process_group()  # rank 0 goes on alone: nobody waits for it, nor fails with it
        if group.rank() != 0:
            return None
        progress.begin("drawing the report")
        verdict = judge_report(report)
        save_results(report, verdict, checkpoint, logged.output, style)
        return report, busy_lines(verdict)
