"""`Measurements`: real timings of one process group, with where they come from."""

import json
import os
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self, TypeVar

from ringsim.files import (
    MAX_RANKS,
    as_tuple,
    atomic_file,
    naming_place,
    quoted,
    read_json,
    require_duration,
    require_fields,
    require_name,
    require_object,
    require_times,
    require_whole,
)
from ringsim.measurements.collective_times import CollectiveTimes
from ringsim.measurements.recorded_run import RecordedRun

FORMAT = "ringsim-measurements"
VERSION = 3
OLDER = (1, 2)  # without collectives; with one call in an iteration, and no word on who was late

ROUNDS_PER_RUN = 8  # of a probe; even, so that what goes out in a ping-pong comes back
# In the provenance of probes of ranks that share memory: what a rank can publish at a time, and what it has touched.
SLOT_BYTES, TOUCHED_BYTES = "shared_memory_slot_bytes", "shared_memory_touched_bytes"

MAX_MESSAGE_BYTES = 2**40
MAX_IN_FLIGHT = 2**20

_Kind = TypeVar("_Kind")
_OfRanks = TypeVar("_OfRanks", CollectiveTimes, RecordedRun)


@dataclass(frozen=True, slots=True)
class Probe:
    """The times of one small experiment, done on all ranks at once.

    kind: "shift": every rank sends `in_flight` messages of `size_bytes` to its right neighbour while it
    receives as many from its left one, and waits for all; "ping/R": rank R and the one after it send each other a
    message in turn, the others being idle; "exchange/K": K pairs of neighbours send each other one both ways at once;
    "reduce": every rank adds `size_bytes` to as many in float32, "reduce/bfloat16" and others in theirs; "fresh": it
    copies them into memory that is new to it; "call": a shift in which each message is sent by a call of its own, as
    collectives are; "call/dist": every rank calls torch's all_reduce on a group of itself. Through shared memory:
    "shm/shift": every rank passes on to its right neighbour the sum of a chunk of its own and of what has just come;
    "shm/copy", "shm/add": it sends ROUNDS_PER_RUN chunks of its own, which the neighbour copies or adds; "shm/call": as
    "call". With "/cached" after it: the same, with the same chunks in each run. With "_cpu" after it: the same, but
    seconds of a core, in all threads of a rank.
    times_s: seconds that one such round took, each the mean over a block of rounds without a pause, since a
    collective is a sum over steps too, and the mean over the ranks that have a part in it.
    """

    kind: str
    size_bytes: int
    in_flight: int
    times_s: tuple[float, ...]

    def __post_init__(self) -> None:
        require_name("kind", self.kind)
        require_whole("size_bytes", self.size_bytes, 1, MAX_MESSAGE_BYTES)
        require_whole("in_flight", self.in_flight, 1, MAX_IN_FLIGHT)
        require_times("times_s", self.times_s)
        for index, time_s in enumerate(self.times_s):
            require_duration(f"times_s[{index}]", time_s)

    @property
    def median_s(self) -> float:
        """The median of the blocks, which other work on the host disturbs least."""
        return statistics.median(self.times_s)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Returns a probe of a file. Raises ValueError, in one line, for what is missing, unknown or impossible."""
        require_fields(cls, data)
        return cls(**{**data, "times_s": as_tuple("times_s", data["times_s"])})


@dataclass(frozen=True, slots=True)
class Measurements:
    """The timings of one process group of `num_ranks` ranks, and the machine, versions and command behind them.

    runs: single runs, transfer by transfer; a file without them has none.

        >>> from ringsim import Measurements
        >>> Measurements(2, provenance={}).as_dict()["format"]
        'ringsim-measurements'
    """

    num_ranks: int
    provenance: dict[str, Any]
    probes: tuple[Probe, ...] = ()
    collectives: tuple[CollectiveTimes, ...] = ()
    runs: tuple[RecordedRun, ...] = ()

    def __repr__(self) -> str:
        counts = {"probes": len(self.probes), "collectives": len(self.collectives), "runs": len(self.runs)}
        parts = [f"{count} {name}" for name, count in counts.items() if count]
        machine = self.provenance.get("machine")
        return f"Measurements({', '.join([f'{self.num_ranks} ranks', *parts])}{f', {machine}' if machine else ''})"

    def probes_of(self, kind: str, in_flight: int | None = None) -> list[Probe]:
        """Returns the probes of a kind, by size; in_flight: only those with so many messages."""
        wanted = [p for p in self.probes if p.kind == kind and in_flight in (None, p.in_flight)]
        return sorted(wanted, key=lambda probe: probe.size_bytes)

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON, with the name and version of the format."""
        collectives, runs = ([entry.as_dict() for entry in entries] for entries in (self.collectives, self.runs))
        return {"format": FORMAT, "version": VERSION, **asdict(self), "collectives": collectives, "runs": runs}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Returns what `as_dict` gave, of older versions too. Raises ValueError, in one line, for anything else."""
        _require_header(data)
        probes = _read_all("probes", Probe.from_dict, data["probes"])
        times = _read_all("collectives", partial(_times_of, data), data.get("collectives", []))
        runs = _read_all("runs", partial(_of_ranks, data, RecordedRun), data.get("runs", []))
        return cls(data["num_ranks"], data["provenance"], probes, times, runs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a JSON file, whole or not at all."""
        save_json(path, self.as_dict())

    def as_text(self) -> str:
        """Returns the contents of that file."""
        return json_text(self.as_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Returns what `save` wrote. Raises ValueError naming the file if it is not that, OSError if unreadable."""
        data = read_json(path)
        with naming_place(path):
            return cls.from_dict(data)


def _require_header(data: Any) -> None:
    """Raises ValueError unless all is there that a file has beside its lists."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"not a {FORMAT} file")
    version = data.get("version")
    if version not in (*OLDER, VERSION) or version is True:
        raise ValueError(f"version {quoted(version)} of {FORMAT}: this ringsim reads versions up to {VERSION}")
    optional = {"runs"} if version > 1 else {"runs", "collectives"}
    named = {name: value for name, value in data.items() if name not in ("format", "version")}
    require_fields(Measurements, named, optional)
    require_whole("num_ranks", data["num_ranks"], 1, MAX_RANKS)
    require_object("provenance", data["provenance"])


def _read_all(name: str, read: Callable[[Any], _Kind], listed: Any) -> tuple[_Kind, ...]:
    """Those of the list `name` of a file. Raises ValueError that says which one is not as it must be."""
    made = []
    for index, data in enumerate(as_tuple(name, listed)):
        with naming_place(f"{name}[{index}]"):
            made.append(read(data))
    return tuple(made)


def _times_of(file: dict[str, Any], data: Any) -> CollectiveTimes:
    """A collective's times; those of an older version as this one would have written them."""
    if file["version"] != VERSION and isinstance(data, dict) and isinstance(data.get("times_s"), list):
        data = {**data, "calls": 1, "late_s": [0.0] * len(data["times_s"])}
    return _of_ranks(file, CollectiveTimes, data)


def _of_ranks(file: dict[str, Any], kind: type[_OfRanks], data: Any) -> _OfRanks:
    """What all ranks of the file did."""
    made = kind.from_dict(data)
    if made.num_ranks != file["num_ranks"]:
        raise ValueError(f"num_ranks {made.num_ranks}: the file is of {file['num_ranks']} ranks")
    return made


def save_json(path: str | os.PathLike[str], data: Any) -> None:
    """Writes `data` as a JSON file, whole or not at all. Raises ValueError for a number that JSON does not have."""
    with atomic_file(path) as file:
        file.write(json_text(data).encode())


def json_text(data: Any) -> str:
    """Returns the contents of a JSON file. Raises ValueError for a number that JSON does not have."""
    return json.dumps(data, indent=1, allow_nan=False) + "\n"
