"""`trainers compare`: one process with the whole batch, then several with shares of it, by each strategy."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from ringsim.cli.options import style_option
from ringsim.console import (
    IntRange,
    Name,
    Progress,
    check_writable,
    examples,
    json_option,
    print_result,
    require_torch,
    run_local_ranks,
    say,
    say_wrote,
)
from ringsim.files import read_json, save_json
from ringsim.measurements import provenance
from ringsim.text_table import wrap_text
from ringsim.units import plural
from trainers.checkpoints.output import locked
from trainers.checkpoints.step_log import read_log
from trainers.cli.options import MAX_RANKS, config_options, refuse_recording, strategy_names, task_option
from trainers.cli.settings import given_settings
from trainers.comparison.runs import ComparisonRow, TrainingRun, as_dict, compare, format_comparison, run_of_log
from trainers.loop.config import StepConfig
from trainers.strategy_names import STRATEGY_NAMES, strategy_info
from trainers.tasks import load_task

ALONE = "one process"


@click.command(
    "compare",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog=examples("trainers compare --task mlp --strategy ring,ddp --ranks 2"),
)
@task_option("mlp")
@click.option(
    "--strategy",
    "strategies",
    type=Name("names", STRATEGY_NAMES, several=True),
    multiple=True,
    callback=strategy_names,
    default=("ring", "ddp"),
    help="Strategy of gradient synchronisation; separate several by commas, or repeat the option.",
)
@click.option("--ranks", type=IntRange(2, MAX_RANKS), default=2, help="Number of ranks that share the batch.")
@click.option("--steps", type=IntRange(2), default=60, help="Number of steps of each run.")
@config_options(StepConfig, "batch_size", "seed")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default="runs/compare",
    help="Write comparison.json and comparison.png to this directory.",
)
@style_option
@json_option
def compare_command(
    task: str,
    strategies: tuple[str, ...],
    ranks: int,
    steps: int,
    output: Path,
    style: str | None,
    as_json: bool,
    **of_step: Any,
) -> None:
    """Train the same batches from the same start alone and together, and compare losses, gradients and time.

    The one process has the batch of all ranks together. Options that are not listed are the task's, as in
    `trainers train`.
    """
    require_torch("this command")
    refuse_recording()
    options = given_settings(task)
    config = StepConfig(**of_step)
    batches = config.batches(load_task(task, config.seed, **options), 0, ranks)
    check_writable(f"--output {output}", output)
    # As torchrun does for several ranks, but not for one, which would then have more cores than each of them.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with locked(output, say):
        with TemporaryDirectory() as folder, Progress() as progress:
            launcher = ComparisonLauncher(
                task, options, config, ranks, batches.global_batch_size, steps, Path(folder), progress
            )
            gradients = launcher.gradient_differences(strategies)
            runs = [launcher.alone(), *(launcher.together(name, gradients.get(name)) for name in strategies)]
        _save(compare(runs), f"{task}, {batches}", output, style, as_json)


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
    progress: Progress

    def gradient_differences(self, strategies: Sequence[str]) -> dict[str, float]:
        """How far the gradients of each strategy are off."""
        checked = [name for name in strategies if strategy_info(name).leaves_mean]
        if not checked:
            return {}
        file = self.folder / "gradients.json"
        size = ["--global-batch-size", str(self.global_batch_size)]
        options = ["--options", json.dumps(self.options), *(f"--strategy={name}" for name in checked), "-o", str(file)]
        module = ["-m", "trainers.comparison.gradient_check", *self._common(), *size, *options]
        self.progress.begin("comparing gradients")
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
        self._announce(f"{name}: training on {plural(ranks, 'rank')}")
        size = ["--batch-size", str(batch_size)] if batch_size else []  # else the task's, which all ranks share
        # As many epochs as steps are enough for any task.
        steps = f"--steps {self.steps} --epochs {self.steps} --log-every 1 --quiet".split()
        settings = [text for key, value in self.options.items() for text in ("--set", f"{key}={value}")]
        arguments = [*self._common(), *size, *steps, *settings, "--strategy", strategy, "--output", str(output)]
        log = output / "log.jsonl"
        watch = partial(self._show_steps, log)
        run_local_ranks(ranks, ["-m", "trainers", "train", *arguments], quiet=True, meanwhile=watch)
        return run_of_log(name, ranks, read_log(log), self.global_batch_size, gradient_difference)

    def _announce(self, phase: str) -> None:
        """In its own line where no progress is drawn."""
        if not sys.stderr.isatty():
            say(phase)
        self.progress.begin(phase, self.steps)

    def _show_steps(self, log: Path) -> None:
        """How far a run is follows from its log, which has a line for each step."""
        done = log.read_bytes().count(b"\n") if log.exists() else 0
        self.progress.update(done - self.progress.done)

    def _common(self) -> list[str]:
        return ["--task", self.task, "--seed", str(self.config.seed)]


def _save(rows: Sequence[ComparisonRow], title: str, output: Path, style: str | None, as_json: bool) -> None:
    """Print the table, and leave figures and picture."""
    host = provenance()
    where = f"{title}, {host['machine']}, {host['cores']} cores"
    line = f"{where}, OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}, {host['date']}"
    print_result(f"{format_comparison(rows)}\n\n{wrap_text(line)}", as_dict(rows, host), as_json)
    save_json(output / "comparison.json", as_dict(rows, host))
    from trainers.comparison.plot import save_comparison_plot  # noqa: PLC0415  loads matplotlib

    save_comparison_plot(rows, where, output / "comparison.png", style)
    for name in ("comparison.json", "comparison.png"):
        say_wrote(output / name)
