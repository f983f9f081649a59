"""The measurements of one machine, and their file: probes, times of collectives, and recorded runs."""

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import msgspec
import numpy as np
from msgspec.structs import replace

from ringsim.files import FileFormat, JsonFile, Record, decode, json_text, values
from ringsim.schedule import Collective

TORCH = "dist"  # in place of an algorithm: torch.distributed's own collective
RAW_SOCKETS = "raw_sockets"  # likewise: the bytes of the ring over bare TCP, nothing reduced
PLAIN_RING = "plain_ring"  # likewise: a ring of isend and irecv, written by hand
OPENMPI = "openmpi"  # likewise: Open MPI's own collective
LIMIT = "limit"  # likewise: the results of all ranks computed in one process, without messages
WITHOUT_SCHEDULE = {
    RAW_SOCKETS: "bare sockets have no schedule",
    PLAIN_RING: "the hand-written ring has no schedule",
    OPENMPI: "Open MPI has no schedule",
    LIMIT: "the limit has no schedule",
}
# Operations that benchmarks time in addition to the collectives of `Collective`; they have no schedule here.
SENDRECV = "sendrecv"  # every rank sends to its right neighbour while it receives from its left one
PT2PT_LATENCY = "pt2pt_latency"  # half a round trip between two ranks
PT2PT_BANDWIDTH = "pt2pt_bandwidth"  # one of many messages on the way from one rank to another
RING_TESTS = ("all_reduce", "all_gather", "reduce_scatter")
CHAIN_TESTS = ("broadcast", "reduce")
MESSAGE_TESTS = (SENDRECV, PT2PT_LATENCY, PT2PT_BANDWIDTH)
TESTS = (*RING_TESTS, *CHAIN_TESTS, *MESSAGE_TESTS)  # all that there is a formula for


class CollectiveTimes(Record, frozen=True):
    """The times of one collective of one size, repeated by one competitor.

    algorithm: one of `ringsim algorithms`, a user's own, TORCH, or one of WITHOUT_SCHEDULE.
    size_bytes: of the whole tensor: the input of reduce_scatter, the output of all_gather.
    dtype, op: torch's names, such as float32 and sum; op is none without a reduction.
    in_place: False if the result went to other memory than the input, copying included.
    wrong: wrong elements over all ranks; None if unchecked.
    calls: successive calls per iteration.
    times_s: per call, of each iteration: the slowest rank's time from its start to its end.
    arrival_skew_s: likewise, its time before the last rank began; only valid with one clock, as on one host. Its key in
    files is "late_s".
    positions: of each iteration, number of competitors before this one.
    rank_medians_s: of each rank.
    """

    collective: Collective
    algorithm: values.Name
    size_bytes: values.Positive
    dtype: values.Name
    op: values.Name
    num_ranks: values.NumRanks
    in_place: bool
    wrong: values.Whole | None
    calls: values.Positive
    times_s: Annotated[tuple[values.Duration, ...], values.AT_LEAST_ONE]
    arrival_skew_s: tuple[values.Seconds, ...] = msgspec.field(name="late_s")
    positions: tuple[values.Whole, ...]
    rank_medians_s: tuple[values.Duration, ...]

    def __post_init__(self) -> None:
        for name, column in (("positions", self.positions), ("late_s", self.arrival_skew_s)):
            if len(column) != len(self.times_s):
                raise ValueError(f"{len(column)} {name} for {len(self.times_s)} times_s: must be as many")
        if len(self.rank_medians_s) != self.num_ranks:
            raise ValueError(f"{len(self.rank_medians_s)} rank_medians_s for {self.num_ranks} ranks: one for each")

    @property
    def median_s(self) -> float:
        return statistics.median(self.times_s)

    @property
    def times_without_skew_s(self) -> tuple[float, ...]:
        """Durations measured from the arrival of the last rank."""
        return tuple(
            time_s - skew_s if skew_s < time_s else time_s
            for time_s, skew_s in zip(self.times_s, self.arrival_skew_s, strict=True)
        )

    @property
    def p10_p90_s(self) -> tuple[float, float]:
        return p10_p90(self.times_s)

    @property
    def cell(self) -> tuple[Collective, int, str, str, int, bool]:
        """The task: times of one cell can be compared."""
        return self.collective, self.size_bytes, self.dtype, self.op, self.num_ranks, self.in_place


def p10_p90(times_s: Sequence[float]) -> tuple[float, float]:
    """Return the 10th and the 90th percentile, interpolated. Raises ValueError without times."""
    if not len(times_s):
        raise ValueError("no times: at least one is needed")
    low, high = np.percentile(times_s, (10, 90)).tolist()
    return low, high


def p95(errors: Sequence[float]) -> float:
    """Return the smallest error that at least 95 % of the errors do not exceed. Raises ValueError without errors.

    It is not interpolated, since fewer than 95 % might be below.
    """
    if not len(errors):
        raise ValueError("no errors: at least one is needed")
    return float(np.percentile(errors, 95, method="inverted_cdf"))


