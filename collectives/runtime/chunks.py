"""The chunks of a run: `ChunkLayout` cuts a tensor into them, `ChunkMemory` says where they are."""

import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct, field

from collectives.runtime.messages import PrepostedReceives, eager_tag, is_eager, numbered_tag
from collectives.shared_memory import TOKEN_BITS
from ringsim.schedule import Collective, RankProgram, Receive, Schedule, Send, UnevenShares, held_at_end, held_at_start

Reduce = Callable[[torch.Tensor, torch.Tensor], object]


def reduce_into(reduce: Reduce, output: torch.Tensor, chunk: torch.Tensor, arrived: torch.Tensor) -> None:
    """Write `chunk` reduced with `arrived` to `output`; the chunk is unchanged unless it is the output."""
    if output is chunk:
        reduce(chunk, arrived)
    elif reduce is torch.Tensor.add_:
        torch.add(chunk, arrived, out=output)  # at once: most of the time of a sum is reading and writing
    else:
        output.copy_(chunk)
        reduce(output, arrived)


LARGEST_ROUNDED = 464.0  # which float8_e4m3fn rounds to its last number, 448


def copy_rounded(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copy `values`; values beyond the range of float8_e4m3fn become NaN.

    torch turns them, and infinity, into 448, which looks like a result. Other dtypes have NaN or infinity.
    """
    target.copy_(values)
    if target.dtype == torch.float8_e4m3fn != values.dtype:
        target.view(torch.uint8).masked_fill_(values.abs() > LARGEST_ROUNDED, 0x7F)


# After these all ranks hold the same result, so unsent chunks are rounded like sent ones.
ALIKE = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST)


class Rounding(NamedTuple):
    """The chunks that a rank rounds in its own tensor, in addition to its messages.

    in_place: per send, whether the chunk takes the rounded value, because this rank adds to it later or keeps it.
    at_end: chunks to round after the last step.
    """

    in_place: tuple[bool, ...]
    at_end: tuple[int, ...]


def rounding_of(schedule: Schedule, rank: int, program: RankProgram) -> Rounding:
    """Return the rounding of the schedule's rank `rank`, which executes `program`."""
    receives = defaultdict[int, list[Receive]](list)
    last_sent = dict[int, int]()  # of a chunk: the step of its last send
    for receive in program.receives:
        receives[receive.chunk].append(receive)
    for send in program.sends:
        last_sent[send.chunk] = max(send.step, last_sent.get(send.chunk, send.step))
    is_left_here = held_at_end(schedule.collective, schedule.num_ranks, schedule.num_chunks)[rank]

    def in_place(send: Send) -> bool:
        # A send transmits the value from before its step, so a receive of the same step comes after it.
        later = next((receive for receive in receives[send.chunk] if receive.step >= send.step), None)
        return bool(is_left_here[send.chunk]) if later is None else later.reduce

    def is_rounded_at_end(chunk: int) -> bool:
        last = receives[chunk][-1] if receives[chunk] else None
        return (last is not None and not last.reduce) or last_sent.get(chunk, -1) > (-1 if last is None else last.step)

    unrounded = [chunk for chunk in range(schedule.num_chunks) if not is_rounded_at_end(chunk)]
    return Rounding(tuple(map(in_place, program.sends)), tuple(unrounded) if schedule.collective in ALIKE else ())


class ChunkMemory(Struct):
    """The chunks of one run, or one portion of it, on one rank.

    chunks: the present places: in the source until the first write, then in the target.
    targets: the final places.
    wire_chunks: the messages: `chunks`, or tensors of the dtype that travels.
    staging_buffers: for messages that must land neither in their chunk nor in an eager buffer.
    rounding: None unless chunks travel in another dtype.
    on_wire: the chunks whose present value is in `wire_chunks`.
    """

    chunks: list[torch.Tensor]
    targets: list[torch.Tensor]
    wire_chunks: list[torch.Tensor]
    reduce: Reduce
    staging_buffers: Sequence[torch.Tensor]
    rounding: Rounding | None = None
    num_staged: int = 0
    on_wire: set[int] = field(default_factory=set)

    def cut(self, cuts: Sequence[slice]) -> "ChunkMemory":
        chunks, targets = _cut_each(self.chunks, cuts), _cut_each(self.targets, cuts)
        wire_chunks = chunks if self.rounding is None else _cut_each(self.wire_chunks, cuts)
        return ChunkMemory(chunks, targets, wire_chunks, self.reduce, self.staging_buffers, self.rounding)

    def receive_buffer(self, receive: Receive) -> torch.Tensor:
        if not receive.needs_staging:
            return (self.targets if self.rounding is None else self.wire_chunks)[receive.chunk]
        # The buffer is free: there is one for each such receive that can be posted and not yet applied.
        self.num_staged += 1
        buffer = self.staging_buffers[self.num_staged % len(self.staging_buffers)]
        return buffer[: self.wire_chunks[receive.chunk].numel()]

    def apply(self, receive: Receive, arrived: torch.Tensor) -> None:
        number = receive.chunk
        target = self.targets[number]
        if receive.reduce:
            reduce_into(self.reduce, target, self.chunks[number], arrived)
        elif arrived is not target:
            target.copy_(arrived)
        self.move(number, target, arrived)

    def move(self, number: int, chunk: torch.Tensor, arrived: torch.Tensor) -> None:
        if self.rounding is not None:
            self.on_wire.discard(number)
            if arrived is self.wire_chunks[number]:
                self.on_wire.add(number)
        self.chunks[number] = chunk

    def message(self, index: int, number: int) -> torch.Tensor:
        message, chunk = self.wire_chunks[number], self.chunks[number]
        if self.rounding is not None and number not in self.on_wire:
            copy_rounded(message, chunk)
            self.on_wire.add(number)
            self.round_in_place(index, chunk, message)
        return message

    def round_in_place(self, index: int, chunk: torch.Tensor, message: torch.Tensor) -> None:
        """Replace the chunk by the rounded `message` of send `index`, if this rank needs it later.

        In an exchange both sides must add the same values.
        """
        if self.rounding is not None and self.rounding.in_place[index]:
            chunk.copy_(message)

    def finish(self) -> None:
        for number in self.rounding.at_end if self.rounding is not None else ():
            sent, chunk = self.wire_chunks[number], self.chunks[number]
            copy_rounded(sent, chunk)
            chunk.copy_(sent)


def _cut_each(chunks: Sequence[torch.Tensor], cuts: Sequence[slice]) -> list[torch.Tensor]:
    return [chunk[cut] for chunk, cut in zip(chunks, cuts, strict=True)]


@dataclass(frozen=True, slots=True)
class ChunkPlaces:
    """The places of a rank's chunks in its input and output, for a collective that leaves no rank all chunks.

    given: chunks in the input. left: in the output. staying: in both, and therefore copied.
    passing: in neither; the rank only forwards them.
    """

    num_chunks: int
    given: tuple[int, ...]
    left: tuple[int, ...]
    staying: tuple[int, ...]
    passing: tuple[int, ...]

    @classmethod
    def of(cls, schedule: Schedule, program: RankProgram, rank: int, root: int) -> "ChunkPlaces":
        shape = schedule.collective, schedule.num_ranks, schedule.num_chunks
        given, left = (np.flatnonzero(held(*shape)[rank]) for held in (held_at_start, held_at_end))
        received = {receive.chunk for receive in program.receives}
        num_shares = schedule.collective.num_shares(schedule.num_ranks)
        first = (num_shares - root) % num_shares * schedule.num_chunks // num_shares  # the chunks of the group's rank 0

        def in_order(chunks: npt.NDArray[np.int64]) -> tuple[int, ...]:
            return tuple(sorted(chunks.tolist(), key=lambda chunk: (chunk - first) % schedule.num_chunks))

        staying = tuple(np.intersect1d(given, left).tolist())
        passing = tuple(sorted(received.difference(left.tolist())))
        return cls(schedule.num_chunks, in_order(given), in_order(left), staying, passing)


MAX_KEPT = 1024  # layouts of a schedule; of more sizes the oldest go
MAX_KEPT_CHUNKS = 2**17  # of these layouts together; an all_to_all of n ranks has n * n, and new lengths in each call


class Portion(NamedTuple):
    """A part of every chunk, for which the whole schedule is executed before the next part.

    cuts: the portion's elements of each chunk; None for all. tags: of the messages of each chunk.
    """

    cuts: list[slice] | None
    tags: list[int]


class ChunkLayout(NamedTuple):
    """The division of a tensor into chunks.

    lengths: elements of each chunk. portions: several if chunks do not fit the slots of shared memory.
    staging_length: elements of a staging buffer; 0 if all messages are eager.
    token: a checksum of schedule and tensor, less than 2**TOKEN_BITS.
    """

    lengths: list[int]
    portions: list[Portion]
    staging_length: int
    token: int


class LayoutKey(Struct, frozen=True):
    """The key of a schedule's layout.

    bytes_each: of an element on the wire. eager: whether receives may stay posted between calls, as on Gloo.
    number: of the call's fingerprint. stamped: whether messages carry the call's stamp.
    portion_bytes: the most bytes of a chunk in one portion; None for no limit.
    splits: as in `Executor.run`.
    """

    num_elements: int
    bytes_each: int
    eager: bool
    number: int
    stamped: bool
    portion_bytes: int | None
    splits: tuple[int, ...] | None = None


class ChunkLayouts:
    """The layouts of one schedule, cached because programs repeat the same few sizes.

    tag: of messages without a fingerprint number.
    """

    def __init__(self, schedule: Schedule, preposted: PrepostedReceives, tag: int) -> None:
        self._schedule, self._preposted, self._tag = schedule, preposted, tag
        self._known: dict[LayoutKey, ChunkLayout] = {}

    def of(self, key: LayoutKey) -> ChunkLayout:
        layout = self._known.get(key)
        if layout is None:
            if len(self._known) == max(1, min(MAX_KEPT, MAX_KEPT_CHUNKS // self._schedule.num_chunks)):
                del self._known[next(iter(self._known))]
            layout = self._known[key] = self._new(key)
        return layout

    def _new(self, key: LayoutKey) -> ChunkLayout:
        schedule = self._schedule
        if key.splits is not None:
            schedule = replace(schedule, partition=UnevenShares(key.splits))
        lengths = np.diff(schedule.bounds(key.num_elements)).tolist()
        cuts = _portion_cuts(lengths, key)
        portions, staging_length = [], 0
        for portion in cuts:
            parts = [cut.stop - cut.start for cut in portion]
            tags = self._tags([length * key.bytes_each for length in parts], key)
            portions.append(Portion(portion if len(cuts) > 1 else None, tags))
            staged = (max(length, 1) for length, tag in zip(parts, tags, strict=True) if not is_eager(tag))
            staging_length = max(staging_length, *staged, 0)
        token = zlib.crc32(f"{self._schedule} {self._tag} {key}".encode()) & (1 << TOKEN_BITS) - 1
        return ChunkLayout(lengths, portions, staging_length, token)

    def _tags(self, sizes_bytes: list[int], key: LayoutKey) -> list[int]:
        own = numbered_tag(self._tag, key.number, key.stamped)
        reduces = self._schedule.collective.reduces
        tags = [eager_tag(own, size, reduces) for size in sizes_bytes]
        # Calls without a number share their buffers, which are therefore not counted.
        eager = key.eager and (key.number == 0 or self._preposted.reserve(set(tags)))
        return tags if eager else [own] * len(tags)


def _portion_cuts(lengths: list[int], key: LayoutKey) -> list[list[slice]]:
    longest_bytes = max(lengths, default=0) * key.bytes_each
    number = 1 if key.portion_bytes is None else max(1, -(-longest_bytes // key.portion_bytes))
    return [
        [slice(length * index // number, length * (index + 1) // number) for length in lengths]
        for index in range(number)
    ]
