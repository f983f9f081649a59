"""`RunDirectory`: the files of measurements, predictions and training in a directory."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ringsim.analysis import SimulatedCollective, Sweep
from ringsim.calibration import ComparedCells
from ringsim.console import in_one_line
from ringsim.files import decode, parse_json, read_text
from ringsim.measurements import Measurements
from ringsim.network import Network, load_network
from ringsim.training_step import StepProfile
from ringsim.verdict.records import DdpPrediction, JobReport, TrainingComparison, TrainingLog, TrainingSession

MAX_FILES = 1000  # a directory with more files is probably a home directory
# Other outputs of our own commands, without additional data.
BY_PRODUCTS = {
    "report.png", "memory.png", "report.html", "checkpoint.pt", "comparison.png", "compare.csv",
    "compare.txt", "times.png", "errors.png", "runs.json", "run.toml",
}  # fmt: skip
TENSORBOARD = "events.out.tfevents."  # how its files begin, which hold what logs hold
KINDS = (
    "measurements, step profiles, networks, simulated collectives and steps, sweeps, comparisons, strategy "
    "comparisons and training runs"
)
NO_KIND = (
    "is JSON, but not of a kind that a report shows: use that of ringsim measure, compare, simulate, explain, ddp "
    "and sweep, and of trainers"
)
OTHER = (
    "is not a kind of file that a report shows; make a network of the log of a benchmark with ringsim calibrate, or a "
    "comparison with ringsim compare -o"
)


@dataclass(slots=True)
class RunDirectory:
    """The files of a directory that a report reads, by name.

    sessions, logs: of training runs, by their directory. refused: a one-line reason for each unread file.
    """

    name: str
    measurements: dict[str, Measurements] = field(default_factory=dict)
    jobs: dict[str, JobReport] = field(default_factory=dict)
    profiles: dict[str, StepProfile] = field(default_factory=dict)
    networks: dict[str, Network] = field(default_factory=dict)
    sweeps: dict[str, Sweep] = field(default_factory=dict)
    cells: dict[str, ComparedCells] = field(default_factory=dict)
    sessions: dict[str, TrainingSession] = field(default_factory=dict)
    logs: dict[str, TrainingLog] = field(default_factory=dict)
    comparisons: dict[str, TrainingComparison] = field(default_factory=dict)
    simulated: dict[str, SimulatedCollective] = field(default_factory=dict)
    predicted: dict[str, DdpPrediction] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def records(self) -> Iterator[tuple[str, str, Any]]:
        for kind in _RECORDS:
            for name, record in getattr(self, kind).items():
                yield kind, name, record

    @property
    def is_empty(self) -> bool:
        return next(self.records(), None) is None


_RECORDS: dict[str, Any] = {kind: get_args(of)[1] for kind, of in [*get_type_hints(RunDirectory).items()][1:-1]}
_FORMATS = {record.FORMAT.name: kind for kind, record in _RECORDS.items() if hasattr(record, "FORMAT")}
# The output of --json does not name a format; its keys identify its kind.
_SHAPES = {
    "cells": {"network", "cells", "summary"},
    "simulated": {"collective", "algorithm", "size_bytes", "network", "time_s", "explained"},
    "predicted": {"network", "calls", "default_step_s", "sweep", "scaling"},
}


def read_directory(folder: Path) -> RunDirectory:
    """Return all files of ringsim and trainers in a directory and below it; or one such file alone.

    Raises OSError if the directory cannot be read; unreadable files are in `refused`.
    """
    alone = folder.is_file()
    if not alone:
        os.listdir(folder)  # os.walk ignores an unreadable directory
    contents = RunDirectory(str(folder))
    for number, path in enumerate([folder] if alone else _files(folder)):
        name = path.name if alone else str(path.relative_to(folder))
        if number == MAX_FILES:
            contents.refused[name] = f"is not among the first {MAX_FILES} files: give a smaller directory"
            break
        try:
            _read(path, name, contents)
        except OSError as error:
            contents.refused[name] = f"cannot be read: {error.strerror}"
        except ValueError as error:
            contents.refused[name] = in_one_line(str(error).removeprefix(f"{path}: ").removeprefix(f"{path}, "))
    return contents


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        by_products = BY_PRODUCTS | ({"log.jsonl"} if "report.json" in names else set())
        for name in sorted(names):
            is_checkpoint = name.startswith("checkpoint-") and name.endswith(".pt")
            if not (name.startswith((".", TENSORBOARD)) or is_checkpoint or name in by_products):
                yield Path(parent, name)


def _read(path: Path, name: str, contents: RunDirectory) -> None:
    if not path.is_file():
        raise ValueError("is not a regular file")
    parent = str(Path(name).parent)
    run = parent if parent != "." else path.absolute().parent.name or parent
    match path.suffix.lower():
        case ".json":
            kind, record = _record(parse_json(read_text(path)))
            getattr(contents, kind)[run if kind == "sessions" else name] = record
        case ".jsonl":
            contents.logs[run] = log = TrainingLog.load(path)
            if log.num_damaged:
                contents.refused[name] = f"{log.num_damaged} of its lines are damaged and were skipped"
        case ".toml":
            contents.networks[name] = load_network(path)
        case ".csv":
            contents.sweeps[name] = Sweep.from_csv(path)
        case _:
            raise ValueError(OTHER)


def _record(data: Any) -> tuple[str, object]:
    form = data.get("format") if isinstance(data, dict) else ""
    if isinstance(form, str) and form in _FORMATS:
        kind = _FORMATS[form]
        return kind, _RECORDS[kind].from_dict(data)
    for kind, keys in _SHAPES.items() if form is None else ():
        if keys <= data.keys():  # the output of `ringsim ddp` also has the fields of the step
            return kind, decode(_RECORDS[kind], data | {"step": data})
    raise ValueError(NO_KIND)