ROUNDS_PER_RUN = 8  # of a probe; even, so that a ping-pong ends where it began
# Keys of the provenance for shared memory: bytes that a rank can publish at a time, and bytes that it has touched.
SLOT_BYTES, TOUCHED_BYTES = "shared_memory_slot_bytes", "shared_memory_touched_bytes"


_PROBE_KIND = re.compile(
    r"(?:(?P<transport>shm)/)?(?P<pattern>[a-z]+)(?:/(?P<subject>(?!rested|cached|cold|warm|async)\w+?))?"
    r"(?:/(?P<warmth>rested|cached|cold|warm|async))?(?:_(?P<clock>cpu))?"
)


class ProbeKind(NamedTuple):
    """The experiment of a probe, which all ranks do at once; in files text such as "shm/call/cold_cpu".

    pattern, through torch.distributed:
        shift: every rank sends `in_flight` messages to its right neighbour, receives as many from its left one, and
        waits for all; ping: ranks R and R + 1 alternately send each other a message; exchange: K pairs of neighbours
        send each other a message; reduce: every rank adds a received message (only this is timed) and sends the sum on;
        fresh: every rank copies into new memory; call: a shift with a call per message, or (dist) torch's all_reduce of
        one rank.
    pattern, through shared memory (transport shm):
        shift: every rank forwards the sum of its chunk and a received one; copy, add: every rank sends ROUNDS_PER_RUN
        chunks, which the neighbour copies or adds; call: as above.
    subject: R of a ping, K of an exchange, the dtype of a reduction other than float32, or dist.
    warmth: rested: one round after a pause; cached: the same chunks in each run; cold, warm, async: one call after a
    walk through memory, without it, or after it in the thread of the group.
    clock: cpu for the CPU seconds of all threads of a rank (for additions, of one thread); "" for elapsed time.
    """

    pattern: str
    subject: str = ""
    warmth: str = ""
    transport: str = ""
    clock: str = ""

    def __str__(self) -> str:
        place = "/".join(filter(None, (self.transport, self.pattern, self.subject, self.warmth)))
        return f"{place}_{self.clock}" if self.clock else place

    @classmethod
    @cache
    def read(cls, text: str) -> Self:
        """Return the kind of this text; an unknown text is a pattern.

        >>> ProbeKind.read("shm/call/cold")
        ProbeKind(pattern='call', subject='', warmth='cold', transport='shm', clock='')
        >>> str(ProbeKind("reduce", "bfloat16", clock="cpu"))
        'reduce/bfloat16_cpu'
        """
        match = _PROBE_KIND.fullmatch(text)
        return cls(**match.groupdict(default="")) if match else cls(text)


class Probe(Record, frozen=True):
    """The times of one small experiment.

    kind: text of a `ProbeKind`. size_bytes: of a message, a copy or an addition.
    times_s: per round, each the mean over the participating ranks and a block of rounds without a pause. Cold, warm and
    asynchronous calls are timed one by one, which shows calls that wait for a core.
    """

    kind: values.Name
    size_bytes: values.Size
    in_flight: values.Count
    times_s: Annotated[tuple[values.Duration, ...], values.AT_LEAST_ONE]

    @property
    def median_s(self) -> float:
        return statistics.median(self.times_s)


TRANSFER = ("step", "src", "dst", "chunk", "issued_s", "applied_s")  # a value each for every transfer


