"""What training leaves in files, read as plain data: the main job's report, a run's log, a comparison of runs."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from ringsim.files import (
    MAX_RANKS,
    as_tuple,
    naming_place,
    parse_json,
    quoted,
    read_text,
    require_name,
    require_object,
    require_seconds,
    require_text,
    require_whole,
)
from ringsim.measurements import Measurements
from ringsim.training_step import StepProfile

JOB_FORMAT = "ringsim-report"
SESSION_FORMAT = "ringsim-session"
COMPARISON_FORMAT = "ringsim-comparison"
VERSION = 1
NONE = "none"  # the strategy that does not synchronise
FLOAT32_BYTES = 4  # of a parameter's gradient, as the main job trains

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """How one strategy of gradient synchronisation did in the main job; times in seconds.

    sync_s, steps_s: of each step measured. rank_sync_s: of each rank, the median of what it spent synchronising,
    waiting for others included; empty in older reports.
    """

    strategy: str
    predicted_sync_s: float
    measured_sync_s: float
    predicted_step_s: float
    step_s: float
    tokens_per_s: float
    final_loss: float
    parameters_identical: bool
    sync_s: tuple[float, ...]
    steps_s: tuple[float, ...]
    losses: tuple[float, ...]
    rank_sync_s: tuple[float, ...] = ()

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Returns an entry of a report. Raises ValueError, in one line, for what is missing or impossible."""
        require_object("strategies", data)
        require_name("strategy", data.get("strategy"))
        identical = data.get("parameters_identical")
        if not isinstance(identical, bool):
            raise ValueError(f"parameters_identical {quoted(identical)}: must be true or false")
        return cls(
            strategy=data["strategy"],
            predicted_sync_s=_seconds("predicted_sync_s", data.get("predicted_sync_s")),
            measured_sync_s=_seconds("measured_sync_s", data.get("measured_sync_s")),
            predicted_step_s=_seconds("predicted_step_s", data.get("predicted_step_s")),
            step_s=_seconds("step_s", data.get("step_s")),
            tokens_per_s=_number("tokens_per_s", data.get("tokens_per_s")),
            final_loss=_number("final_loss", data.get("final_loss")),
            parameters_identical=identical,
            sync_s=_all_seconds("sync_s", data.get("sync_s")),
            steps_s=_all_seconds("steps_s", data.get("steps_s")),
            losses=tuple(_number("losses", value) for value in as_tuple("losses", data.get("losses"))),
            rank_sync_s=_all_seconds("rank_sync_s", data.get("rank_sync_s", [])),
        )


@dataclass(frozen=True, slots=True)
class JobReport:
    """The main job's report.json: probes of the machine, a step's profile, and how each strategy did."""

    num_ranks: int
    num_parameters: int
    measurements: Measurements
    strategies: tuple[StrategyResult, ...]
    profile: StepProfile | None = None

    @property
    def gradient_bytes(self) -> int:
        """What a step synchronises."""
        return self.profile.gradient_bytes if self.profile else FLOAT32_BYTES * self.num_parameters

    @property
    def synchronising(self) -> list[StrategyResult]:
        """Those that leave all ranks with the same parameters."""
        return [result for result in self.strategies if result.strategy.partition("/")[0] != NONE]

    @property
    def unsynchronised(self) -> StrategyResult | None:
        """The training of each rank for itself, with which the cost of the others is compared; None if not tried."""
        return next((result for result in self.strategies if result.strategy == NONE), None)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Returns what report.json holds. Raises ValueError, in one line, for what is missing or impossible."""
        _require_version(data, JOB_FORMAT)
        require_whole("num_ranks", data.get("num_ranks"), 1, MAX_RANKS)
        require_whole("num_parameters", data.get("num_parameters"), 1)
        measurements = _within("measurements", Measurements.from_dict, data.get("measurements"))
        if measurements.num_ranks != data["num_ranks"]:
            raise ValueError(f"measurements: of {measurements.num_ranks} ranks, but num_ranks is {data['num_ranks']}")
        profile = data.get("profile")
        listed = as_tuple("strategies", data.get("strategies"))
        if not listed:
            raise ValueError("strategies: there must be at least one")
        return cls(
            data["num_ranks"],
            data["num_parameters"],
            measurements,
            tuple(_within(f"strategies[{i}]", StrategyResult.from_dict, entry) for i, entry in enumerate(listed)),
            None if profile is None else _within("profile", StepProfile.from_dict, profile),
        )


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line of a training run's log.jsonl; None for what it does not say."""

    step: int
    loss: float | None
    samples_per_s: float | None
    sync_share: float | None

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Returns a line of a log. Raises ValueError, in one line, for what is impossible."""
        require_object("line", data)
        require_whole("step", data.get("step"), 1)
        known = (data.get(name) for name in ("loss", "samples_per_s", "sync_share"))
        return cls(data["step"], *(None if value is None else _number("value", value) for value in known))


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """The good lines of a log.jsonl, and how many are damaged."""

    entries: tuple[LogEntry, ...]
    num_damaged: int = 0

    @classmethod
    def load(cls, path: Path) -> Self:
        """Returns the log. Raises ValueError if no line is good, OSError if it cannot be read."""
        lines = read_text(path).splitlines()
        entries: list[LogEntry] = []
        for line in lines:
            try:
                entry = LogEntry.from_dict(parse_json(line))
            except ValueError:
                continue
            if not entries or entry.step > entries[-1].step:
                entries.append(entry)
        if not entries:
            raise ValueError(f"{path}: no line of it is a step of training with its number")
        return cls(tuple(entries), len(lines) - len(entries))


def is_job_log(path: Path) -> bool:
    """Whether a log.jsonl is that of a main job, whose lines are of several strategies; report.json has all of it."""
    try:
        first, *_ = read_text(path).splitlines()
        line = parse_json(first)
    except ValueError:
        return False
    return isinstance(line, dict) and "strategies" in line


@dataclass(frozen=True, slots=True)
class TrainingSession:
    """A finished run's result.json: what was trained, and how."""

    task: str
    strategy: str
    num_ranks: int
    num_parameters: int
    train_s: float
    provenance: dict[str, Any]
    evaluation: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Returns what result.json holds. Raises ValueError, in one line, for what is missing or impossible."""
        _require_version(data, SESSION_FORMAT)
        for name in ("task", "training", "provenance", "evaluation"):
            require_object(name, data.get(name))
        require_name("task.task", data["task"].get("task"))
        require_name("training.strategy", data["training"].get("strategy"))
        require_whole("training.num_ranks", data["training"].get("num_ranks"), 1, MAX_RANKS)
        require_whole("num_parameters", data.get("num_parameters"), 0)
        figures = {str(name): value for name, value in data["evaluation"].items() if value is not None}
        return cls(
            data["task"]["task"],
            data["training"]["strategy"],
            data["training"]["num_ranks"],
            data["num_parameters"],
            _seconds("train_s", data.get("train_s")),
            data["provenance"],
            {name: _number(f"evaluation.{name}", value) for name, value in figures.items()},
        )


@dataclass(frozen=True, slots=True)
class ComparedTraining:
    """One run of `trainers compare` beside that of one process."""

    name: str
    num_ranks: int
    batch_s: float
    sync_share: float
    speed_up: float
    efficiency: float
    loss_difference: float

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Returns an entry of comparison.json. Raises ValueError, in one line, for what is missing or impossible."""
        require_object("runs", data)
        require_object("run", data.get("run"))
        run = data["run"]
        require_name("run.name", run.get("name"))
        require_whole("run.num_ranks", run.get("num_ranks"), 1, MAX_RANKS)
        ratios = ("speed_up", "efficiency", "loss_difference")
        return cls(
            run["name"],
            run["num_ranks"],
            _seconds("run.batch_s", run.get("batch_s")),
            _number("run.sync_share", run.get("sync_share")),
            **{name: _number(name, data.get(name)) for name in ratios},
        )


