"""MSCCL XML of a `Schedule`: a thread block for each gpu and channel that a gpu sends to, or receives from, in place.

The channels between two gpus are numbered from 0. What one channel of a schedule sends to several gpus is in several
thread blocks, which MSCCL runs side by side. Reads and writes of one chunk on one gpu keep the order that the rule of
execution gives them: those in other thread blocks are waited for (`depid`, `deps`), the first in the step itself, the
others in `nop`s before it (never in `nop`s alone: the runtime counts those as steps only if the step after them waits
too).

MSCCL knows no order of what different thread blocks do. So that a schedule can be read as it was, with its steps and
channels, each receive may have the attribute `PLACED`, which MSCCL does not look at.

The XML does not say how a tensor is cut: MSCCL takes sizes that the number of chunks divides, for which all cuts are
the same.
"""

import html
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ringsim.formats.msccl_program import COLLECTIVES, PLACED, Types, buffer_chunks, buffers_of
from ringsim.limits import require_memory
from ringsim.schedule import Dependencies, RankOperation, Schedule, ScheduleError, dependencies, operations_of_ranks

NAMES = {collective: name for name, collective in COLLECTIVES.items()}
BYTES_PER_TRANSFER = 600  # of memory, while it is written
MAX_BYTES = 2**40  # sizes up to which the runtime is to use it: all
Block = tuple[str, int, int]  # what a thread block does, "s" or "r", with whom, and on which channel
Point = tuple[Block, int]  # a step of a thread block


class _Line(NamedTuple):
    """One step of a thread block; `waits_for` one step of another."""

    kind: str
    chunk: int
    waits_for: Point | None
    placed: str = ""


def msccl_lines(schedule: Schedule, *, with_places: bool = False) -> Iterator[str]:
    r"""Yield `schedule` as MSCCL XML, line by line, each with its line end.

    with_places: so that `read_msccl` gives the same steps, rows and channels, and not each transfer as early as it can
    be.

    Raises ScheduleError for a gather, scatter or all_to_all, which are not written, and for a reduce_scatter or
    all_gather whose ranks own different numbers of chunks.

        >>> from ringsim import msccl_lines, ring_all_reduce
        >>> lines = list(msccl_lines(ring_all_reduce(4)))
        >>> lines[-1]
        '</algo>\n'
    """
    collective, num_ranks, num_chunks = schedule.collective, schedule.num_ranks, schedule.num_chunks
    if collective not in NAMES:
        raise ScheduleError(f"{schedule}: MSCCL XML is written here for {', '.join(name.value for name in NAMES)}")
    if num_chunks % collective.num_shares(num_ranks):
        raise ScheduleError(f"{schedule}: {num_chunks} chunks; MSCCL needs a multiple of the number of ranks")
    require_memory(f"{schedule} as MSCCL XML", schedule.num_transfers * BYTES_PER_TRANSFER)
    waits = dependencies(schedule)
    connections: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    channels = []  # MSCCL's, of each transfer
    for src, dst, channel in zip(waits.src.tolist(), waits.dst.tolist(), waits.channel.tolist(), strict=True):
        known = connections[src, dst]
        channels.append(known.setdefault(channel, len(known)))
    yield (
        f'<algo name="{html.escape(schedule.algorithm)}" proto="Simple" nchannels="{max(channels, default=0) + 1}" '
        f'nchunksperloop="{num_chunks}" ngpus="{num_ranks}" coll="{NAMES[collective]}" inplace="1" outofplace="0" '
        f'minBytes="0" maxBytes="{MAX_BYTES}">\n'
    )
    size_i, size_o = (buffer_chunks(collective, num_ranks, num_chunks, buffer) for buffer in "io")
    for rank, operations in enumerate(operations_of_ranks(waits, num_ranks)):
        yield f'  <gpu id="{rank}" i_chunks="{size_i}" o_chunks="{size_o}" s_chunks="0">\n'
        blocks = _blocks(waits, channels, operations, with_places)
        yield from _block_lines(blocks, buffers_of(collective)[1])
        yield "  </gpu>\n"
    yield "</algo>\n"


def _blocks(
    waits: Dependencies,
    channels: list[int],
    operations: Iterable[tuple[RankOperation, list[RankOperation]]],
    with_places: bool,
) -> dict[Block, list[_Line]]:
    """Return the thread blocks of one gpu."""
    blocks: dict[Block, list[_Line]] = {}
    points: dict[RankOperation, Point] = {}
    sends: defaultdict[int, list[Point]] = defaultdict(list)  # of each chunk, since it was written
    waited_for: dict[tuple[Block, Block], int] = {}
    for operation, required in operations:
        is_send, row = operation
        chunk = int(waits.chunk[row])
        block = ("s", int(waits.dst[row]), channels[row]) if is_send else ("r", int(waits.src[row]), channels[row])
        lines = blocks.setdefault(block, [])
        latest: dict[Block, int] = {}
        # A write waits for all of them, also for those that have left whenever the chunk can have come back.
        for other, step in [*(points[earlier] for earlier in required), *([] if is_send else sends.pop(chunk, []))]:
            if other != block and step > waited_for.get((block, other), -1):
                waited_for[block, other] = latest[other] = step
        points_before = sorted(latest.items())
        lines.extend(_Line(Types.NOP, -1, point) for point in points_before[1:])
        kind = "s" if is_send else "rrc" if waits.reduce[row] else "r"
        placed = f"{waits.step[row]},{row},{waits.channel[row]}" if with_places and not is_send else ""
        lines.append(_Line(kind, chunk, points_before[0] if points_before else None, placed))
        points[operation] = block, len(lines) - 1
        if is_send:
            sends[chunk].append(points[operation])
    return blocks


def _block_lines(blocks: dict[Block, list[_Line]], buffer: str) -> Iterator[str]:
    number = {block: index for index, block in enumerate(sorted(blocks, reverse=True))}
    signals = {line.waits_for for lines in blocks.values() for line in lines}
    for block, index in number.items():
        kind, peer, channel = block
        send, receive = (peer, -1) if kind == "s" else (-1, peer)
        yield f'    <tb id="{index}" send="{send}" recv="{receive}" chan="{channel}">\n'
        for step, line in enumerate(blocks[block]):
            placed = f' {PLACED}="{line.placed}"' if line.placed else ""
            depid, deps = (number[line.waits_for[0]], line.waits_for[1]) if line.waits_for else (-1, -1)
            yield (
                f'      <step s="{step}" type="{line.kind}" srcbuf="{buffer}" srcoff="{line.chunk}" dstbuf="{buffer}" '
                f'dstoff="{line.chunk}" cnt="{int(line.chunk >= 0)}" depid="{depid}" deps="{deps}" '
                f'hasdep="{int((block, step) in signals)}"{placed}/>\n'
            )
        yield "    </tb>\n"
