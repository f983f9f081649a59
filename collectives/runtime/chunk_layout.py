"""`ChunkLayout`: how an executor cuts a tensor into chunks, and chunks into portions; and tags of their messages."""

import zlib
from typing import NamedTuple

import numpy as np

from collectives.runtime.preposted import PrepostedReceives, eager_tag, is_eager
from collectives.runtime.tags import numbered_tag
from collectives.shared_memory import TOKEN_BITS
from ringsim.schedule import Schedule

MAX_KEPT = 1024  # layouts of a schedule; of more sizes the oldest go


class Portion(NamedTuple):
    """A part of every chunk, for which the whole schedule is executed before that of the next.

    cuts: which elements of each chunk belong to it; None if all do.
    tags: of the messages of each chunk.
    """

    cuts: list[slice] | None
    tags: list[int]


class ChunkLayout(NamedTuple):
    """How a tensor is cut.

    lengths: elements of each chunk.
    portions: one, unless the chunks have to fit the slots of shared memory.
    staging_length: elements that a staging buffer must have for what is not eager; 0 if all is.
    token: a number that stands for the schedule and the tensor, less than 2**TOKEN_BITS.
    """

    lengths: list[int]
    portions: list[Portion]
    staging_length: int
    token: int


class LayoutKey(NamedTuple):
    """What a layout depends on, beside the schedule.

    bytes_each: of an element as it travels.
    eager: whether receives may stay posted between calls, as only Gloo lets them.
    number: of the call's fingerprint. stamped: whether the call's stamp travels with its messages.
    portion_bytes: that a portion may have of each chunk; None for no limit.
    """

    num_elements: int
    bytes_each: int
    eager: bool
    number: int
    stamped: bool
    portion_bytes: int | None


class ChunkLayouts:
    """Those of one schedule; kept, as a program calls with the same few sizes again and again.

    tag: of the messages that have no number.
    """

    def __init__(self, schedule: Schedule, preposted: PrepostedReceives, tag: int) -> None:
        self._schedule, self._preposted, self._tag = schedule, preposted, tag
        self._known: dict[LayoutKey, ChunkLayout] = {}

    def of(self, key: LayoutKey) -> ChunkLayout:
        """That for these elements."""
        layout = self._known.get(key)
        if layout is None:
            if len(self._known) == MAX_KEPT:
                del self._known[next(iter(self._known))]
            layout = self._known[key] = self._new(key)
        return layout

    def _new(self, key: LayoutKey) -> ChunkLayout:
        lengths = np.diff(self._schedule.bounds(key.num_elements)).tolist()
        cuts = _portion_cuts(lengths, key)
        parts = [[cut.stop - cut.start for cut in portion] for portion in cuts]
        tags = [self._tags([length * key.bytes_each for length in part], key) for part in parts]
        staged = [
            max(length, 1)
            for part, own in zip(parts, tags, strict=True)
            for length, tag in zip(part, own, strict=True)
            if not is_eager(tag)
        ]
        portions = [Portion(portion if len(cuts) > 1 else None, own) for portion, own in zip(cuts, tags, strict=True)]
        token = zlib.crc32(f"{self._schedule} {self._tag} {key}".encode()) & (1 << TOKEN_BITS) - 1
        return ChunkLayout(lengths, portions, max(staged, default=0), token)

    def _tags(self, sizes_bytes: list[int], key: LayoutKey) -> list[int]:
        """The tags of the messages of chunks of those sizes."""
        own = numbered_tag(self._tag, key.number, key.stamped)
        tags = [eager_tag(own, size) for size in sizes_bytes]
        # What has no number shares its buffers with all else that has none, so that these are not counted.
        eager = key.eager and (key.number == 0 or self._preposted.reserve(set(tags)))
        return tags if eager else [own] * len(tags)


def _portion_cuts(lengths: list[int], key: LayoutKey) -> list[list[slice]]:
    """As many portions as are needed for the longest chunk, and of each chunk an equal share in each."""
    longest_bytes = max(lengths, default=0) * key.bytes_each
    number = 1 if key.portion_bytes is None else max(1, -(-longest_bytes // key.portion_bytes))
    return [
        [slice(length * index // number, length * (index + 1) // number) for length in lengths]
        for index in range(number)
    ]
