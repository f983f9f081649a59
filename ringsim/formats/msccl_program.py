"""`Program`: an MSCCL XML file as it is written, with every number in its range.

The format is that of microsoft/msccl's runtime, which reads it, and of msccl-tools, which writes it (`ir.py`): each
gpu has thread blocks that run at the same time; a thread block has at most one gpu to send to, one to receive from,
and a channel, and runs its steps in order. Buffers are i (input), o (output) and s (scratch), counted in chunks.
The fields of a step and a thread block have the names of their attributes in the XML.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec

from ringsim.files import OpenRecord, decode, read_bytes, values
from ringsim.schedule import Collective
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
PLACED = "ringsim"  # an attribute of ours: where the schedule that was written has what a step receives
_BUFFERS = {Collective.ALL_GATHER: ("i", "o"), Collective.REDUCE_SCATTER: ("o", "i")}


def buffers_of(collective: Collective) -> tuple[str, str]:
    """Return which buffer has the gpu's share of the chunks only ("": neither), and which one has all of them."""
    return _BUFFERS.get(collective, ("", "i"))


def buffer_chunks(collective: Collective, num_ranks: int, num_chunks: int, buffer: str) -> int:
    """Return how many chunks a buffer of a gpu has; of scratch (s) the most that there can be."""
    is_share = buffer == buffers_of(collective)[0]
    return MAX_CHUNKS if buffer == "s" else num_chunks // (num_ranks if is_share else 1)


_Record = TypeVar("_Record")


class Types:
    """The types of steps, such as "rrc" (receive, reduce, copy), by what a step does, in the order in which it does it.

    ADD: what was received, or without a message what is at dst, and what was read at src.
    """

    NOP = "nop"
    ALL = ("s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", NOP)
    RECEIVE = ("r", "rcs", "rrc", "rrs", "rrcs")
    READ_SRC = ("s", "rrc", "rrs", "rrcs", "cpy", "re")
    ADD = ("rrc", "rrs", "rrcs", "re")
    SEND = ("s", "rcs", "rrs", "rrcs")
    WRITE_DST = ("r", "rcs", "rrc", "rrcs", "cpy", "re")


class Placed(NamedTuple):
    """The place of a transfer in a Schedule: its step, its row among all transfers, and its channel."""

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
    """A thread block of a gpu, which runs its steps one after the other.

    send, recv: the gpus that it sends to and receives from, over channel `chan`; -1: none.
    """

    gpu: _Count
    id: _Count
    send: _CountOrNone
    recv: _CountOrNone
    chan: _CountOrNone


class Instruction(OpenRecord, frozen=True):
    """One step of a thread block. placed: None where the file does not say."""

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
    """A whole file; its steps gpu by gpu, and thread block by thread block."""

    file: str
    name: str
    collective: values.By[Collective, _collective] = msgspec.field(name="coll")
    num_ranks: Annotated[int, values.whole(1, MAX_CHUNKS)] = msgspec.field(name="ngpus")
    num_chunks: Annotated[int, values.whole(1, MAX_CHUNKS)] = msgspec.field(name="nchunksperloop")
    in_place: _Flag = msgspec.field(name="inplace")
    steps: Any = ()


def read_program(path: Path) -> Program:
    """Return the program in the file `path`.

    Raises ValueError, in one line that begins with the file and the place in it, for whatever is not as the format
    has it, and OSError if the file cannot be read.
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
    """Return the attributes of an element as a record; `known` are values of it that stand elsewhere."""
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
