"""`Measurements`: real timings of one process group, with where they come from."""

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from ringsim.atomic_file import atomic_file
from ringsim.collective_times import CollectiveTimes
from ringsim.recorded_run import RecordedRun

FORMAT = "ringsim-measurements"
VERSION = 3
OLDER = (1, 2)  # without collectives; with one call in an iteration, and no word on who was late

_Kind = TypeVar("_Kind", CollectiveTimes, RecordedRun)


@dataclass(frozen=True, slots=True)
class Probe:
    """The times of one small experiment, done on all ranks at once.

    kind: "shift": every rank sends `in_flight` messages of `size_bytes` to its right neighbour while it
    receives as many from its left one, and waits for all; "ping/R": rank R and the one after it send each other a
    message in turn, the others being idle; "exchange/K": K pairs of neighbours send each other one both ways at once;
    "reduce": every rank adds `size_bytes` to as many in float32, "reduce/bfloat16" and others in theirs; "fresh": it
    copies them into memory that is new to it; "call": a shift in which each message is sent by a call of its own, as
    collectives are; "call/dist": every rank calls torch's all_reduce on a group of itself. With "_cpu" after it: the
    same, but seconds of a core, in all threads of a rank.
    times_s: seconds that one such round took, each the mean over a block of rounds without a pause, since a
    collective is a sum over steps too, and the mean over the ranks that have a part in it.
    """

    kind: str
    size_bytes: int
    in_flight: int
    times_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The middle one of the blocks, which something else on the machine disturbs least."""
        return statistics.median(self.times_s)


@dataclass(frozen=True, slots=True)
class Measurements:
    """What was timed in one process group of `num_ranks` ranks, and the machine, versions and command behind it.

    runs: single runs, transfer by transfer; a file without them has none.
    """

    num_ranks: int
    provenance: dict[str, Any]
    probes: tuple[Probe, ...] = ()
    collectives: tuple[CollectiveTimes, ...] = ()
    runs: tuple[RecordedRun, ...] = ()

    def of(self, kind: str, in_flight: int | None = None) -> list[Probe]:
        """The probes of a kind, by size."""
        wanted = [p for p in self.probes if p.kind == kind and in_flight in (None, p.in_flight)]
        return sorted(wanted, key=lambda probe: probe.size_bytes)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with the name and version of the format."""
        collectives, runs = ([each.as_dict() for each in some] for some in (self.collectives, self.runs))
        return {"format": FORMAT, "version": VERSION, **asdict(self), "collectives": collectives, "runs": runs}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The opposite of `as_dict`, of older versions too. Raises ValueError, in one line, for anything else."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"not a {FORMAT} file")
        if data.get("version") not in (*OLDER, VERSION):
            raise ValueError(f"version {data.get('version')} of {FORMAT}: this ringsim reads versions up to {VERSION}")
        try:
            probes = tuple(Probe(**{**probe, "times_s": tuple(probe["times_s"])}) for probe in data["probes"])
            collectives = data["collectives"] if data["version"] > 1 else ()
            times = _read_all(
                "collectives", CollectiveTimes, [_of_today(each, data["version"]) for each in collectives], data
            )
            runs = _read_all("runs", RecordedRun, data.get("runs", []), data)
            return cls(data["num_ranks"], data["provenance"], probes, times, runs)
        except (KeyError, TypeError) as error:
            raise ValueError(f"a field is missing or unknown: {error}") from error

    def save(self, path: Path) -> None:
        """Write as JSON, whole or not at all."""
        save_json(path, self.as_dict())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. Raises ValueError naming the file if it is not that, OSError if unreadable."""
        try:
            return cls.from_dict(json.loads(path.read_text()))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _of_today(data: Any, version: int) -> Any:
    """A collective's times as this version would have written them."""
    if version == VERSION or not isinstance(data, dict) or not isinstance(data.get("times_s"), list):
        return data
    return {**data, "calls": 1, "late_s": [0.0] * len(data["times_s"])}


def _read_all(name: str, kind: type[_Kind], listed: Any, data: dict[str, Any]) -> tuple[_Kind, ...]:
    """Those of the list `name` of a file. Raises ValueError that says which one is not as it must be."""
    if not isinstance(listed, list):
        raise ValueError(f"{name}: must be a list")
    return tuple(_read(f"{name}[{index}]", kind, each, data["num_ranks"]) for index, each in enumerate(listed))


def _read(place: str, kind: type[_Kind], data: Any, num_ranks: int) -> _Kind:
    try:
        read = kind.from_dict(data)
        if read.num_ranks != num_ranks:
            raise ValueError(f"num_ranks {read.num_ranks}: the file is of {num_ranks} ranks")
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    return read


def save_json(path: Path, data: Any) -> None:
    """Write `data` as JSON, whole or not at all. Raises ValueError for a number that JSON does not have."""
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    with atomic_file(path) as file:
        file.write(text.encode())
