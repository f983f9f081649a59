"""`Program`: an MSCCL XML file as it is written, with every number in its range.

The format is that of microsoft/msccl's runtime, which reads it, and of msccl-tools, which writes it (`ir.py`): each
gpu has thread blocks that run at the same time; a thread block has at most one gpu to send to, one to receive from,
and a channel, and runs its steps in order. Buffers are i (input), o (output) and s (scratch), counted in chunks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ringsim.files import quoted, read_bytes
from ringsim.schedule import Collective
from ringsim.units import whole_number

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
NO_PEER = -1
MAX_RANKS = 2**17
MAX_CHUNKS = 2**16  # the runtime keeps offsets in 16 bits
MAX_ROWS = 2**40  # of a schedule, as of its steps and channels
PLACED = "ringsim"  # an attribute of ours, which says where a schedule has what a step receives


class Operation(NamedTuple):
    """The work of a type of steps, in this order; `adds`: what it reads at src and what arrived, or stood at dst."""

    type: str
    receives: bool = False
    reads_src: bool = False
    adds: bool = False
    sends: bool = False
    writes_dst: bool = False


NOP = Operation("nop")
_ALL = (
    Operation("s", reads_src=True, sends=True),
    Operation("r", receives=True, writes_dst=True),
    Operation("rcs", receives=True, sends=True, writes_dst=True),
    Operation("rrc", receives=True, reads_src=True, adds=True, writes_dst=True),
    Operation("rrs", receives=True, reads_src=True, adds=True, sends=True),
    Operation("rrcs", receives=True, reads_src=True, adds=True, sends=True, writes_dst=True),
    Operation("cpy", reads_src=True, writes_dst=True),
    Operation("re", reads_src=True, adds=True, writes_dst=True),
    NOP,
)
OPERATIONS = {operation.type: operation for operation in _ALL}


class Location(NamedTuple):
    """One chunk's room in a buffer of a gpu."""

    gpu: int
    buffer: str
    offset: int

    def __str__(self) -> str:
        return f"{self.buffer} {self.offset}"


class Placed(NamedTuple):
    """The place of a transfer in a Schedule: its step, its row among all transfers, and its channel."""

    step: int
    row: int
    channel: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step of a thread block; `waits_for`: (thread block, step) of the same gpu, if any.

    placed: where a schedule that was written with its places has what is received; None where the file does not say.
    """

    gpu: int
    block: int
    step: int
    does: Operation
    src: Location
    dst: Location
    count: int
    waits_for: tuple[int, int] | None
    has_dependents: bool
    placed: Placed | None = None

    def __str__(self) -> str:
        return f"gpu {self.gpu} tb {self.block} step {self.step}"


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """Steps in their order, and the connection they use."""

    gpu: int
    number: int
    send_to: int
    receive_from: int
    channel: int
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A whole file; `blocks` gpu by gpu."""

    file: str
    name: str
    collective: Collective
    num_ranks: int
    num_chunks: int
    in_place: bool
    blocks: tuple[ThreadBlock, ...]


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
    return _Reader(_Element(root, str(path), "algo")).program()


@dataclass(frozen=True, slots=True)
class _Element:
    """An element of the file, and its place there, for messages; its attributes are read by their rules."""

    xml: "Element"
    file: str
    place: str

    def inside(self, tag: str, place: str = "") -> "list[_Element]":
        """Return the elements of this tag. place: what messages call them, by default the tag."""
        return [_Element(element, self.file, place or tag) for element in self.xml.findall(tag)]

    def at(self, place: str) -> "_Element":
        """Return the same element, whose place is known better by now."""
        return replace(self, place=place)

    def text(self, name: str) -> str:
        text = self.xml.get(name)
        if text is None:
            self.fail(f"the attribute {name} is missing")
        return text

    def one_of(self, name: str, known: Mapping[str, Any]) -> Any:
        text = self.text(name)
        if text not in known:
            self.fail(f"{name} {text!r}: must be one of {', '.join(known)}")
        return known[text]

    def number(self, name: str, low: int, high: int) -> int:
        text = self.text(name)
        number = whole_number(text.removeprefix("-"))
        if number is not None and text.startswith("-"):
            number = -number
        if number is None or not low <= number <= high:
            self.fail(f"{name} {quoted(text)}: must be {low if low == high else f'a number in {low}..{high}'}")
        return number

    def placed(self) -> Placed | None:
        """Return what the attribute `PLACED` says, if it is there."""
        if (text := self.xml.get(PLACED)) is None:
            return None
        numbers = [number for part in text.split(",") if (number := whole_number(part)) is not None]
        if len(numbers) != len(Placed._fields) or text.count(",") >= len(numbers) or max(numbers) > MAX_ROWS:
            self.fail(f"{PLACED} {quoted(text)}: must be {', '.join(Placed._fields)}, numbers up to {MAX_ROWS}")
        return Placed(*numbers)

    def fail(self, fault: str) -> NoReturn:
        raise ValueError(f"{self.file}: {self.place}: {fault}")


