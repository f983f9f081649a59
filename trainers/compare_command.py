"""`trainers compare`: one process with the whole batch, then several with shares of it, by each strategy."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from ringsim.local_ranks import run_local_ranks
from ringsim.measurements import save_json
from ringsim.provenance import provenance
from ringsim.torchrun import check_writable
from trainers.comparison import Run, as_dict, compare, format_comparison, run_of_log
from trainers.comparison_plot import save_comparison_plot
from trainers.strategy_names import check_strategy
from trainers.task_options import read_settings, read_unknown
from trainers.tasks import TASK_NAMES, load_task

ALONE = "one process"
UNCHECKED = ("none", "zero1")  # whose gradients are not to be the mean


@click.command(
    "compare",
    context_settings={"show_default": True, "ignore_unknown_options": True, "allow_extra_args": True},
)
@click.option("--task", default="mlp", help=f"{', '.join(TASK_NAMES)}, or MODULE:FUNCTION of your own.")
@click.option("--strategy", "strategies", multiple=True, default=("ring", "ddp"), help="Repeatable.")
@click.option("--ranks", type=click.IntRange(2, 1024), default=2, help="To share the batch.")
@click.option("--steps", type=click.IntRange(2), default=60)
@click.option("--batch-size", type=click.IntRange(2), help="Of all ranks together.  [default: the task's]")
@click.option("--seed", type=int, default=0)
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default="runs/compare")
def compare_command(
    task: str,
    strategies: tuple[str, ...],
    ranks: int,
    steps: int,
    batch_size: int | None,
    seed: int,
    output: Path,
) -> None:
    """Train the same batches from the same start alone and together: losses, gradients, time, speed-up, efficiency.

    Options that are not listed are the task's, as in `trainers train`.
    """
    for name in strategies:
        check_strategy(name)
    options = read_settings(task, read_unknown(click.get_current_context().args))
    loaded = load_task(task, seed, **options)
    size = batch_size or loaded.batch_size
    if size < ranks:
        raise ValueError(f"--batch-size {size}: must be at least --ranks {ranks}, so that every rank has a sample")
    check_writable(f"--output {output}", output)
    plan = ["--task", task, "--steps", str(steps), "--epochs", str(steps), "--batch-size", str(size)]
    plan += ["--seed", str(seed), "--log-every", "1", *_as_arguments(options)]
    # As torchrun does for several ranks, but not for one, which would then have more cores than each of them.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with TemporaryDirectory() as folder:
        gradients = _gradients(task, options, strategies, seed, size, ranks, Path(folder))
        runs = [_run(ALONE, "none", 1, plan, size, None, Path(folder))]
        runs += [_run(name, name, ranks, plan, size, gradients.get(name), Path(folder)) for name in strategies]
    output.mkdir(parents=True, exist_ok=True)
    rows, where = compare(runs), provenance()
    click.echo(format_comparison(rows))
    threads = os.environ["OMP_NUM_THREADS"]
    click.echo(f"\n{where['machine']}, {where['cores']} cores, OMP_NUM_THREADS={threads}, {where['date']}")
    save_json(output / "comparison.json", as_dict(rows, where))
    title = f"{task}, batches of {size}, {where['machine']}, {where['cores']} cores"
    save_comparison_plot(rows, title, output / "comparison.png")
    click.echo(f"wrote {output / 'comparison.json'} and comparison.png")


def _as_arguments(options: dict[str, Any]) -> list[str]:
    return [text for name, value in options.items() for text in ("--set", f"{name}={value}")]


def _gradients(
    task: str, options: dict[str, Any], strategies: Sequence[str], seed: int, batch_size: int, ranks: int, folder: Path
) -> dict[str, float]:
    """How far the gradients of each strategy are off."""
    checked = [name for name in strategies if name not in UNCHECKED]
    if not checked:
        return {}
    file = folder / "gradients.json"
    arguments = ["-m", "trainers.gradient_check", "--task", task, "--options", json.dumps(options)]
    arguments += ["--seed", str(seed), "--batch-size", str(batch_size), "-o", str(file)]
    run_local_ranks(ranks, [*arguments, *(f"--strategy={name}" for name in checked)], quiet=True)
    found: dict[str, float] = json.loads(file.read_text())
    return found


def _run(
    name: str, strategy: str, ranks: int, plan: Sequence[str], batch_size: int, off: float | None, folder: Path
) -> Run:
    """Train, and read the log."""
    from trainers.session.step_log import read_log  # noqa: PLC0415

    output = folder / name.replace(" ", "-").replace("/", "-")
    click.echo(f"{name}: training on {ranks} rank{'s' * (ranks > 1)}", err=True)
    arguments = ["-m", "trainers", "train", *plan, "--strategy", strategy, "--output", str(output)]
    run_local_ranks(ranks, arguments, quiet=True)
    return run_of_log(name, ranks, read_log(output / "log.jsonl"), batch_size, off)
