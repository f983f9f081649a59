"""`JobLog`: how the strategy comparison is going, a line for every few steps of all strategies."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch.distributed as dist

from trainers.checkpoints.output import save_options
from trainers.checkpoints.step_log import FOLDER, LOG, StepLog, TensorBoardLog
from trainers.loop.config import has_line
from trainers.loop.log_line import describe_line, describe_process, format_milliseconds, format_norm, peak_memory_bytes
from trainers.loop.train_step import StepResult, TrainStep
from trainers.strategy_comparison.config import LogConfig

Line = dict[str, Any]


class JobLog:
    """Made on all ranks when training begins; rank 0 writes the files, and tells each line.

    steps: of each strategy. tokens: of a step, of all ranks together. Times are those of rank 0: to hear of the others'
    the ranks would have to communicate between the steps that are measured.

    Raises OSError if the files cannot be written.
    """

    def __init__(
        self, config: LogConfig, steps: int, tokens: int, group: dist.ProcessGroup, say: Callable[[str], None]
    ) -> None:
        self._config, self._steps, self._tokens, self._say = config, steps, tokens, say
        self._writes = group.rank() == 0
        self._log: StepLog | None = None
        self._boards: dict[str, TensorBoardLog] = {}
        self._begin_s = time.perf_counter()
        if self._writes and (config.log_every or config.options):
            config.output.mkdir(parents=True, exist_ok=True)
        if self._writes and config.options:
            save_options(config.output, config.options)
        if self._writes and config.log_every:
            self._log = StepLog(config.output / LOG)

    def is_due(self, done: int) -> bool:
        """Return whether there is a line after that many steps."""
        return has_line(done, self._config.log_every, self._steps)

    def write(self, done: int, runs: Mapping[str, tuple[TrainStep, Sequence[StepResult]]]) -> None:
        """Tell of all strategies after `done` steps; collective. runs: by name, with the results of all its steps."""
        since = (done - 1) // self._config.log_every * self._config.log_every
        strategies = {name: self._figures(done, step, results[since:]) for name, (step, results) in runs.items()}
        if not self._writes:
            return
        left_s = (time.perf_counter() - self._begin_s) / done * (self._steps - done)
        line = {
            "step": done,
            "strategies": strategies,
            "peak_memory_bytes": peak_memory_bytes(),
            "time_left_s": round(left_s, 1),
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        if self._log is not None:
            self._log.write(line)
        if self._config.tensorboard:
            for name, figures in strategies.items():
                self._board(name).write({"step": done, **figures})
        self._say(describe_job_line(line, self._steps))

    def _figures(self, done: int, train_step: TrainStep, results: Sequence[StepResult]) -> Line:
        """Return the figures of one strategy's steps since the last line."""
        with train_step.naming_step(done - 1):
            norm = train_step.gradient_norm()
        step_s = sum(result.step_s for result in results)
        return {
            "loss": sum(result.loss for result in results) / len(results),
            "tokens_per_s": round(self._tokens * len(results) / step_s, 1),
            "step_s": float(f"{step_s / len(results):.4g}"),
            "sync_share": round(sum(result.communication_s for result in results) / step_s, 4),
            "gradient_norm": float(f"{norm:.5g}") if math.isfinite(norm) else None,
        }

    def _board(self, strategy: str) -> TensorBoardLog:
        """Return a run of TensorBoard's for each strategy, which draws their curves on top of one another."""
        if strategy not in self._boards:
            folder = self._config.output / FOLDER / strategy.replace("/", "-")
            self._boards[strategy] = TensorBoardLog(folder, 0)
        return self._boards[strategy]

    def close(self) -> None:
        """Write no more lines."""
        if self._log is not None:
            self._log.close()
        for board in self._boards.values():
            board.close()


def describe_job_line(line: Mapping[str, Any], num_steps: int) -> str:
    """Return a line of the strategy comparison's log as it is printed: from which strategy's figures to which.

    num_steps: of each strategy.
    """
    strategies: dict[str, Line] = line["strategies"]
    if len(strategies) == 1:
        return describe_line({**line, **next(iter(strategies.values()))}, num_steps)
    parts = [
        f"mean loss {_range(strategies, 'loss', '{:.4g}'.format, named=False)}",
        f"{_range(strategies, 'tokens_per_s', '{:,.0f}'.format, named=False)} tokens/s",
        f"{_range(strategies, 'step_s', format_milliseconds)} a step",
        f"{_range(strategies, 'sync_share', '{:.0%}'.format)} exposed communication",
        f"gradient norm {_range(strategies, 'gradient_norm', format_norm, named=False)}",
    ]
    return ", ".join([f"step {line['step']}/{num_steps}: {parts[0]}", *parts[1:], *describe_process(line)])


def _range(strategies: Mapping[str, Line], figure: str, shown: Callable[[Any], str], named: bool = True) -> str:
    """Return such as 12 ms (none) to 31 ms (ring); of figures that are shown alike, one. named: whether names are."""
    values = {name: math.inf if line[figure] is None else line[figure] for name, line in strategies.items()}
    ordered = sorted(strategies, key=values.__getitem__)
    least, most = ordered[0], ordered[-1]
    texts = [shown(strategies[name][figure]) for name in (least, most)]
    if texts[0] == texts[1]:
        return texts[0]
    return " to ".join(f"{text} ({name})" if named else text for text, name in zip(texts, (least, most), strict=True))
