"""`Meter`: what has been measured since the last line of the log."""

import time
from typing import Any

import torch
import torch.distributed as dist

import collectives
from collectives.runtime import naming_failures
from trainers.loop.log_line import peak_memory_bytes
from trainers.loop.loss_sync import ALGORITHM
from trainers.loop.train_step import StepResult


class Meter:
    """One rank's; a line of the log holds the mean over all ranks.

    tokens_per_sample: 0 where samples have none. makes_lines: whether `line` will ever be asked for.
    skipped, skipped_in_a_row: steps that were left out, in the whole run and since the last that was not.
    """

    def __init__(self, group: dist.ProcessGroup, tokens_per_sample: int, makes_lines: bool = True) -> None:
        self._group = group
        self._tokens_per_sample = tokens_per_sample
        self._makes_lines = makes_lines
        self._losses: list[float] = []
        self._skipped_now = 0
        self.skipped = 0
        self.skipped_in_a_row = 0
        self.last_loss: float | None = None
        self.restart()

    def restart(self) -> None:
        """Time begins anew: what lies between the last step and this belongs to no step."""
        self._begin_s = time.perf_counter()
        self._steps = 0
        self._samples = 0
        self._communication_s = 0.0

    def add(self, result: StepResult, num_samples: int) -> None:
        """Note a step. num_samples: of all ranks together."""
        self._steps += 1
        self._samples += num_samples
        self._communication_s += result.communication_s
        if result.trouble:
            self._skipped_now += 1
            self.skipped += 1
            self.skipped_in_a_row += 1
        else:
            if self._makes_lines:  # else there would be more of them with every step, in every checkpoint
                self._losses.append(result.loss)
            self.last_loss = result.loss
            self.skipped_in_a_row = 0

    def line(self) -> dict[str, Any]:
        """Of the steps since the last call; collective. Time begins anew.

        loss: the mean over these steps of the loss of the whole batch; None if all of them were left out.
        peak_memory_bytes: of the rank's process that has needed most.
        """
        communication_s, elapsed_s, memory_bytes = self._of_all_ranks(time.perf_counter() - self._begin_s)
        line: dict[str, Any] = {"loss": sum(self._losses) / len(self._losses) if self._losses else None}
        if self._skipped_now:
            line["skipped"] = self._skipped_now
        line |= {f"{name}_per_s": round(count / elapsed_s, 1) for name, count in self._counts().items()}
        line["step_s"] = float(f"{elapsed_s / self._steps:.4g}")
        line["sync_share"] = round(communication_s / elapsed_s, 4)
        line["peak_memory_bytes"] = memory_bytes
        self._losses, self._skipped_now = [], 0
        self.restart()
        return line

    def _of_all_ranks(self, elapsed_s: float) -> tuple[float, float, int | None]:
        """Seconds of communicating and in all, the means over all ranks, and the largest peak of memory."""
        here = torch.tensor([self._communication_s, elapsed_s, peak_memory_bytes() or 0], dtype=torch.float64)
        everywhere = here.repeat(self._group.size(), 1)
        if self._group.size() > 1:
            with naming_failures(f"rank {self._group.rank()}: gathering the metrics failed"):
                collectives.all_gather_into_tensor(everywhere, here, self._group, algorithm=ALGORITHM)
        mean_communication_s, mean_elapsed_s, _ = everywhere.mean(0).tolist()
        return mean_communication_s, mean_elapsed_s, int(everywhere[:, 2].max()) or None

    def brief(self) -> str:
        """How it is going as this rank sees it, in 40 characters: beside phase, steps and time left on 80 columns."""
        elapsed_s = max(time.perf_counter() - self._begin_s, 1e-9)
        loss = "no loss yet" if self.last_loss is None else f"loss {self.last_loss:.4g}"
        name, count = list(self._counts().items())[-1]  # tokens where samples have any
        return f"{loss}, {count / elapsed_s:,.0f} {name}/s, {self._communication_s / elapsed_s:.0%} comm"

    def _counts(self) -> dict[str, int]:
        counts = {"samples": self._samples}
        return counts | {"tokens": self._samples * self._tokens_per_sample} if self._tokens_per_sample else counts

    def notes(self) -> dict[str, Any]:
        """What a run must know to go on from here; times are not part of it."""
        return {
            "losses": list(self._losses),
            "skipped_now": self._skipped_now,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "last_loss": self.last_loss,
        }

    def set_notes(self, notes: dict[str, Any]) -> None:
        """Go on from what `notes` gave."""
        self._losses, self._skipped_now = list(notes["losses"]), notes["skipped_now"]
        self.skipped, self.skipped_in_a_row = notes["skipped"], notes["skipped_in_a_row"]
        self.last_loss = notes["last_loss"]
