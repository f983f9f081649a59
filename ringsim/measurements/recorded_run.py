"""`RecordedRun`: one real run of a schedule, transfer by transfer."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from ringsim.files import (
    MAX_RANKS,
    as_tuple,
    quoted,
    require_fields,
    require_name,
    require_one_each,
    require_seconds,
    require_times,
    require_whole,
)
from ringsim.schedule import Collective

TRANSFER = ("step", "src", "dst", "chunk", "issued_s", "applied_s")  # a value each for every transfer
TRANSPORTS = ("shm", "gloo", "auto")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The times at which each transfer of one run was issued by its sender and applied by its receiver.

    All times are seconds on one clock, 0 when the last rank began; who began earlier may have sent before 0.

    algorithm: one of `ringsim algorithms` or a user's own.
    size_bytes, element_bytes: of the whole tensor and of one of its elements, as they travel.
    clock_error_s: by how much the clocks of two ranks may differ; 0 on one machine, which has one clock.
    runs_s: how long every run took, of which this is the middle one: from when the last rank began to the last end.
    begin_s, end_s: when each rank began and was done, (num_ranks,).
    step, src, dst, chunk: of each transfer, (num_transfers,), in the order of these columns.
    issued_s: when the sender handed it to the transport; applied_s: when the receiver had added or copied it.
    transport: "shm" for shared memory between all ranks, "gloo" for torch.distributed, "auto" for some each way.
    """

    collective: Collective
    algorithm: str
    size_bytes: int
    element_bytes: int
    num_ranks: int
    clock_error_s: float
    runs_s: tuple[float, ...]
    begin_s: tuple[float, ...]
    end_s: tuple[float, ...]
    step: tuple[int, ...]
    src: tuple[int, ...]
    dst: tuple[int, ...]
    chunk: tuple[int, ...]
    issued_s: tuple[float, ...]
    applied_s: tuple[float, ...]
    transport: str = "gloo"  # of older files, which do not say

    def __post_init__(self) -> None:
        require_name("algorithm", self.algorithm)
        if self.transport not in TRANSPORTS:
            raise ValueError(f"transport {quoted(self.transport)}: must be one of {', '.join(TRANSPORTS)}")
        for name in ("size_bytes", "element_bytes"):
            require_whole(name, getattr(self, name), 1)
        require_whole("num_ranks", self.num_ranks, 1, MAX_RANKS)
        if self.size_bytes % self.element_bytes:
            raise ValueError(f"size_bytes {self.size_bytes}: must be whole elements of {self.element_bytes} bytes")
        require_seconds("clock_error_s", self.clock_error_s, 0)
        require_times("runs_s", self.runs_s)
        for index, time_s in enumerate(self.runs_s):
            require_seconds(f"runs_s[{index}]", time_s, 0)
        self._check_ranks()
        self._check_transfers()

    def _check_ranks(self) -> None:
        for name in ("begin_s", "end_s"):
            times = getattr(self, name)
            require_one_each(name, times, self.num_ranks, "ranks")
            for rank, time_s in enumerate(times):
                require_seconds(f"{name}[{rank}]", time_s)

    def _check_transfers(self) -> None:
        for name in TRANSFER:
            require_one_each(name, getattr(self, name), len(self), "transfers")
        for index in range(len(self)):
            self._check_transfer(index)
        if self.time_s <= 0:
            raise ValueError(f"applied_s: the last is {self.time_s}: must be after 0, when the last rank began")
        names = self.transfers
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"step {twice[0]}: chunk {twice[3]} from rank {twice[1]} to {twice[2]} is recorded twice")

    def _check_transfer(self, index: int) -> None:
        for name in ("step", "chunk"):
            require_whole(f"{name}[{index}]", getattr(self, name)[index], 0)
        for name in ("src", "dst"):
            require_whole(f"{name}[{index}]", getattr(self, name)[index], 0, self.num_ranks - 1)
        if self.src[index] == self.dst[index]:
            raise ValueError(f"dst[{index}] {self.dst[index]}: is the sender itself")
        issued, applied = self.issued_s[index], self.applied_s[index]
        require_seconds(f"issued_s[{index}]", issued)
        require_seconds(f"applied_s[{index}]", applied)
        if applied < issued - self.clock_error_s:
            raise ValueError(f"applied_s[{index}] {applied}: is before it was issued, at {issued}")

    def __len__(self) -> int:
        return len(self.step)

    @property
    def time_s(self) -> float:
        """The seconds from when the last rank began to the last application, as `Timeline.time_s` of a simulation."""
        return max(self.applied_s, default=0.0)

    @property
    def transfers(self) -> list[tuple[int, int, int, int]]:
        """The step, src, dst and chunk of every transfer."""
        return list(zip(self.step, self.src, self.dst, self.chunk, strict=True))

    def __str__(self) -> str:
        call = f"{self.collective.value} {self.algorithm} of {self.size_bytes} bytes"
        return f"{call} on {self.num_ranks} ranks over {self.transport}"

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return {**asdict(self), "collective": self.collective.value}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Returns what `as_dict` gave. Raises ValueError, in one line, for what is missing, unknown or impossible."""
        require_fields(cls, data, optional=("transport",))
        columns = {name: as_tuple(name, data[name]) for name in (*TRANSFER, "runs_s", "begin_s", "end_s")}
        require_name("collective", data["collective"])
        return cls(**{**data, **columns, "collective": Collective(data["collective"])})
