"""`Program`: an MSCCL XML file as it is written, with every number in its range.

The format is that of microsoft/msccl's runtime, which reads it, and of msccl-tools, which writes it (`ir.py`): each
gpu has thread blocks that run at the same time; a thread block has at most one gpu to send to, one to receive from,
and a channel, and runs its steps in order. Buffers are i (input), o (output) and s (scratch), counted in chunks.
"""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ringsim.files import quoted, read_bytes
from ringsim.schedule import Collective
from ringsim.units import whole_number

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

COLLECTIVES = {
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "reducescatter": Collective.REDUCE_SCATTER,
    "broadcast": Collective.BROADCAST,
    "reduce": Collective.REDUCE,
}
NO_PEER = -1
MAX_RANKS = 2**17
MAX_CHUNKS = 2**16  # the runtime keeps offsets in 16 bits


class Operation(NamedTuple):
    """What a step does, in this order; `adds`: what it reads at src and what arrived, or stood at dst."""

    receives: bool = False
    reads_src: bool = False
    adds: bool = False
    sends: bool = False
    writes_dst: bool = False


class Kind(Enum):
    """The types of steps."""

    SEND = "s"
    RECEIVE = "r"
    RECEIVE_COPY_SEND = "rcs"
    RECEIVE_REDUCE_COPY = "rrc"
    RECEIVE_REDUCE_SEND = "rrs"
    RECEIVE_REDUCE_COPY_SEND = "rrcs"
    COPY = "cpy"
    REDUCE = "re"
    NOP = "nop"

    @property
    def does(self) -> Operation:
        """Its parts."""
        return _DOES[self]


_DOES = {
    Kind.SEND: Operation(reads_src=True, sends=True),
    Kind.RECEIVE: Operation(receives=True, writes_dst=True),
    Kind.RECEIVE_COPY_SEND: Operation(receives=True, sends=True, writes_dst=True),
    Kind.RECEIVE_REDUCE_COPY: Operation(receives=True, reads_src=True, adds=True, writes_dst=True),
    Kind.RECEIVE_REDUCE_SEND: Operation(receives=True, reads_src=True, adds=True, sends=True),
    Kind.RECEIVE_REDUCE_COPY_SEND: Operation(receives=True, reads_src=True, adds=True, sends=True, writes_dst=True),
    Kind.COPY: Operation(reads_src=True, writes_dst=True),
    Kind.REDUCE: Operation(reads_src=True, adds=True, writes_dst=True),
    Kind.NOP: Operation(),
}


class Location(NamedTuple):
    """One chunk's room in a buffer of a gpu."""

    gpu: int
    buffer: str
    offset: int

    def __str__(self) -> str:
        return f"{self.buffer} {self.offset}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step of a thread block; `waits_for`: (thread block, step) of the same gpu, if any."""

    gpu: int
    block: int
    step: int
    kind: Kind
    src: Location
    dst: Location
    count: int
    waits_for: tuple[int, int] | None
    has_dependents: bool

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
    return _Reader(str(path), root).program()


