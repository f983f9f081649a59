"""`Measurements`: real timings of one process group, with where they come from."""

import os
import statistics
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from ringsim.files import FileFormat, check, decode, json_text, naming_place, read_json, save_json, values
from ringsim.measurements.collective_times import CollectiveTimes
from ringsim.measurements.recorded_run import RecordedRun

ROUNDS_PER_RUN = 8  # of a probe; even, so that what goes out in a ping-pong comes back
# In the provenance of probes of ranks that share memory: what a rank can publish at a time, and what it has touched.
SLOT_BYTES, TOUCHED_BYTES = "shared_memory_slot_bytes", "shared_memory_touched_bytes"


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
    collective is a sum over steps too, and the mean over the ranks that have a part in it; at least one.
    """

    kind: values.Name
    size_bytes: Annotated[int, values.whole(1, values.MAX_BYTES)]
    in_flight: Annotated[int, values.whole(1, values.MAX_COUNT)]
    times_s: tuple[values.Duration, ...]

    def __post_init__(self) -> None:
        check(self, not_empty=("times_s",))

    @property
    def median_s(self) -> float:
        """The median of the blocks, which other work on the host disturbs least."""
        return statistics.median(self.times_s)


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

    # Version 1 has no collectives; version 2 one call in an iteration, and does not say who was late.
    FORMAT: ClassVar = FileFormat("ringsim-measurements", 3, older=(1, 2))

    def __repr__(self) -> str:
        counts = {"probes": len(self.probes), "collectives": len(self.collectives), "runs": len(self.runs)}
        parts = [f"{count} {name}" for name, count in counts.items() if count]
        machine = self.provenance.get("machine")
        return f"Measurements({', '.join([f'{self.num_ranks} ranks', *parts])}{f', {machine}' if machine else ''})"

    def probes_of(self, kind: str, in_flight: int | None = None) -> list[Probe]:
        """Return the probes of a kind, by size; in_flight: only those with so many messages."""
        wanted = [p for p in self.probes if p.kind == kind and in_flight in (None, p.in_flight)]
        return sorted(wanted, key=lambda probe: probe.size_bytes)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, with the name and version of the format."""
        return self.FORMAT.write(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Return what `as_dict` gave, of older versions too. Raises ValueError, in one line, for anything else."""
        body, version = cls.FORMAT.read(data)
        if version < cls.FORMAT.version and isinstance(body.get("collectives"), list):
            body["collectives"] = [_as_of_now(times) for times in body["collectives"]]
        measurements = decode(cls, body)
        for name in ("collectives", "runs"):
            for index, entry in enumerate(getattr(measurements, name)):
                if entry.num_ranks != measurements.num_ranks:
                    raise ValueError(f"{name}[{index}].num_ranks = {entry.num_ranks}: the file is of "
                                     f"{measurements.num_ranks} ranks")  # fmt: skip
        return measurements

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file, whole or not at all."""
        save_json(path, self.as_dict())

    def as_text(self) -> str:
        """Return the contents of that file."""
        return json_text(self.as_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return what `save` wrote. Raises ValueError naming the file if it is not that, OSError if unreadable."""
        data = read_json(path)
        with naming_place(path):
            return cls.from_dict(data)


def _as_of_now(times: Any) -> Any:
    """Return the times of a collective in an older version, as this one would have written them."""
    if not isinstance(times, dict) or not isinstance(times.get("times_s"), list):
        return times
    return {**times, "calls": 1, "late_s": [0.0] * len(times["times_s"])}
