"""`RunDirectory`: the files of a directory that measuring, predicting and training left there, each read once."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from ringsim.analysis import Sweep
from ringsim.console import in_one_line
from ringsim.files import JsonFile, decode, parse_json, read_text
from ringsim.measurements import Measurements, read_logs
from ringsim.network import Cluster, load_network
from ringsim.training_step import StepProfile
from ringsim.verdict.records import (
    ComparedCells,
    DdpPrediction,
    JobReport,
    SimulatedCollective,
    TrainingComparison,
    TrainingLog,
    TrainingSession,
    is_job_log,
    read_ddp_prediction,
)

MAX_FILES = 1000  # more is no directory of results but somebody's home
# What our own commands write beside what is read here, with nothing in it that is not there too.
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


@dataclass(slots=True)
class RunDirectory:
    """The files of a directory that are read, by the name of each file in it.

    sessions, logs: of training runs, by their directory. refused: each file that is not read, and why, in one line.
    """

    name: str
    measurements: dict[str, Measurements] = field(default_factory=dict)
    jobs: dict[str, JobReport] = field(default_factory=dict)
    profiles: dict[str, StepProfile] = field(default_factory=dict)
    networks: dict[str, Cluster] = field(default_factory=dict)
    sweeps: dict[str, Sweep] = field(default_factory=dict)
    cells: dict[str, ComparedCells] = field(default_factory=dict)
    sessions: dict[str, TrainingSession] = field(default_factory=dict)
    logs: dict[str, TrainingLog] = field(default_factory=dict)
    comparisons: dict[str, TrainingComparison] = field(default_factory=dict)
    simulated: dict[str, SimulatedCollective] = field(default_factory=dict)
    predicted: dict[str, DdpPrediction] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was read."""
        return not any(getattr(self, kind.name) for kind in fields(self) if kind.name not in ("name", "refused"))


def read_directory(folder: Path) -> RunDirectory:
    """Return all files of a directory and those below it that ringsim and trainers wrote; or one such file alone.

    Raises OSError if the directory cannot be read; a file that cannot is among `refused`.
    """
    alone = folder.is_file()
    if not alone:
        os.listdir(folder)  # os.walk would say nothing of a directory that cannot be read
    contents = RunDirectory(str(folder))
    for number, path in enumerate([folder] if alone else _files(folder)):
        name = path.name if alone else str(path.relative_to(folder))
        if number == MAX_FILES:
            contents.refused[name] = f"is not among the first {MAX_FILES} files: give a smaller directory"
            break
        try:
            _read(path, name, contents)
        except (ValueError, OSError) as error:
            contents.refused[name] = _reason(error, path)
    return contents


def _files(folder: Path) -> Iterator[Path]:
    """In the order of their names, without hidden ones and those that repeat what others hold."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            by_product = name in BY_PRODUCTS or (name.startswith("checkpoint-") and name.endswith(".pt"))
            if not (name.startswith((".", TENSORBOARD)) or by_product):
                yield Path(parent, name)


def _read(path: Path, name: str, contents: RunDirectory) -> None:
    if not path.is_file():
        raise ValueError("is not a regular file")
    suffix = path.suffix.lower()
    if suffix == ".json":
        _read_json_file(path, name, contents)
    elif suffix == ".jsonl":
        _read_log(path, name, contents)
    elif suffix == ".toml":
        contents.networks[name] = load_network(path)
    elif suffix == ".csv":
        contents.sweeps[name] = Sweep.from_csv(path)
    else:
        raise ValueError(_why_none(path))


def _why_none(path: Path) -> str:
    try:
        read_logs([path])
    except (ValueError, OSError):
        return "is not a kind of file that a report shows"
    return (
        "is a log of a benchmark, which a report does not show: make a network of it with ringsim calibrate, or a "
        "comparison with ringsim compare -o"
    )


def _read_json_file(path: Path, name: str, contents: RunDirectory) -> None:
    data = parse_json(read_text(path))
    if not isinstance(data, dict):
        raise ValueError(NO_KIND)
    if "traceEvents" in data:
        raise ValueError("is a trace for ui.perfetto.dev; a report shows the output of --json")
    kind, read = _kind_of(data)
    key = _folder(path, name) if kind == "sessions" else name
    getattr(contents, kind)[key] = read(data)


def _kind_of(data: dict[str, Any]) -> tuple[str, Callable[[Any], object]]:
    """By the name of its format, or by its keys where it has none: which field of `RunDirectory`, and its reader."""
    form = data.get("format")
    if isinstance(form, str) and form in _FORMATS:
        return _FORMATS[form]
    for keys, kind, read in _SHAPES if form is None else ():
        if keys <= data.keys():
            return kind, read
    raise ValueError(NO_KIND)


def _read_log(path: Path, name: str, contents: RunDirectory) -> None:
    if is_job_log(path):
        if not path.with_name("report.json").exists():
            raise ValueError("is the log of a strategy comparison that has not ended; a report shows its report.json")
        return
    log = TrainingLog.load(path)
    contents.logs[_folder(path, name)] = log
    if log.num_damaged:
        contents.refused[name] = f"{log.num_damaged} of its lines are damaged and were skipped"


def _folder(path: Path, name: str) -> str:
    """Return the name of a training run: its directory below the one read, or that one's own name."""
    parent = str(Path(name).parent)
    return parent if parent != "." else path.absolute().parent.name or parent


_JSON_FILES: tuple[tuple[str, type[JsonFile | Sweep]], ...] = (
    ("measurements", Measurements),
    ("profiles", StepProfile),
    ("jobs", JobReport),
    ("sweeps", Sweep),
    ("sessions", TrainingSession),
    ("comparisons", TrainingComparison),
)
_FORMATS = {record.FORMAT.name: (field, record.from_dict) for field, record in _JSON_FILES}
_SHAPES: tuple[tuple[set[str], str, Callable[[dict[str, Any]], object]], ...] = (
    ({"network", "cells", "summary"}, "cells", partial(decode, ComparedCells, is_open=True)),
    (
        {"collective", "algorithm", "size_bytes", "network", "time_s", "explained"},
        "simulated",
        partial(decode, SimulatedCollective, is_open=True),
    ),
    ({"network", "calls", "default_step_s", "sweep", "scaling"}, "predicted", read_ddp_prediction),
)


def _reason(error: Exception, path: Path) -> str:
    """Return the fault of a file, in one line and without its name."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    return in_one_line(str(error).removeprefix(f"{path}: ").removeprefix(f"{path}, "))