class _Reader:
    def __init__(self, root: _Element) -> None:
        self._root = root
        self._collective = root.one_of("coll", COLLECTIVES)
        self._num_ranks = root.number("ngpus", 1, MAX_RANKS)
        self._num_chunks = root.number("nchunksperloop", 1, MAX_CHUNKS)
        self._in_place = bool(root.number("inplace", 0, 1))
        if self._num_chunks % self._collective.num_shares(self._num_ranks):
            root.fail(f"nchunksperloop {self._num_chunks}: must be a multiple of ngpus, {self._num_ranks}")

    def program(self) -> Program:
        gpus: dict[int, _Element] = {}
        for element in self._root.inside("gpu"):
            number = element.number("id", 0, self._num_ranks - 1)
            gpu = element.at(f"gpu {number}")
            if gpus.setdefault(number, gpu) is not gpu:
                gpu.fail("is there twice")
        missing = next((number for number in range(self._num_ranks) if number not in gpus), None)
        if missing is not None:
            self._root.fail(f"ngpus {self._num_ranks}: gpu {missing} is missing")
        blocks = tuple(block for number in range(self._num_ranks) for block in self._gpu(number, gpus[number]))
        own_name = self._root.xml.get("name", "")
        name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in own_name)
        return Program(
            self._root.file, name, self._collective, self._num_ranks, self._num_chunks, self._in_place, blocks
        )

    def _gpu(self, gpu: int, element: _Element) -> list[ThreadBlock]:
        sizes = self._sizes(element)
        blocks = [self._block(gpu, block, sizes) for block in element.inside("tb", f"{element.place} tb")]
        used: dict[tuple[str, int, int], int] = {}
        for block in blocks:
            ends = (
                ("id", block.number, 0),
                ("send", block.send_to, block.channel),
                ("recv", block.receive_from, block.channel),
            )
            for end in ends:
                direction, number, _ = end
                if number != NO_PEER and end in used:
                    tb = element.at(f"{element.place} tb {block.number}")
                    tb.fail(f"{direction} {number}: tb {used[end]} has that already")
                used[end] = block.number
        return blocks

    def _sizes(self, gpu: _Element) -> dict[str, int]:
        """Return how many chunks each buffer has; a file may leave one that it does not use at 0."""
        share = self._num_chunks // self._num_ranks
        sizes = {
            "i": share if self._collective is Collective.ALL_GATHER else self._num_chunks,
            "o": share if self._collective is Collective.REDUCE_SCATTER else self._num_chunks,
        }
        for buffer, size in sizes.items():
            stated = gpu.number(f"{buffer}_chunks", 0, MAX_CHUNKS)
            if stated not in (0, size):
                gpu.fail(f"{buffer}_chunks {stated}: must be {size}, by nchunksperloop, or 0")
        return sizes | {"s": gpu.number("s_chunks", 0, MAX_CHUNKS)}

    def _block(self, gpu: int, element: _Element, sizes: dict[str, int]) -> ThreadBlock:
        number = element.number("id", 0, MAX_CHUNKS)
        block = element.at(f"gpu {gpu} tb {number}")
        peers = {name: block.number(name, NO_PEER, self._num_ranks - 1) for name in ("send", "recv")}
        for name, peer in peers.items():
            if peer == gpu:
                block.fail(f"{name} {peer}: must be another gpu")
        channel = block.number("chan", -1, MAX_CHUNKS)
        steps = tuple(
            _instruction(step.at(f"{block.place} step {index}"), (gpu, number, index), sizes, peers)
            for index, step in enumerate(block.inside("step"))
        )
        return ThreadBlock(gpu, number, peers["send"], peers["recv"], channel, steps)


def _instruction(
    element: _Element, numbers: tuple[int, int, int], sizes: dict[str, int], peers: dict[str, int]
) -> Instruction:
    gpu, _, index = numbers
    element.number("s", index, index)
    does = element.one_of("type", OPERATIONS)
    for name, needed in (("send", does.sends), ("recv", does.receives)):
        if needed and peers[name] == NO_PEER:
            element.fail(f"type {does.type!r}: needs a gpu in the tb's {name}")
    count = element.number("cnt", 0 if does is NOP else 1, MAX_CHUNKS)
    src = _location(element, gpu, "src", sizes, count if does.reads_src else 0)
    dst = _location(element, gpu, "dst", sizes, count if does.writes_dst else 0)
    block, step = (element.number(name, -1, MAX_CHUNKS) for name in ("depid", "deps"))
    waits_for = None if block < 0 else (block, step)
    has_dependents = bool(element.number("hasdep", 0, 1))
    return Instruction(*numbers, does, src, dst, count, waits_for, has_dependents, element.placed())


def _location(element: _Element, gpu: int, end: str, sizes: dict[str, int], used: int) -> Location:
    buffer = element.text(f"{end}buf")
    if buffer not in sizes:
        element.fail(f"{end}buf {buffer!r}: must be i, o or s")
    offset = element.number(f"{end}off", -1, MAX_CHUNKS)
    if used and not 0 <= offset <= sizes[buffer] - used:
        element.fail(f"{end}off {offset}, cnt {used}: buffer {buffer} has {sizes[buffer]} chunks")
    return Location(gpu, buffer, offset)
