"""`RecordedRun`: one real run of a schedule, transfer by transfer."""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated

from ringsim.files import check, values
from ringsim.schedule import Collective

TRANSFER = ("step", "src", "dst", "chunk", "issued_s", "applied_s")  # a value each for every transfer


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The times at which each transfer of one run was issued by its sender and applied by its receiver.

    All times are seconds on one clock, 0 when the last rank began; who began earlier may have sent before 0.

    algorithm: one of `ringsim algorithms` or a user's own.
    size_bytes, element_bytes: of the whole tensor and of one of its elements, as they travel.
    runs_s: how long every run took, of which this is the middle one: from when the last rank began to the last end.
    begin_s, end_s: when each rank began and was done, (num_ranks,).
    step, src, dst, chunk: of each transfer, (num_transfers,), in the order of these columns.
    issued_s: when the sender handed it to the transport; applied_s: when the receiver had added or copied it.
    clock_error_s: by how much the clocks of two ranks may differ: 0 but in older files, of ranks on several machines.
    transport: "shm" for shared memory between all ranks, "gloo" for torch.distributed, "auto" for some each way.
    """

    collective: Collective
    algorithm: values.Name
    size_bytes: values.Positive
    element_bytes: values.Positive
    num_ranks: int
    runs_s: tuple[float, ...]
    begin_s: tuple[values.Moment, ...]
    end_s: tuple[values.Moment, ...]
    step: tuple[int, ...]
    src: tuple[int, ...]
    dst: tuple[int, ...]
    chunk: tuple[int, ...]
    issued_s: tuple[values.Moment, ...]
    applied_s: tuple[values.Moment, ...]
    transport: Annotated[str, values.one_of("shm", "gloo", "auto")] = "gloo"  # of older files, which do not say
    clock_error_s: float = 0.0

    def __post_init__(self) -> None:
        check(self, not_empty=("runs_s",))
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
        """The seconds from when the last rank began to the last application, as `Timeline.time_s` of a simulation."""
        return max(self.applied_s, default=0.0)

    @property
    def transfers(self) -> list[tuple[int, int, int, int]]:
        """The step, src, dst and chunk of every transfer."""
        return list(zip(self.step, self.src, self.dst, self.chunk, strict=True))

    def __str__(self) -> str:
        call = f"{self.collective.value} {self.algorithm} of {self.size_bytes} bytes"
        return f"{call} on {self.num_ranks} ranks over {self.transport}"
