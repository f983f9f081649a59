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
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from ringsim.formats.msccl.program import COLLECTIVES, PLACED, Placed
from ringsim.schedule import Collective, Schedule, ScheduleError, require_memory

NAMES = {collective: name for name, collective in COLLECTIVES.items()}
BYTES_PER_TRANSFER = 600  # of memory, while it is written
MAX_BYTES = 2**40  # sizes up to which the runtime is to use it: all
Block = tuple[str, int, int]  # what a thread block does, "s" or "r", with whom, and on which channel
Connections = dict[tuple[int, int], dict[int, int]]  # of a sender and a receiver, MSCCL's number of each channel
Point = tuple[Block, int]  # a step of a thread block


@dataclass(slots=True)
class _Line:
    """One step of a thread block; `waits_for` one step of another."""

    kind: str
    chunk: int
    waits_for: Point | None
    placed: Placed | None = None


@dataclass(slots=True)
class _ChunkAccess:
    """The last write of a chunk, and the reads since."""

    write: Point | None = None
    reads: list[Point] = field(default_factory=list)


@dataclass(slots=True)
class _Gpu:
    """The thread blocks of one gpu as they grow."""

    blocks: dict[Block, list[_Line]] = field(default_factory=dict)
    accesses: dict[int, _ChunkAccess] = field(default_factory=dict)
    waited_for: dict[tuple[Block, Block], int] = field(default_factory=dict)

    def read(self, to: int, channel: int, chunk: int) -> None:
        """Add a send of what the last write has left."""
        access = self.accesses.setdefault(chunk, _ChunkAccess())
        access.reads.append(self._append(("s", to, channel), "s", chunk, [access.write] if access.write else []))

    def write(self, source: int, channel: int, chunk: int, *, reduce: bool, placed: Placed | None) -> None:
        """Add a receive, after the last write and the sends since."""
        access = self.accesses.setdefault(chunk, _ChunkAccess())
        before = [access.write] if access.write else []
        point = self._append(("r", source, channel), "rrc" if reduce else "r", chunk, before + access.reads)
        self.accesses[chunk] = _ChunkAccess(point)
        self.blocks[point[0]][point[1]].placed = placed

    def _append(self, block: Block, kind: str, chunk: int, before: list[Point]) -> Point:
        lines = self.blocks.setdefault(block, [])
        latest: dict[Block, int] = {}
        for other, step in before:
            if other != block and step > self.waited_for.get((block, other), -1):
                self.waited_for[block, other] = latest[other] = max(step, latest.get(other, -1))
        waits = sorted(latest.items())
        lines.extend(_Line("nop", -1, point) for point in waits[1:])
        lines.append(_Line(kind, chunk, waits[0] if waits else None))
        return block, len(lines) - 1


def msccl_lines(schedule: Schedule, *, with_places: bool = False) -> Iterator[str]:
    r"""`schedule` as MSCCL XML, line by line, each with its line end.

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
    share = num_chunks // num_ranks
    sizes = (
        f'i_chunks="{share if collective is Collective.ALL_GATHER else num_chunks}" '
        f'o_chunks="{share if collective is Collective.REDUCE_SCATTER else num_chunks}" s_chunks="0"'
    )
    gpus = _gpus(schedule, with_places)
    num_channels = max((1 + channel for gpu in gpus for _, _, channel in gpu.blocks), default=1)
    name = html.escape(schedule.algorithm)
    yield (
        f'<algo name="{name}" proto="Simple" nchannels="{num_channels}" nchunksperloop="{num_chunks}" '
        f'ngpus="{num_ranks}" coll="{NAMES[collective]}" inplace="1" outofplace="0" '
        f'minBytes="0" maxBytes="{MAX_BYTES}">\n'
    )
    for rank, gpu in enumerate(gpus):
        yield f'  <gpu id="{rank}" {sizes}>\n'
        yield from _block_lines(gpu, "o" if collective is Collective.ALL_GATHER else "i")
        yield "  </gpu>\n"
    yield "</algo>\n"


def _gpus(schedule: Schedule, with_places: bool) -> list[_Gpu]:
    gpus = [_Gpu() for _ in range(schedule.num_ranks)]
    connections: Connections = defaultdict(dict)
    rows = count()
    for index, step in enumerate(schedule.steps):
        for src, dst, chunk, _, channel in step:
            numbers = connections[src, dst]
            gpus[src].read(dst, numbers.setdefault(channel, len(numbers)), chunk)
        for src, dst, chunk, reduce, channel in step:
            placed = Placed(index, next(rows), channel) if with_places else None
            gpus[dst].write(src, connections[src, dst][channel], chunk, reduce=reduce, placed=placed)
    return gpus


def _block_lines(gpu: _Gpu, buffer: str) -> Iterator[str]:
    number = {block: index for index, block in enumerate(sorted(gpu.blocks, reverse=True))}
    signals = {line.waits_for for lines in gpu.blocks.values() for line in lines}
    for block, index in number.items():
        kind, peer, channel = block
        send, receive = (peer, -1) if kind == "s" else (-1, peer)
        yield f'    <tb id="{index}" send="{send}" recv="{receive}" chan="{channel}">\n'
        for step, line in enumerate(gpu.blocks[block]):
            placed = f' {PLACED}="{",".join(map(str, line.placed))}"' if line.placed else ""
            waits = (number[line.waits_for[0]], line.waits_for[1]) if line.waits_for else (-1, -1)
            yield (
                f'      <step s="{step}" type="{line.kind}" srcbuf="{buffer}" srcoff="{line.chunk}" dstbuf="{buffer}" '
                f'dstoff="{line.chunk}" cnt="{int(line.chunk >= 0)}" depid="{waits[0]}" deps="{waits[1]}" '
                f'hasdep="{int((block, step) in signals)}"{placed}/>\n'
            )
        yield "    </tb>\n"