@dataclass(frozen=True, slots=True)
class TrainingComparison:
    """What `trainers compare` wrote, the run of one process first."""

    runs: tuple[ComparedTraining, ...]
    provenance: dict[str, Any]

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Returns what comparison.json holds. Raises ValueError, in one line, for what is missing or impossible."""
        _require_version(data, COMPARISON_FORMAT)
        require_object("provenance", data.get("provenance"))
        listed = as_tuple("runs", data.get("runs"))
        runs = tuple(_within(f"runs[{i}]", ComparedTraining.from_dict, entry) for i, entry in enumerate(listed))
        if not runs:
            raise ValueError("runs: there must be at least one")
        return cls(runs, data["provenance"])


@dataclass(frozen=True, slots=True)
class ComparedCell:
    """A cell of `ringsim compare`'s compare.json: a measured collective and its prediction, if there is one."""

    collective: str
    algorithm: str
    size_bytes: int
    num_ranks: int
    predicted_s: float | None
    measured_s: float
    spread: float
    used_in_calibration: bool

    @property
    def error(self) -> float | None:
        """The predicted time over the measured one, less 1."""
        return None if self.predicted_s is None or not self.measured_s else self.predicted_s / self.measured_s - 1

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Returns a cell of compare.json. Raises ValueError, in one line, for what is missing or impossible."""
        require_object("cells", data)
        for name in ("collective", "algorithm"):
            require_name(name, data.get(name))
        require_whole("size_bytes", data.get("size_bytes"), 0)
        require_whole("num_ranks", data.get("num_ranks"), 1, MAX_RANKS)
        predicted_s = data.get("predicted_s")
        return cls(
            data["collective"],
            data["algorithm"],
            data["size_bytes"],
            data["num_ranks"],
            None if predicted_s is None else _seconds("predicted_s", predicted_s),
            _seconds("measured_s", data.get("measured_s")),
            _number("spread", data.get("spread")),
            data.get("used_in_calibration") is True,
        )


def read_cells(data: dict[str, Any]) -> tuple[str, tuple[ComparedCell, ...]]:
    """Returns the network's name and the cells of a compare.json. Raises ValueError for anything else."""
    require_text("network", data.get("network"))
    listed = as_tuple("cells", data.get("cells"))
    return data["network"], tuple(
        _within(f"cells[{i}]", ComparedCell.from_dict, entry) for i, entry in enumerate(listed)
    )


def _require_version(data: Any, form: str) -> None:
    if not isinstance(data, dict) or data.get("format") != form:
        raise ValueError(f"not a {form} file")
    if data.get("version") != VERSION or data["version"] is True:
        raise ValueError(f"version {quoted(data.get('version'))} of {form}: this ringsim reads version {VERSION}")


def _within(place: str, read: Callable[[Any], _Made], data: Any) -> _Made:
    with naming_place(place):
        return read(data)


def _seconds(name: str, value: Any) -> float:
    require_seconds(name, value, 0)
    return float(value)


def _all_seconds(name: str, values: Any) -> tuple[float, ...]:
    return tuple(_seconds(name, value) for value in as_tuple(name, values))


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} {quoted(value)}: must be a finite number")
    return float(value)
