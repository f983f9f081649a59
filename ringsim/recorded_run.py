"""`RecordedRun`: one real run of a schedule, transfer by transfer."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

from ringsim.collective import Collective
from ringsim.json_fields import require_fields

MAX_S = 1e9  # decades; neither infinite nor NaN
TRANSFER = ("step", "src", "dst", "chunk", "issued_s", "applied_s")  # a value each for every transfer


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """When each transfer of one run was issued by its sender and applied by its receiver.

    All times are seconds on one clock, 0 when the last rank began; who began earlier may have sent before 0.

    algorithm: one of `ringsim algorithms` or a user's own.
    size_bytes, element_bytes: of the whole tensor and of one of its elements, as they travel.
    clock_error_s: by how much the clocks of two ranks may differ; 0 on one machine, which has one clock.
    runs_s: how long every run took, of which this is the middle one: from when the last rank began to the last end.
    begin_s, end_s: when each rank began and was done, (num_ranks,).
    step, src, dst, chunk: of each transfer, (num_transfers,), in the order of these columns.
    issued_s: when the sender handed it to the backend; applied_s: when the receiver had added or copied it.
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

    def __post_init__(self) -> None:
        for name in ("size_bytes", "element_bytes", "num_ranks"):
            _check_whole(name, getattr(self, name), 1)
        if self.size_bytes % self.element_bytes:
            raise ValueError(f"size_bytes {self.size_bytes}: must be whole elements of {self.element_bytes} bytes")
        _check_seconds("clock_error_s", self.clock_error_s, 0)
        if not self.runs_s:
            raise ValueError("runs_s: must hold at least one time")
        for index, time_s in enumerate(self.runs_s):
            _check_seconds(f"runs_s[{index}]", time_s, 0)
        self._check_ranks()
        self._check_transfers()

    def _check_ranks(self) -> None:
        for name in ("begin_s", "end_s"):
            times = getattr(self, name)
            if len(times) != self.num_ranks:
                raise ValueError(f"{len(times)} {name} for {self.num_ranks} ranks: one for each")
            for rank, time_s in enumerate(times):
                _check_seconds(f"{name}[{rank}]", time_s)

    def _check_transfers(self) -> None:
        for name in TRANSFER:
            if len(getattr(self, name)) != len(self):
                raise ValueError(f"{len(getattr(self, name))} {name} for {len(self)} transfers: one for each")
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
            _check_whole(f"{name}[{index}]", getattr(self, name)[index], 0)
        for name in ("src", "dst"):
            _check_whole(f"{name}[{index}]", getattr(self, name)[index], 0, self.num_ranks - 1)
        if self.src[index] == self.dst[index]:
            raise ValueError(f"dst[{index}] {self.dst[index]}: is the sender itself")
        issued, applied = self.issued_s[index], self.applied_s[index]
        _check_seconds(f"issued_s[{index}]", issued)
        _check_seconds(f"applied_s[{index}]", applied)
        if applied < issued - self.clock_error_s:
            raise ValueError(f"applied_s[{index}] {applied}: is before it was issued, at {issued}")

    def __len__(self) -> int:
        return len(self.step)

    @property
    def time_s(self) -> float:
        """From when the last rank began to the last application: what `Timeline.time_s` is of a simulated run."""
        return max(self.applied_s, default=0.0)

    @property
    def transfers(self) -> list[tuple[int, int, int, int]]:
        """Each one's step, src, dst and chunk."""
        return list(zip(self.step, self.src, self.dst, self.chunk, strict=True))

    def __str__(self) -> str:
        return f"{self.collective.value} {self.algorithm} of {self.size_bytes} bytes on {self.num_ranks} ranks"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "collective": self.collective.value}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The opposite of `as_dict`. Raises ValueError, in one line, for what is missing, unknown or impossible."""
        require_fields(cls, data)
        columns = {name: _column(name, data[name]) for name in (*TRANSFER, "runs_s", "begin_s", "end_s")}
        texts = {name: _text(name, data[name]) for name in ("collective", "algorithm")}
        return cls(**{**data, **columns, **texts, "collective": Collective(texts["collective"])})


def _column(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name} {value!r}: must be a list")
    return tuple(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} {value!r}: must be text")
    return value


def _check_whole(name: str, value: object, minimum: int, maximum: float = math.inf) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        bounds = f"at least {minimum}" if maximum == math.inf else f"from {minimum} to {maximum}"
        raise ValueError(f"{name} {value!r}: must be a whole number, {bounds}")


def _check_seconds(name: str, value: object, minimum: float = -math.inf) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not max(minimum, -MAX_S) <= value <= MAX_S:
        raise ValueError(f"{name} {value!r}: must be seconds{f', at least {minimum}' if minimum == 0 else ''}")