class _Reader:
    def __init__(self, file: str, root: "Element") -> None:
        self._file = file
        self._root = root
        self._collective = self._collective_of(self._text(root, "coll", "algo"))
        self._num_ranks = self._number(root, "ngpus", "algo", 1, MAX_RANKS)
        self._num_chunks = self._number(root, "nchunksperloop", "algo", 1, MAX_CHUNKS)
        self._in_place = bool(self._number(root, "inplace", "algo", 0, 1))
        if (
            self._collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
            and self._num_chunks % self._num_ranks
        ):
            self._fail("algo", f"nchunksperloop {self._num_chunks}: must be a multiple of ngpus, {self._num_ranks}")

    def program(self) -> Program:
        gpus: dict[int, Element] = {}
        for gpu in self._root.findall("gpu"):
            number = self._number(gpu, "id", "gpu", 0, self._num_ranks - 1)
            if gpus.setdefault(number, gpu) is not gpu:
                self._fail(f"gpu {number}", "is there twice")
        missing = next((number for number in range(self._num_ranks) if number not in gpus), None)
        if missing is not None:
            self._fail("algo", f"ngpus {self._num_ranks}: there is no gpu {missing}")
        blocks = tuple(block for number in range(self._num_ranks) for block in self._gpu(number, gpus[number]))
        name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in self._root.get("name", ""))
        return Program(self._file, name, self._collective, self._num_ranks, self._num_chunks, self._in_place, blocks)

    def _gpu(self, gpu: int, element: "Element") -> list[ThreadBlock]:
        sizes = self._sizes(gpu, element)
        blocks = [self._block(gpu, block, sizes) for block in element.findall("tb")]
        used: dict[tuple[str, int, int], int] = {}
        for block in blocks:
            ends = (
                ("id", block.number, 0),
                ("send", block.send_to, block.channel),
                ("recv", block.receive_from, block.channel),
            )
            for direction, number, channel in ends:
                if number != NO_PEER and (direction, number, channel) in used:
                    other = used[direction, number, channel]
                    self._fail(f"gpu {gpu} tb {block.number}", f"{direction} {number}: tb {other} has that already")
                used[direction, number, channel] = block.number
        return blocks

    def _sizes(self, gpu: int, element: "Element") -> dict[str, int]:
        """How many chunks each buffer has; a file may leave one that it does not use at 0."""
        share = self._num_chunks // self._num_ranks
        sizes = {
            "i": share if self._collective is Collective.ALL_GATHER else self._num_chunks,
            "o": share if self._collective is Collective.REDUCE_SCATTER else self._num_chunks,
        }
        for buffer, size in sizes.items():
            stated = self._number(element, f"{buffer}_chunks", f"gpu {gpu}", 0, MAX_CHUNKS)
            if stated not in (0, size):
                self._fail(f"gpu {gpu}", f"{buffer}_chunks {stated}: must be {size}, by nchunksperloop, or 0")
        return sizes | {"s": self._number(element, "s_chunks", f"gpu {gpu}", 0, MAX_CHUNKS)}

    def _block(self, gpu: int, element: "Element", sizes: dict[str, int]) -> ThreadBlock:
        number = self._number(element, "id", f"gpu {gpu} tb", 0, MAX_CHUNKS)
        place = f"gpu {gpu} tb {number}"
        peers = {name: self._number(element, name, place, NO_PEER, self._num_ranks - 1) for name in ("send", "recv")}
        for name, peer in peers.items():
            if peer == gpu:
                self._fail(place, f"{name} {peer}: must be another gpu")
        channel = self._number(element, "chan", place, -1, MAX_CHUNKS)
        steps = tuple(
            self._instruction(gpu, number, index, step, sizes, peers)
            for index, step in enumerate(element.findall("step"))
        )
        return ThreadBlock(gpu, number, peers["send"], peers["recv"], channel, steps)

    def _instruction(
        self, gpu: int, block: int, index: int, element: "Element", sizes: dict[str, int], peers: dict[str, int]
    ) -> Instruction:
        place = f"gpu {gpu} tb {block} step {index}"
        self._number(element, "s", place, index, index)
        kind = self._kind(self._text(element, "type", place), place)
        does = kind.does
        for name, needed in (("send", does.sends), ("recv", does.receives)):
            if needed and peers[name] == NO_PEER:
                self._fail(place, f"type {kind.value!r}: needs a gpu in the tb's {name}")
        count = self._number(element, "cnt", place, 0 if kind is Kind.NOP else 1, MAX_CHUNKS)
        ends = {
            "src": self._location(gpu, "src", element, place, sizes, count if does.reads_src else 0),
            "dst": self._location(gpu, "dst", element, place, sizes, count if does.writes_dst else 0),
        }
        waits_for = tuple(self._number(element, name, place, -1, MAX_CHUNKS) for name in ("depid", "deps"))
        waits = None if waits_for[0] < 0 else (waits_for[0], waits_for[1])
        dependents = bool(self._number(element, "hasdep", place, 0, 1))
        return Instruction(gpu, block, index, kind, ends["src"], ends["dst"], count, waits, dependents)

    def _location(
        self, gpu: int, end: str, element: "Element", place: str, sizes: dict[str, int], used: int
    ) -> Location:
        buffer = self._text(element, f"{end}buf", place)
        if buffer not in sizes:
            self._fail(place, f"{end}buf {buffer!r}: must be i, o or s")
        offset = self._number(element, f"{end}off", place, -1, MAX_CHUNKS)
        if used and not 0 <= offset <= sizes[buffer] - used:
            self._fail(place, f"{end}off {offset}, cnt {used}: buffer {buffer} has {sizes[buffer]} chunks")
        return Location(gpu, buffer, offset)

    def _collective_of(self, name: str) -> Collective:
        if name not in COLLECTIVES:
            self._fail("algo", f"coll {name!r}: must be one of {', '.join(COLLECTIVES)}")
        return COLLECTIVES[name]

    def _kind(self, name: str, place: str) -> Kind:
        try:
            return Kind(name)
        except ValueError:
            self._fail(place, f"type {name!r}: must be one of {', '.join(kind.value for kind in Kind)}")

    def _text(self, element: "Element", name: str, place: str) -> str:
        text = element.get(name)
        if text is None:
            self._fail(place, f"the attribute {name} is missing")
        return text

    def _number(self, element: "Element", name: str, place: str, low: int, high: int) -> int:
        text = self._text(element, name, place)
        number = whole_number(text.removeprefix("-"))
        if number is not None and text.startswith("-"):
            number = -number
        if number is None or not low <= number <= high:
            self._fail(place, f"{name} {quoted(text)}: must be {low if low == high else f'a number in {low}..{high}'}")
        return number

    def _fail(self, place: str, fault: str) -> NoReturn:
        raise ValueError(f"{self._file}: {place}: {fault}")
