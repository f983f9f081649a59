"""The files that a report reads beside measurements: what training left, and what ringsim printed with --json.

All of these may have more keys than a report needs.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from ringsim.files import FileFormat, JsonFile, decode, encode, parse_json, read_text, values
from ringsim.measurements import Measurements, busbw_factor, p10_p90
from ringsim.schedule import Collective
from ringsim.training_step import StepProfile

NONE = "none"  # the strategy that does not synchronise
FLOAT32_BYTES = 4  # of a parameter's gradient, as the strategy comparison trains
UNIFORM = "uniform"  # the name of a network without one


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """The results of one strategy of gradient synchronisation in the strategy comparison; times in seconds.

    tokens_per_s: None if the task has no tokens.
    sync_s, steps_s: of each step measured. losses: of the whole batch, by step. rank_sync_s: of each rank, the median
    of what it spent synchronising, waiting for others included; empty in older reports.
    """

    strategy: values.Name
    predicted_sync_s: float
    measured_sync_s: float
    predicted_step_s: float
    step_s: float
    tokens_per_s: float | None
    final_loss: float
    parameters_identical: bool
    sync_s: tuple[float, ...]
    steps_s: tuple[float, ...]
    losses: tuple[float, ...]
    rank_sync_s: tuple[float, ...] = ()

    @property
    def spread(self) -> float:
        """`sync_p10_p90_s` over the median."""
        low_s, high_s = self.sync_p10_p90_s
        return (high_s - low_s) / self.measured_sync_s

    @property
    def sync_p10_p90_s(self) -> tuple[float, float]:
        """The 10th and the 90th percentile of `sync_s`; 0 if no step was measured."""
        return p10_p90(self.sync_s) if self.sync_s else (0.0, 0.0)

    @property
    def error(self) -> float | None:
        """The predicted synchronisation over the measured one, less 1; None if there is none."""
        if len(self.rank_sync_s) == 1 or not (self.measured_sync_s > 0 and self.predicted_sync_s > 0):
            return None
        return self.predicted_sync_s / self.measured_sync_s - 1

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for report.json, with what follows from them."""
        (sync_low_s, sync_high_s), (step_low_s, step_high_s) = self.sync_p10_p90_s, p10_p90(self.steps_s)
        return {
            **encode(self),
            "measured_sync_p10_s": sync_low_s,
            "measured_sync_p90_s": sync_high_s,
            "error": self.error,
            "step_p10_s": step_low_s,
            "step_p90_s": step_high_s,
            "step_error": self.predicted_step_s / self.step_s - 1,
            "steps_measured": len(self.sync_s),
        }


@dataclass(frozen=True, slots=True)
class JobReport(JsonFile):
    """The strategy comparison's report.json: probes of the machine, a step's profile, and how each strategy did."""

    num_ranks: int
    num_parameters: values.Positive
    measurements: Measurements
    strategies: tuple[StrategyResult, ...]
    profile: StepProfile | None = None

    FORMAT: ClassVar = FileFormat("ringsim-report", 1, is_open=True)

    def __post_init__(self) -> None:
        if self.measurements.num_ranks != self.num_ranks:
            raise ValueError(f"measurements: of {self.measurements.num_ranks} ranks, but num_ranks is {self.num_ranks}")
        if not self.strategies:
            raise ValueError("strategies: there must be at least one")

    @property
    def gradient_bytes(self) -> int:
        """The bytes that a step synchronises."""
        return self.profile.gradient_bytes if self.profile else FLOAT32_BYTES * self.num_parameters

    @property
    def synchronising(self) -> list[StrategyResult]:
        """The strategies that leave all ranks with the same parameters."""
        return [result for result in self.strategies if result.strategy.partition("/")[0] != NONE]

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the report comes from."""
        return self.measurements.provenance


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line of a training run's log.jsonl; None for what it does not say."""

    step: values.Positive
    loss: float | None = None
    samples_per_s: float | None = None
    sync_share: float | None = None


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """The good lines of a log.jsonl, and how many are damaged."""

    entries: tuple[LogEntry, ...]
    num_damaged: int = 0

    @property
    def last(self) -> LogEntry:
        """The last good line."""
        return self.entries[-1]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the log. Raises ValueError if no line is good, OSError if it cannot be read."""
        lines = read_text(path).splitlines()
        entries: list[LogEntry] = []
        for line in lines:
            with suppress(ValueError):
                entry = decode(LogEntry, parse_json(line), is_open=True)
                if entry != LogEntry(entry.step) and (not entries or entry.step > entries[-1].step):
                    entries.append(entry)
        if not entries:
            raise ValueError(f"{path}: no line of it is a step of training with its number")
        return cls(tuple(entries), len(lines) - len(entries))


@dataclass(frozen=True, slots=True)
class TrainingSession(JsonFile):
    """A finished run's result.json: what was trained, how, and its evaluation, with None for what is not finite."""

    task: values.Name = field(metadata={"key": "task.task"})
    strategy: values.Name = field(metadata={"key": "training.strategy"})
    num_ranks: int = field(metadata={"key": "training.num_ranks"})
    num_parameters: int
    train_s: float
    provenance: dict[str, Any]
    evaluation: dict[str, float | None]

    FORMAT: ClassVar = FileFormat("ringsim-session", 1, is_open=True)


