"""`trainers compare`: one process with the whole batch, then several with shares of it, by each strategy."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from ringsim.console import check_writable, run_local_ranks
from ringsim.files import read_json
from ringsim.measurements import provenance, save_json
from trainers.cli.task_options import read_settings, read_unknown
from trainers.comparison.runs import Row, Run, as_dict, compare, format_comparison, run_of_log
from trainers.loop.output_lock import WRITING_S, locked
from trainers.loop.step_log import read_log
from trainers.strategy_names import check_strategy
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
    size = batch_size or load_task(task, seed, **options).batch_size
    if size < ranks:
        raise ValueError(f"--batch-size {size}: must be at least --ranks {ranks}, so that every rank has a sample")
    check_writable(f"--output {output}", output)
    # As torchrun does for several ranks, but not for one, which would then have more cores than each of them.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with TemporaryDirectory() as folder:
        plan = Plan(task, options, steps, size, seed, Path(folder))
        gradients = plan.gradients(strategies, ranks)
        runs = [plan.run(ALONE, "none", 1, None)]
        runs += [plan.run(name, name, ranks, gradients.get(name)) for name in strategies]
    _save(compare(runs), f"{task}, batches of {size}", output)


@dataclass(frozen=True, slots=True)
class Plan:
    """What all runs have in common. options: of the task; folder: for what they leave."""

    task: str
    options: dict[str, Any]
    steps: int
    batch_size: int
    seed: int
    folder: Path

    def gradients(self, strategies: Sequence[str], ranks: int) -> dict[str, float]:
        """How far the gradients of each strategy are off."""
        checked = [name for name in strategies if name not in UNCHECKED]
        if not checked:
            return {}
        file = self.folder / "gradients.json"
        options = ["--options", json.dumps(self.options), *(f"--strategy={name}" for name in checked), "-o", str(file)]
        run_local_ranks(ranks, ["-m", "trainers.comparison.gradient_check", *self._common(), *options], quiet=True)
        found: dict[str, float] = read_json(file)
        return found

    def run(self, name: str, strategy: str, ranks: int, gradient_difference: float | None) -> Run:
        """Train, and read the log."""
        output = self.folder / name.replace(" ", "-").replace("/", "-")
        click.echo(f"{name}: training on {ranks} rank{'s' * (ranks > 1)}", err=True)
        steps = ["--steps", str(self.steps), "--epochs", str(self.steps), "--log-every", "1"]  # enough epochs for any
        settings = [text for key, value in self.options.items() for text in ("--set", f"{key}={value}")]
        arguments = [*self._common(), *steps, *settings, "--strategy", strategy, "--output", str(output)]
        run_local_ranks(ranks, ["-m", "trainers", "train", *arguments], quiet=True)
        return run_of_log(name, ranks, read_log(output / "log.jsonl"), self.batch_size, gradient_difference)

    def _common(self) -> list[str]:
        return ["--task", self.task, "--batch-size", str(self.batch_size), "--seed", str(self.seed)]


def _save(rows: Sequence[Row], title: str, output: Path) -> None:
    """Print the table, and leave figures and picture."""
    output.mkdir(parents=True, exist_ok=True)
    where = provenance()
    click.echo(format_comparison(rows))
    threads = os.environ["OMP_NUM_THREADS"]
    click.echo(f"\n{where['machine']}, {where['cores']} cores, OMP_NUM_THREADS={threads}, {where['date']}")
    with locked(output, lambda text: click.echo(text, err=True), WRITING_S):  # both are of one run
        save_json(output / "comparison.json", as_dict(rows, where))
        from trainers.comparison.plot import save_comparison_plot  # noqa: PLC0415  loads matplotlib

        save_comparison_plot(rows, f"{title}, {where['machine']}, {where['cores']} cores", output / "comparison.png")
    click.echo(f"wrote {output / 'comparison.json'} and comparison.png")
