"""The records of training results and of ringsim's JSON output, as they stand in files, which may have more keys."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import msgspec

from ringsim.files import FileFormat, JsonFile, OpenRecord, decode, encode, parse_json, read_text, values
from ringsim.measurements import Measurements, p10_p90
from ringsim.network import Network
from ringsim.training_step import PredictedDdpStep, StepProfile

NONE = "none"  # the strategy that does not synchronise
FLOAT32_BYTES = 4  # of a parameter's gradient, as the strategy comparison trains


class StrategyResult(OpenRecord, frozen=True):
    """The results of one strategy in the strategy comparison.

    tokens_per_s: None for tasks without tokens. sync_s, steps_s: of each measured step. losses: of the whole batch, by
    step. rank_sync_s: median synchronisation of each rank, including waits; empty in older reports.
    predicted_memory_bytes, memory_bytes: of the rank with most memory, by kind.
    """

    strategy: values.Name
    predicted_sync_s: values.Seconds
    measured_sync_s: values.Seconds
    predicted_step_s: values.Seconds
    step_s: values.Seconds
    tokens_per_s: values.Number | None
    final_loss: values.Number
    parameters_identical: bool
    sync_s: tuple[values.Seconds, ...]
    steps_s: tuple[values.Seconds, ...]
    losses: tuple[values.Number, ...]
    rank_sync_s: tuple[values.Seconds, ...] = ()
    predicted_memory_bytes: dict[str, values.Whole] = msgspec.field(default_factory=dict)
    memory_bytes: dict[str, values.Whole] = msgspec.field(default_factory=dict)

    @property
    def spread(self) -> float:
        low_s, high_s = self.sync_p10_p90_s
        return (high_s - low_s) / self.measured_sync_s

    @property
    def sync_p10_p90_s(self) -> tuple[float, float]:
        """Percentiles of `sync_s`; 0 without measured steps."""
        return p10_p90(self.sync_s) if self.sync_s else (0.0, 0.0)

    @property
    def error(self) -> float | None:
        """Predicted over measured synchronisation, less 1; None without one of them."""
        if len(self.rank_sync_s) == 1 or not (self.measured_sync_s > 0 and self.predicted_sync_s > 0):
            return None
        return self.predicted_sync_s / self.measured_sync_s - 1

    @property
    def step_error(self) -> float:
        return self.predicted_step_s / self.step_s - 1

    def as_dict(self) -> dict[str, Any]:
        (sync_low_s, sync_high_s), (step_low_s, step_high_s) = self.sync_p10_p90_s, p10_p90(self.steps_s)
        return {
            **encode(self),
            "measured_sync_p10_s": sync_low_s,
            "measured_sync_p90_s": sync_high_s,
            "error": self.error,
            "step_p10_s": step_low_s,
            "step_p90_s": step_high_s,
            "step_error": self.step_error,
            "steps_measured": len(self.sync_s),
        }


class JobReport(JsonFile, frozen=True, forbid_unknown_fields=False):
    """The strategy comparison's report.json: probes, the profile of a step, and the strategies' results."""

    num_ranks: values.NumRanks
    num_parameters: values.Positive
    measurements: values.By[Measurements, Measurements.from_dict]
    strategies: Annotated[tuple[StrategyResult, ...], values.AT_LEAST_ONE]
    profile: values.By[StepProfile, StepProfile.from_dict] | None = None
    task: dict[str, Any] = msgspec.field(default_factory=dict)
    train: dict[str, Any] = msgspec.field(default_factory=dict)
    network: dict[str, Any] = msgspec.field(default_factory=dict)

    FORMAT: ClassVar = FileFormat("ringsim-report", 1)

    def __post_init__(self) -> None:
        if self.measurements.num_ranks != self.num_ranks:
            raise ValueError(f"measurements: of {self.measurements.num_ranks} ranks, but num_ranks is {self.num_ranks}")

    def as_dict(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        parts = {"measurements": self.measurements.as_dict(), "strategies": [one.as_dict() for one in self.strategies]}
        return self.FORMAT.write({**fields, **parts, "profile": self.profile and self.profile.as_dict()})

    @property
    def gradient_bytes(self) -> int:
        return self.profile.gradient_bytes if self.profile else FLOAT32_BYTES * self.num_parameters

    @property
    def synchronising(self) -> list[StrategyResult]:
        """The strategies that leave all ranks with the same parameters."""
        return [result for result in self.strategies if result.strategy.partition("/")[0] != NONE]

    @property
    def provenance(self) -> dict[str, Any]:
        return self.measurements.provenance


class LogEntry(OpenRecord, frozen=True):
    """A line of a log.jsonl; None for missing values."""

    step: values.Positive
    loss: values.Number | None = None
    samples_per_s: values.Number | None = None
    sync_share: values.Number | None = None


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """The valid lines of a log.jsonl, and the number of damaged lines."""

    entries: tuple[LogEntry, ...]
    num_damaged: values.Whole = 0

    @property
    def last(self) -> LogEntry:
        return self.entries[-1]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a log. Raises ValueError without a valid line, OSError if it cannot be read."""
        lines = read_text(path).splitlines()
        entries: list[LogEntry] = []
        for line in lines:
            with suppress(ValueError):
                entry = decode(LogEntry, parse_json(line))
                if entry != LogEntry(entry.step) and (not entries or entry.step > entries[-1].step):
                    entries.append(entry)
        if not entries:
            raise ValueError(f"{path}: no line of it is a step of training with its number")
        return cls(tuple(entries), len(lines) - len(entries))


