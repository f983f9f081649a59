"""MSCCL XML: read as a checked `Program`, and written from a `Schedule` by `msccl_lines`.

The format is that of microsoft/msccl's runtime and msccl-tools (`ir.py`). A gpu's thread blocks run at once; each has a
channel and at most one gpu to send to and one to receive from, and runs its steps in order. Buffers are i (input), o
(output) and s (scratch), counted in chunks, which all have one size.
"""

import html
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec

from ringsim.files import OpenRecord, decode, read_bytes, values
from ringsim.limits import require_memory
from ringsim.schedule import (
    Collective,
    Dependencies,
    RankOperation,
    Schedule,
    ScheduleError,
    dependencies,
    operations_of_ranks,
)
from ringsim.suggestions import suggestion

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

COLLECTIVES = {  # the last name of each is the one that is written
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reducescatter": Collective.REDUCE_SCATTER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "broadcast": Collective.BROADCAST,
    "reduce": Collective.REDUCE,
}
MAX_CHUNKS = 2**16  # the runtime keeps offsets in 16 bits
PLACED = "ringsim"  # our own attribute: the place of a received transfer in the written schedule
_BUFFERS = {Collective.ALL_GATHER: ("i", "o"), Collective.REDUCE_SCATTER: ("o", "i")}


def buffers_of(collective: Collective) -> tuple[str, str]:
    """Return the buffer with only the gpu's share of the chunks, or "", and that with all."""
    return _BUFFERS.get(collective, ("", "i"))


def buffer_chunks(collective: Collective, num_ranks: int, num_chunks: int, buffer: str) -> int:
    """Return the chunks of a gpu's buffer; of scratch (s) the maximum."""
    is_share = buffer == buffers_of(collective)[0]
    return MAX_CHUNKS if buffer == "s" else num_chunks // (num_ranks if is_share else 1)


_Record = TypeVar("_Record")


class Types:
    """The types of steps, such as "rrc" (receive, reduce, copy), by operation, in the order of execution.

    ADD: adds the message, or without one the value at dst, to the value at src.
    """

    NOP = "nop"
    ALL = ("s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", NOP)
    RECEIVE = ("r", "rcs", "rrc", "rrs", "rrcs")
    READ_SRC = ("s", "rrc", "rrs", "rrcs", "cpy", "re")
    ADD = ("rrc", "rrs", "rrcs", "re")
    SEND = ("s", "rcs", "rrs", "rrcs")
    WRITE_DST = ("r", "rcs", "rrc", "rrcs", "cpy", "re")


class Placed(NamedTuple):
    """A transfer's step in a Schedule, its row among all transfers, and its channel."""

    step: int
    row: int
    channel: int


def _collective(value: Any) -> Collective:
    if value not in COLLECTIVES:
        raise ValueError(f"must be one of {', '.join(COLLECTIVES)}{suggestion(str(value), COLLECTIVES)}")
    return COLLECTIVES[value]


def _placed(value: Any) -> Placed:
    numbers = re.fullmatch(r"([0-9]{1,9}),([0-9]{1,9}),([0-9]{1,9})", str(value))
    if numbers is None:
        raise ValueError("must be step,row,channel, three whole numbers")
    return Placed(*map(int, numbers.groups()))


_Flag = Annotated[int, values.whole(0, 1)]
_Count = Annotated[int, values.whole(0, MAX_CHUNKS)]
_CountOrNone = Annotated[int, values.whole(-1, MAX_CHUNKS)]
_Buffer = Annotated[str, values.one_of("i", "o", "s")]


class ThreadBlock(OpenRecord, frozen=True):
    """A thread block. send, recv: its peers; -1: none."""

    gpu: _Count
    id: _Count
    send: _CountOrNone
    recv: _CountOrNone
    chan: _CountOrNone


class Instruction(OpenRecord, frozen=True):
    """A step of a thread block. placed: None if the file does not say."""

    block: ThreadBlock
    s: _Count
    type: Annotated[str, values.one_of(*Types.ALL)]
    srcbuf: _Buffer
    srcoff: _CountOrNone
    dstbuf: _Buffer
    dstoff: _CountOrNone
    cnt: _Count
    depid: _CountOrNone
    deps: _CountOrNone
    hasdep: _Flag
    placed: values.By[Placed | None, _placed] = msgspec.field(default=None, name=PLACED)

    def __str__(self) -> str:
        return f"gpu {self.block.gpu} tb {self.block.id} step {self.s}"


class Program(OpenRecord, frozen=True):
    """A file; its steps are ordered by gpu and thread block."""

    file: str
    name: str
    collective: values.By[Collective, _collective] = msgspec.field(name="coll")
    num_ranks: Annotated[int, values.whole(1, MAX_CHUNKS)] = msgspec.field(name="ngpus")
    num_chunks: Annotated[int, values.whole(1, MAX_CHUNKS)] = msgspec.field(name="nchunksperloop")
    in_place: _Flag = msgspec.field(name="inplace")
    steps: Any = ()


