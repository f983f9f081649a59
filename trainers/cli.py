"""The command line of the main job: parse, check, start the process group, run, print.

Everything a user can get wrong is checked before torch is imported, which takes seconds.
"""

import datetime
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

import click

from ringsim.one_line import OneLineCommand
from trainers.config import RESULTS, ModelConfig, TrainConfig
from trainers.data import Tokens, load_tokens

STRATEGY_NAMES = ("allreduce", "rs_ag", "ring", "ddp")
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
MAX_TIMEOUT_S = 86400
GRACE_S = 20.0  # how long another rank leaves rank 0 to say what is wrong; torchrun ends it sooner


class _RefusedByOneRank(OneLineCommand):
    """Only the first rank of a host says what the user got wrong; the others would repeat it word for word."""

    def refuse(self, message: str, command: str | None) -> NoReturn:
        started = "torch" in sys.modules and sys.modules["torch"].distributed.is_initialized()
        if os.environ.get("LOCAL_RANK", "0") != "0" and not started:
            # torchrun ends all ranks as soon as one exits: that must not happen before rank 0 has spoken.
            time.sleep(GRACE_S)
            sys.exit(2)
        super().refuse(message, command)


def _names(_: click.Context, option: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(value.split(","))
    for name in names:
        if name not in STRATEGY_NAMES:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(STRATEGY_NAMES)}", param=option)
    if len(set(names)) != len(names):
        raise click.BadParameter(f"{value!r} names a strategy twice", param=option)
    return names


def _seconds(_: click.Context, option: click.Parameter, value: float) -> float:
    if not 0 < value <= MAX_TIMEOUT_S:
        raise click.BadParameter(f"{value}: must be greater than 0 and at most {MAX_TIMEOUT_S}", param=option)
    return value


@click.command(cls=_RefusedByOneRank, name="train_ring.py", context_settings={"show_default": True})
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
@click.option("--strategies", callback=_names, default=",".join(STRATEGY_NAMES), help="Which, and in which order.")
@click.option("--timeout", type=float, callback=_seconds, default=60.0, help="Seconds to wait for a peer.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), default=Path("report"))
def main(
    data: str,
    strategies: tuple[str, ...],
    timeout: float,
    output: Path,
    **sizes: Any,
) -> None:
    """Train a tiny transformer with each strategy of gradient synchronisation; predict and measure each.

    Start it with torchrun: torchrun --nproc-per-node 4 scripts/train_ring.py
    """
    train = TrainConfig(*(sizes.pop(name) for name in ("batch_size", "steps", "learning_rate", "seed")))
    model = ModelConfig(**sizes)
    num_ranks = _num_ranks()
    tokens = load_tokens(data, model, num_ranks, train.seed)
    _check_writable(output)
    sys.exit(_run(model, train, data, strategies, tokens, timeout, output))


def _num_ranks() -> int:
    missing = [name for name in TORCHRUN_VARIABLES if name not in os.environ]
    if missing:
        raise click.UsageError(
            f"{missing[0]} is not set: start it with torchrun: torchrun --nproc-per-node 4 scripts/train_ring.py"
        )
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"):
        if not os.environ[name].isdecimal():
            raise click.UsageError(f"{name}={os.environ[name]}: must be a whole number; torchrun sets it")
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank >= num_ranks:
        raise click.UsageError(f"RANK={rank}: must be less than WORLD_SIZE={num_ranks}; torchrun sets both")
    return num_ranks


def _check_writable(output: Path) -> None:
    """Find out before the work, not after it, that the results cannot be written."""
    existing = next(path for path in (output, *output.absolute().parents) if path.exists())
    for name in RESULTS:
        if (output / name).is_dir():
            raise click.UsageError(f"--output {output}: cannot be written: {name} is a directory there")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise click.UsageError(f"--output {output}: cannot be written: {error.strerror}") from error


def _run(
    model: ModelConfig,
    train: TrainConfig,
    data: str,
    strategies: tuple[str, ...],
    tokens: Tokens,
    timeout_s: float,
    output: Path,
) -> int:
    import torch.distributed as dist  # noqa: PLC0415

    from collectives.errors import CollectiveError  # noqa: PLC0415
    from trainers.main_job import Job, run_job, save_results  # noqa: PLC0415
    from trainers.report_table import format_report  # noqa: PLC0415
    from trainers.training import DivergedError  # noqa: PLC0415

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
    group = dist.group.WORLD
    assert group is not None
    try:
        with _progress(train.steps, group.rank()) as bar:
            report, runs = run_job(Job(model, train, data, strategies), tokens, group, lambda _: bar.update(1))
    except (CollectiveError, DivergedError) as error:
        click.echo(str(error), err=True)
        sys.stdout.flush()
        # Threads of the broken group may still be waiting, and would abort a process that takes leave in order.
        os._exit(1)
    dist.destroy_process_group()  # rank 0 goes on alone: nobody waits for it, nor fails with it
    if group.rank() == 0:
        click.echo(format_report(report))
        for path in save_results(report, runs, output):
            click.echo(f"wrote {path}")
    return 0 if all(result["parameters_identical"] for result in report["strategies"]) else 1


def _progress(steps: int, rank: int) -> Any:
    """A bar on rank 0's terminal; silent elsewhere."""
    hidden = rank != 0 or not sys.stderr.isatty()
    return click.progressbar(length=steps, label="training", file=sys.stderr, hidden=hidden, show_pos=True)