class TrainedTask(OpenRecord, frozen=True):
    """The task of a training run."""

    task: values.Name


class TrainingSettings(OpenRecord, frozen=True):
    """The settings of a training run in a report."""

    strategy: values.Name
    num_ranks: values.NumRanks


class TrainingSession(JsonFile, frozen=True, forbid_unknown_fields=False):
    """A finished run's result.json: task, settings and evaluation, with None for values that are not finite."""

    task: TrainedTask
    training: TrainingSettings
    num_parameters: values.Whole
    train_s: values.Seconds
    provenance: dict[str, Any]
    evaluation: dict[str, values.Number | None]

    FORMAT: ClassVar = FileFormat("ringsim-session", 1)


class TrainingRun(OpenRecord, frozen=True):
    """A run of `trainers compare`.

    gradient_difference: of the first step, from one process, over the largest gradient; None if unknown.
    """

    name: values.Name
    num_ranks: values.NumRanks
    batch_s: values.Seconds
    sync_share: values.Number
    losses: tuple[values.Number, ...] = ()
    gradient_difference: values.Number | None = None


class ComparedTraining(OpenRecord, frozen=True):
    """A run compared with one process."""

    run: TrainingRun
    speed_up: values.Number
    efficiency: values.Number
    loss_difference: values.Number


class TrainingComparison(JsonFile, frozen=True, forbid_unknown_fields=False):
    """The comparison.json of `trainers compare`, the run of one process first."""

    runs: Annotated[tuple[ComparedTraining, ...], values.AT_LEAST_ONE]
    provenance: dict[str, Any]

    FORMAT: ClassVar = FileFormat("ringsim-comparison", 1)


class DdpPrediction(OpenRecord, frozen=True):
    """The output of `ringsim ddp --json`: the step, whose fields are outermost, with other caps, and on more ranks."""

    step: PredictedDdpStep
    default_step_s: values.Seconds | None
    sweep: tuple[PredictedDdpStep, ...]
    scaling: tuple[PredictedDdpStep, ...]
    described: values.Described = msgspec.field(name="network")

    @property
    def network(self) -> str:
        return Network.name_in(self.described)

    @property
    def steps(self) -> tuple[PredictedDdpStep, ...]:
        return (self.step, *self.sweep, *self.scaling)