def read_program(path: Path) -> Program:
    """Return the program in a file.

    Raises ValueError, in one line that begins with file and place, for a wrong format; OSError if unreadable.
    """
    from xml.etree import ElementTree  # noqa: PLC0415  not needed for what does not import

    text = read_bytes(path)
    try:
        root = ElementTree.fromstring(text)  # expat limits the growth of entities itself
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ValueError(f"{path}: not XML: {error}") from None
    if root.tag != "algo":
        raise ValueError(f"{path}: its root is <{root.tag}>; MSCCL XML has <algo>")
    name = re.sub(r"[^\w.-]", "_", root.get("name", ""))
    program = _read(Program, root, f"{path}: algo", file=str(path), name=name)
    num_ranks, num_chunks = program.num_ranks, program.num_chunks
    if num_chunks % program.collective.num_shares(num_ranks):
        raise ValueError(f"{path}: algo: nchunksperloop {num_chunks}: must be a multiple of ngpus, {num_ranks}")
    if sorted(gpu.get("id", "") for gpu in root.iterfind("gpu")) != sorted(map(str, range(num_ranks))):
        raise ValueError(f"{path}: algo: ngpus {num_ranks}: there must be a gpu of each id from 0 to {num_ranks - 1}")
    steps: list[Instruction] = []
    ends: set[tuple[int, str, int, int]] = set()  # of connections, and thread blocks: each may be there once
    for gpu in root.iterfind("gpu"):
        for element in gpu.iterfind("tb"):
            block = _read(ThreadBlock, element, f"{path}: tb", gpu=int(gpu.attrib["id"]))
            place = f"{path}: gpu {block.gpu} tb {block.id}"
            if max(block.send, block.recv) >= num_ranks or block.gpu in (block.send, block.recv):
                raise ValueError(f"{place}: send and recv must be other gpus, less than ngpus, {num_ranks}")
            for end, number in (("id", block.id), ("send", block.send), ("recv", block.recv)):
                used = (block.gpu, end, number, 0 if end == "id" else block.chan)
                if number >= 0 and used in ends:
                    raise ValueError(f"{place}: {end} {number}: an earlier tb has that already")
                ends.add(used)
            steps += [_read_step(program, block, *step, place) for step in enumerate(element.iterfind("step"))]
    return msgspec.structs.replace(program, steps=sorted(steps, key=lambda step: step.block.gpu))


def _read(kind: type[_Record], element: "Element", place: str, **known: Any) -> _Record:
    is_whole = re.compile("-?[0-9]{1,18}").fullmatch
    attributes = {name: int(text) if is_whole(text) else text for name, text in element.attrib.items()}
    return decode(kind, attributes | known, place)


def _read_step(program: Program, block: ThreadBlock, number: int, element: "Element", place: str) -> Instruction:
    place = f"{place} step {number}"
    step = _read(Instruction, element, place, block=block)
    if step.s != number:
        raise ValueError(f"{place}: s {step.s}: must be {number}")
    if not step.cnt and step.type != Types.NOP:
        raise ValueError(f"{place}: cnt 0: must be at least 1")
    src, dst = ("src", Types.READ_SRC, step.srcbuf, step.srcoff), ("dst", Types.WRITE_DST, step.dstbuf, step.dstoff)
    for end, types, buffer, offset in (src, dst):
        size = buffer_chunks(program.collective, program.num_ranks, program.num_chunks, buffer)
        if step.type in types and not 0 <= offset <= size - step.cnt:
            raise ValueError(f"{place}: {end}off {offset}, cnt {step.cnt}: buffer {buffer} has {size} chunks")
    return step


NAMES = {collective: name for name, collective in COLLECTIVES.items()}
BYTES_PER_TRANSFER = 600  # of memory, while it is written
MAX_BYTES = 2**40  # sizes up to which the runtime is to use it: all
Block = tuple[str, int, int]  # "s" (send) or "r" (receive), peer and channel of a thread block
Point = tuple[Block, int]  # a step of a thread block


class _Line(NamedTuple):
    kind: str
    chunk: int
    waits_for: Point | None
    placed: str = ""


def msccl_lines(schedule: Schedule, *, with_places: bool = False) -> Iterator[str]:
    r"""Yield `schedule` as MSCCL XML, in place, each line with its line end.

    A gpu has a thread block per peer, direction and channel; channels between two gpus are numbered from 0. Reads and
    writes of one chunk keep the order of the rule of execution. A step waits for steps of other thread blocks (`depid`,
    `deps`): for the first itself, for the others in preceding `nop`s, never in `nop`s alone, which the runtime counts
    as steps only if the step after them waits too.
    with_places: receives have the attribute `PLACED`, which MSCCL ignores; `read_msccl` then returns the same steps,
    rows and channels instead of the earliest possible steps.
    Raises ScheduleError for a gather, scatter or all_to_all, and for a reduce_scatter or all_gather whose ranks own
    different numbers of chunks.

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
        # A write waits for all earlier reads, even for sends that must have left before the chunk can return.
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