@dataclass(frozen=True, slots=True)
class ComparedTraining:
    """One run of `trainers compare` beside that of one process."""

    name: values.Name = field(metadata={"key": "run.name"})
    num_ranks: int = field(metadata={"key": "run.num_ranks"})
    batch_s: float = field(metadata={"key": "run.batch_s"})
    sync_share: float = field(metadata={"key": "run.sync_share"})
    speed_up: float
    efficiency: float
    loss_difference: float


@dataclass(frozen=True, slots=True)
class TrainingComparison(JsonFile):
    """The comparison.json of `trainers compare`, the run of one process first."""

    runs: tuple[ComparedTraining, ...]
    provenance: dict[str, Any]

    FORMAT: ClassVar = FileFormat("ringsim-comparison", 1, is_open=True)

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("runs: there must be at least one")


@dataclass(frozen=True, slots=True)
class ComparedCell:
    """A measured collective and its prediction, if there is one: a cell of `ringsim compare`'s compare.json.

    spread: of the measured times, from their 10th to their 90th percentile, over the median.
    """

    collective: values.Name
    algorithm: values.Name
    size_bytes: int
    num_ranks: int
    predicted_s: float | None
    measured_s: values.Duration
    spread: float
    used_in_calibration: bool = False

    @property
    def error(self) -> float | None:
        """The predicted time over the measured one, less 1."""
        return None if self.predicted_s is None else self.predicted_s / self.measured_s - 1

    @property
    def busbw_bytes_per_s(self) -> float:
        """Bus bandwidth of the measured time, as nccl-tests define it."""
        return busbw_factor(self.collective, self.num_ranks) * self.size_bytes / self.measured_s


@dataclass(frozen=True, slots=True)
class ComparedCells:
    """The compare.json of `ringsim compare`. network: its name."""

    network: str
    cells: tuple[ComparedCell, ...]


@dataclass(frozen=True, slots=True)
class SimulatedCollective:
    """A run that `ringsim simulate` or `explain` printed with --json. time_s: None if it never finishes.

    bottleneck: the resource that is used most; "" if it is not known.
    """

    collective: Collective
    algorithm: values.Name
    num_ranks: int
    size_bytes: int
    num_steps: int
    num_transfers: int
    time_s: float | None
    busbw_bytes_per_s: float | None
    network: str = field(default=UNIFORM, metadata={"key": "network.name"})
    bottleneck: str = field(default="", metadata={"key": "explained.bottleneck.name"})


@dataclass(frozen=True, slots=True)
class PredictedDdpStep:
    """A training step with DDP. exposed_s, communication_s, step_s: None if it never ends; single_s: of one process."""

    num_ranks: int
    cap_bytes: values.Positive
    communication_s: float | None
    exposed_s: float | None
    step_s: float | None
    single_s: float

    @property
    def efficiency(self) -> float | None:
        """The step of one process over this one."""
        return self.single_s / self.step_s if self.step_s else None


@dataclass(frozen=True, slots=True)
class DdpPrediction:
    """The output of `ringsim ddp --json`: the step that was asked for, with other caps, and on more ranks.

    step: the one that was asked for; in the JSON its fields are keys of the outermost object.
    """

    step: PredictedDdpStep
    default_step_s: float | None
    sweep: tuple[PredictedDdpStep, ...]
    scaling: tuple[PredictedDdpStep, ...]
    network: str = field(default=UNIFORM, metadata={"key": "network.name"})

    @property
    def steps(self) -> tuple[PredictedDdpStep, ...]:
        """All of them."""
        return (self.step, *self.sweep, *self.scaling)
