"""`trainers compare`: one process with the whole batch, then several with shares of it, by each strategy."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from ringsim.cli.options import style_option
from ringsim.console import check_writable, run_local_ranks
from ringsim.files import read_json
from ringsim.measurements import provenance, save_json
from trainers.checkpoints.output_lock import WRITING_S, locked
from trainers.checkpoints.step_log import read_log
from trainers.cli.options import MAX_RANKS, batch_size_option, seed_option, task_option
from trainers.cli.task_options import read_settings, read_unknown
from trainers.comparison.runs import ComparisonRow, TrainingRun, as_dict, compare, format_comparison, run_of_log
from trainers.loop.config import StepConfig
from trainers.strategy_names import check_strategy
from trainers.tasks import load_task

ALONE = "one process"
UNCHECKED = ("none", "zero1")  # whose gradients are not to be the mean


@click.command(
    "compare",
    context_settings={"show_default": True, "ignore_unknown_options": True, "allow_extra_args": True},
)
@task_option("mlp")
@click.option("--strategy", "strategies", multiple=True, default=("ring", "ddp"), help="Repeatable.")
@click.option("--ranks", type=click.IntRange(2, MAX_RANKS), default=2, help="To share the batch.")
@click.option("--steps", type=click.IntRange(2), default=60)
@batch_size_option()
@seed_option
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default="runs/compare")
@style_option
def compare_command(
    task: str,
    strategies: tuple[str, ...],
    ranks: int,
    steps: int,
    batch_size: int | None,
    seed: int,
    output: Path,
    style: str | None,
) -> None:
    """Train the same batches from the same start alone and together: losses, gradients, time, speed-up, efficiency.

    The one process has the batch of all ranks together. Options that are not listed are the task's, as in
    `trainers train`.
    """
    for name in strategies:
        check_strategy(name)
    options = read_settings(task, read_unknown(click.get_current_context().args))
    config = StepConfig(batch_size=batch_size, seed=seed)
    batches = config.batches(load_task(task, seed, **options), 0, ranks)
    check_writable(f"--output {output}", output)
    # As torchrun does for several ranks, but not for one, which would then have more cores than each of them.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with TemporaryDirectory() as folder:
        launcher = ComparisonLauncher(task, options, config, ranks, batches.global_batch_size, steps, Path(folder))
        gradients = launcher.gradient_differences(strategies)
        runs = [launcher.alone(), *(launcher.together(name, gradients.get(name)) for name in strategies)]
    _save(compare(runs), f"{task}, {batches}", output, style)


@dataclass(frozen=True, slots=True)
class ComparisonLauncher:
    """Starts the runs of a comparison, and reads what they leave.

    options: of the task. config: of a rank where there are several. folder: for what the runs leave.
    """

    task: str
    options: dict[str, Any]
    config: StepConfig
    num_ranks: int
    global_batch_size: int
    steps: int
    folder: Path

    def gradient_differences(self, strategies: Sequence[str]) -> dict[str, float]:
        """How far the gradients of each strategy are off."""
        checked = [name for name in strategies if name not in UNCHECKED]
        if not checked:
            return {}
        file = self.folder / "gradients.json"
        size = ["--global-batch-size", str(self.global_batch_size)]
        options = ["--options", json.dumps(self.options), *(f"--strategy={name}" for name in checked), "-o", str(file)]
        module = ["-m", "trainers.comparison.gradient_check", *self._common(), *size, *options]
        run_local_ranks(self.num_ranks, module, quiet=True)
        differences: dict[str, float] = read_json(file)
        return differences

    def alone(self) -> TrainingRun:
        """Train in one process, on the batch of all ranks together."""
        return self._run(ALONE, "none", 1, self.global_batch_size, None)

    def together(self, strategy: str, gradient_difference: float | None) -> TrainingRun:
        """Train on all ranks."""
        return self._run(strategy, strategy, self.num_ranks, self.config.batch_size, gradient_difference)

    def _run(
        self, name: str, strategy: str, ranks: int, batch_size: int | None, gradient_difference: float | None
    ) -> TrainingRun:
        output = self.folder / name.replace(" ", "-").replace("/", "-")
        click.echo(f"{name}: training on {ranks} rank{'s' * (ranks > 1)}", err=True)
        size = ["--batch-size", str(batch_size)] if batch_size else []  # else the task's, which all ranks share
        steps = ["--steps", str(self.steps), "--epochs", str(self.steps), "--log-every", "1"]  # enough epochs for any
        settings = [text for key, value in self.options.items() for text in ("--set", f"{key}={value}")]
        arguments = [*self._common(), *size, *steps, *settings, "--strategy", strategy, "--output", str(output)]
        run_local_ranks(ranks, ["-m", "trainers", "train", *arguments], quiet=True)
        lines = read_log(output / "log.jsonl")
        return run_of_log(name, ranks, lines, self.global_batch_size, gradient_difference)

    def _common(self) -> list[str]:
        return ["--task", self.task, "--seed", str(self.config.seed)]


def _save(rows: Sequence[ComparisonRow], title: str, output: Path, style: str | None) -> None:
    """Print the table, and leave figures and picture."""
    output.mkdir(parents=True, exist_ok=True)
    host = provenance()
    click.echo(format_comparison(rows))
    threads = os.environ["OMP_NUM_THREADS"]
    click.echo(f"\n{title}, {host['machine']}, {host['cores']} cores, OMP_NUM_THREADS={threads}, {host['date']}")
    with locked(output, lambda text: click.echo(text, err=True), WRITING_S):  # both are of one run
        save_json(output / "comparison.json", as_dict(rows, host))
        from trainers.comparison.plot import save_comparison_plot  # noqa: PLC0415  loads matplotlib

        where = f"{title}, {host['machine']}, {host['cores']} cores"
        save_comparison_plot(rows, where, output / "comparison.png", style)
    click.echo(f"wrote {output / 'comparison.json'} and comparison.png")