class RecordedRun(Record, frozen=True):
    """The times of each transfer of one run, on one clock, 0 when the last rank began; others may have sent before 0.

    algorithm: one of `ringsim algorithms` or a user's own.
    size_bytes, element_bytes: of the whole tensor and of an element, as sent.
    runs_s: of every run, from the last begin to the last end; the recorded run is the median one.
    begin_s, end_s: (num_ranks,).
    step, src, dst, chunk: (num_transfers,), in lexicographic order.
    issued_s: the sender handed it to the transport. applied_s: the receiver had added or copied it.
    clock_error_s: largest difference of two clocks; 0 except in older files, of ranks on several machines.
    transport: "shm" for shared memory between all ranks, "gloo" for torch.distributed, "auto" for both.
    """

    collective: Collective
    algorithm: values.Name
    size_bytes: values.Positive
    element_bytes: values.Positive
    num_ranks: values.NumRanks
    runs_s: Annotated[tuple[values.Seconds, ...], values.AT_LEAST_ONE]
    begin_s: tuple[values.Moment, ...]
    end_s: tuple[values.Moment, ...]
    step: tuple[values.Whole, ...]
    src: tuple[values.Whole, ...]
    dst: tuple[values.Whole, ...]
    chunk: tuple[values.Whole, ...]
    issued_s: tuple[values.Moment, ...]
    applied_s: tuple[values.Moment, ...]
    transport: Annotated[str, values.one_of("shm", "gloo", "auto")] = "gloo"  # of older files, which do not say
    clock_error_s: values.Seconds = 0.0

    def __post_init__(self) -> None:
        if self.size_bytes % self.element_bytes:
            raise ValueError(f"size_bytes {self.size_bytes}: must be whole elements of {self.element_bytes} bytes")
        for name in ("begin_s", "end_s", *TRANSFER):
            number, things = (len(self), "transfers") if name in TRANSFER else (self.num_ranks, "ranks")
            if len(getattr(self, name)) != number:
                raise ValueError(f"{len(getattr(self, name))} {name} for {number} {things}: one for each")
        for index, (_, src, dst, _) in enumerate(self.transfers):
            self._check_transfer(index, src, dst, self.issued_s[index], self.applied_s[index])
        if self.time_s <= 0:
            raise ValueError(f"applied_s: the last is {self.time_s}: must be after 0, when the last rank began")
        twice = next((name for name, count in Counter(self.transfers).items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"step {twice[0]}: chunk {twice[3]} from rank {twice[1]} to {twice[2]} is recorded twice")

    def _check_transfer(self, index: int, src: int, dst: int, issued_s: float, applied_s: float) -> None:
        for name, rank in (("src", src), ("dst", dst)):
            if rank >= self.num_ranks:
                raise ValueError(f"{name}[{index}] {rank}: there are only {self.num_ranks} ranks")
        if src == dst:
            raise ValueError(f"dst[{index}] {dst}: is the sender itself")
        if applied_s < issued_s - self.clock_error_s:
            raise ValueError(f"applied_s[{index}] {applied_s}: is before it was issued, at {issued_s}")

    def __len__(self) -> int:
        return len(self.step)

    @property
    def time_s(self) -> float:
        """The time at which the last transfer has been applied."""
        return max(self.applied_s, default=0.0)

    @property
    def transfers(self) -> list[tuple[int, int, int, int]]:
        return list(zip(self.step, self.src, self.dst, self.chunk, strict=True))

    def __str__(self) -> str:
        call = f"{self.collective.value} {self.algorithm} of {self.size_bytes} bytes"
        return f"{call} on {self.num_ranks} ranks over {self.transport}"


class Measurements(JsonFile, frozen=True):
    """The timings of one process group, with machine, versions and command.

    >>> from ringsim import Measurements
    >>> Measurements(2, provenance={}).as_dict()["format"]
    'ringsim-measurements'
    """

    num_ranks: values.NumRanks
    provenance: dict[str, Any]
    probes: tuple[Probe, ...] = ()
    collectives: tuple[CollectiveTimes, ...] = ()
    runs: tuple[RecordedRun, ...] = ()

    # Version 1 has no collectives; version 2 one call in an iteration, and does not say who was late.
    FORMAT: ClassVar = FileFormat("ringsim-measurements", 3, older=(1, 2))

    def __post_init__(self) -> None:
        for name in ("collectives", "runs"):
            for index, entry in enumerate(getattr(self, name)):
                if entry.num_ranks != self.num_ranks:
                    raise ValueError(
                        f"{name}[{index}].num_ranks = {entry.num_ranks}: the file is of {self.num_ranks} ranks"
                    )

    def __repr__(self) -> str:
        counts = {"probes": len(self.probes), "collectives": len(self.collectives), "runs": len(self.runs)}
        parts = [f"{count} {name}" for name, count in counts.items() if count]
        machine = self.provenance.get("machine")
        return f"Measurements({', '.join([f'{self.num_ranks} ranks', *parts])}{f', {machine}' if machine else ''})"

    def probes_of(self, pattern: str, in_flight: int | None = None, **fields: str) -> list[Probe]:
        """Return the probes of a kind by size; in_flight: None: any; fields: of `ProbeKind`, others are empty."""
        kind = ProbeKind(pattern, **fields)
        wanted = [p for p in self.probes if ProbeKind.read(p.kind) == kind and in_flight in (None, p.in_flight)]
        return sorted(wanted, key=lambda probe: probe.size_bytes)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Read the result of `as_dict`, also of older versions. Raises ValueError otherwise."""
        body, version = cls.FORMAT.read(data)
        if version < cls.FORMAT.version and isinstance(body.get("collectives"), list):
            body["collectives"] = [_current_keys(times) for times in body["collectives"]]
        return decode(cls, body)

    def as_text(self) -> str:
        return json_text(self.as_dict())


def pooled(turns: Sequence[Measurements]) -> Measurements:
    """Return the probes of several turns as one, with the first's provenance. Raises ValueError if they differ."""
    probes = []
    for same in zip(*(turn.probes for turn in turns), strict=True):
        if len({(probe.kind, probe.size_bytes, probe.in_flight) for probe in same}) > 1:
            raise ValueError(f"{same[0].kind} of {same[0].size_bytes} bytes: another round has not probed it")
        probes.append(replace(same[0], times_s=tuple(time_s for probe in same for time_s in probe.times_s)))
    return replace(turns[0], probes=tuple(probes))


def _current_keys(times: Any) -> Any:
    if not isinstance(times, dict) or not isinstance(times.get("times_s"), list):
        return times
    return {**times, "calls": 1, "late_s": [0.0] * len(times["times_s"])}
