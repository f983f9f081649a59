"""`moves_of`: what an MSCCL program does to the chunks, as moves from rank to rank.

It runs the program on symbols instead of numbers. A Schedule has one state for each rank and chunk, MSCCL has three
buffers; so what arrives is a message that becomes a move only where it comes to something: where it is added to what
the rank holds of the chunk (REDUCE), or takes its place (COPY), because it is sent on, added to or wanted at the end.
What a Schedule cannot say is refused: a value that is sent or added to though the rank's one state of the chunk has
gone on, or never was that value.
"""

from dataclasses import dataclass, field
from typing import NoReturn

from ringsim.formats.msccl.order import StepOrder
from ringsim.formats.msccl.program import Instruction, Location, Placed, Program
from ringsim.schedule import Collective, ScheduleError, held_at_end, held_at_start

START = -1  # in place of a move: held from the start


@dataclass(slots=True)
class Message:
    """One chunk on its way, or come: thread block `block` of `src` sent it as its `version`-th state of the chunk.

    receiver: the step that receives it, once it has come.
    """

    src: int
    block: int
    version: int
    receiver: Instruction | None = None
    is_used: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """The content of a location: a value (the same number: the same sum in the same order) of a chunk."""

    chunk: int
    value: int
    message: Message | None = None

    @property
    def is_pending(self) -> bool:
        """Whether it arrived and has not yet come to anything."""
        return self.message is not None and not self.message.is_used

    @property
    def receiver(self) -> Instruction:
        """The step by which it arrived."""
        assert self.message is not None
        assert self.message.receiver is not None
        return self.message.receiver


@dataclass(frozen=True, slots=True)
class Move:
    """A transfer that is not yet in a step: it takes the `version`-th state of the chunk on `src`.

    channel: the thread block that sends it, since each sends one chunk after the other.
    placed: see `Instruction`.
    """

    src: int
    dst: int
    chunk: int
    reduce: bool
    channel: int
    version: int
    at: Instruction
    placed: Placed | None = None


@dataclass(slots=True)
class State:
    """The states of one chunk on one rank one after the other: their values, and the moves that made them."""

    values: list[int] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Moves:
    """All moves, each after those it builds on, and the states of each (rank, chunk)."""

    moves: list[Move]
    states: dict[tuple[int, int], State]


@dataclass(slots=True)
class _Access:
    """The last write of a location and the reads since, as places in the order."""

    write: int
    reads: list[int]


def moves_of(program: Program, order: StepOrder) -> Moves:
    """Return the moves of the program.

    Raises ScheduleError for steps on one location in no certain order, for what is read before it is written, for what
    a Schedule cannot say, and if the output is not at the end what the rank holds.
    """
    return _Run(program, order).run()


class _Run:
    def __init__(self, program: Program, order: StepOrder) -> None:
        self._program = program
        self._order = order
        self._share = program.num_chunks // program.num_ranks
        self._result = Moves([], {})
        self._sums: dict[tuple[int, int], int] = {}
        self._num_values = 0
        self._buffers: dict[Location, Held] = {}
        self._accesses: dict[Location, _Access] = {}
        self._under_way: dict[int, list[Held]] = {}
        self._arrived: list[Held] = []
        self._fill()

    def run(self) -> Moves:
        for place, step in enumerate(self._order.steps):
            arriving = self._under_way.pop(self._order.sender[place]) if step.does.receives else []
            for index in range(step.count):
                held = arriving[index] if arriving else None
                if held and held.message:
                    held.message.receiver = step
                    self._arrived.append(held)
                self._run_one(place, step, index, held)
        self._check_output()
        return self._result

    def _check_output(self) -> None:
        """Require that output buffers hold what the ranks' states are, or a proof of these would say nothing."""
        program = self._program
        wanted = held_at_end(program.collective, program.num_ranks, program.num_chunks)
        for rank, chunk in zip(*(index.tolist() for index in wanted.nonzero()), strict=True):
            location = self._output(rank, chunk)
            held = self._buffers.get(self._alias(location))
            if held and held.chunk == chunk and held.is_pending:
                self._take(held.receiver, rank, held)
            values = self._result.states[rank, chunk].values
            if not held or held.chunk != chunk or held.value != values[-1]:
                raise ScheduleError(f"{program.file}: gpu {rank}: {_ending(location, held, chunk)}")
        for held in self._arrived:
            if held.is_pending:
                self._fail(held.receiver, f"receives chunk {held.chunk}, which is not used")

    def _fill(self) -> None:
        """Fill the input buffers as the collective has them."""
        program = self._program
        held = held_at_start(program.collective, program.num_ranks, program.num_chunks)
        for rank in range(program.num_ranks):
            for chunk in range(program.num_chunks):
                state = self._result.states[rank, chunk] = State()
                if held[rank, chunk]:
                    offset = chunk % self._share if program.collective is Collective.ALL_GATHER else chunk
                    state.values.append(self._new_value())
                    state.moves.append(START)
                    self._buffers[self._alias(Location(rank, "i", offset))] = Held(chunk, state.values[0])

    def _alias(self, location: Location) -> Location:
        """Return the longer buffer's name of a location, which has two in place (NCCL's rule for in-place buffers)."""
        gpu, buffer, offset = location
        collective = self._program.collective
        if not self._program.in_place or buffer == "s":
            return location
        if collective is Collective.ALL_GATHER:
            return Location(gpu, "o", gpu * self._share + offset) if buffer == "i" else location
        if collective is Collective.REDUCE_SCATTER:
            return Location(gpu, "i", gpu * self._share + offset) if buffer == "o" else location
        return Location(gpu, "i", offset)

    def _new_value(self) -> int:
        self._num_values += 1
        return self._num_values

    def _run_one(self, place: int, step: Instruction, index: int, arriving: Held | None) -> None:
        """Run one chunk of a step, in the order of `Operation`."""
        does = step.does
        src, dst = (self._alias(at._replace(offset=at.offset + index)) for at in (step.src, step.dst))
        held = arriving
        if does.reads_src:
            held = self._read(place, step, src)
            if does.adds:
                own, other = (held, arriving) if arriving else (self._read(place, step, dst), held)
                held = self._add(step, own, other)
        if does.sends and held:
            self._under_way.setdefault(place, []).append(self._send(step, held))
        if does.writes_dst and held:
            self._write(place, step, dst, held)

    def _read(self, place: int, step: Instruction, location: Location) -> Held:
        if location not in self._buffers:
            self._fail(step, f"reads {location}, where nothing has been written yet")
        access = self._accesses.setdefault(location, _Access(START, []))
        self._check_after(step, place, location, access.write, "reads")
        access.reads.append(place)
        return self._buffers[location]

    def _write(self, place: int, step: Instruction, location: Location, held: Held) -> None:
        access = self._accesses.setdefault(location, _Access(START, []))
        for earlier in (access.write, *access.reads):
            self._check_after(step, place, location, earlier, "writes")
        before = self._buffers.get(location)
        if before and before.is_pending and self._is_home(location, before.chunk):
            self._take(step, location.gpu, before)  # overwritten unread, but the rank's state was that for a while
        self._accesses[location] = _Access(place, [])
        self._buffers[location] = held

    def _check_after(self, step: Instruction, place: int, location: Location, earlier: int, does: str) -> None:
        if earlier not in (START, place) and not self._order.is_before(earlier, place):
            self._fail(
                step, f"{does} {location}, which {self._order.steps[earlier]} uses too, and neither waits for the other"
            )

    def _is_home(self, location: Location, chunk: int) -> bool:
        """Whether this is where the result of the chunk belongs."""
        return location == self._alias(self._output(location.gpu, chunk))

    def _output(self, rank: int, chunk: int) -> Location:
        scattered = self._program.collective is Collective.REDUCE_SCATTER
        return Location(rank, "o", chunk % self._share if scattered else chunk)

    def _send(self, step: Instruction, held: Held) -> Held:
        if held.is_pending:
            self._take(step, step.gpu, held)
        values = self._result.states[step.gpu, held.chunk].values
        if held.value not in values:
            self._fail(step, f"sends a value of chunk {held.chunk} that {self._one_state(step.gpu)}")
        version = len(values) - 1 - values[::-1].index(held.value)
        return Held(held.chunk, held.value, Message(step.gpu, step.block, version))

    def _add(self, step: Instruction, own: Held, other: Held) -> Held:
        """Return the sum of two, of which one is what the rank holds of the chunk and the other has arrived."""
        if own.chunk != other.chunk:
            self._fail(step, f"adds chunk {other.chunk} to chunk {own.chunk}")
        if own.is_pending and not other.is_pending:
            own, other = other, own
        if not other.is_pending:
            self._fail(step, f"adds two values of chunk {own.chunk} of which neither has just arrived")
        if own.is_pending:
            self._take(step, step.gpu, own)
        state = self._result.states[step.gpu, own.chunk]
        if not state.values or state.values[-1] != own.value:
            self._fail(step, f"adds to a value of chunk {own.chunk} that {self._one_state(step.gpu)}")
        key = min(own.value, other.value), max(own.value, other.value)
        total = self._sums.setdefault(key, self._num_values + 1)
        self._num_values = max(self._num_values, total)
        self._move(step, step.gpu, other, reduce=True, value=total)
        return Held(own.chunk, total)

    def _take(self, step: Instruction, rank: int, held: Held) -> None:
        """Let what has arrived become the rank's state of the chunk."""
        self._move(step, rank, held, reduce=False, value=held.value)

    def _move(self, step: Instruction, rank: int, held: Held, *, reduce: bool, value: int) -> None:
        message = held.message
        assert message is not None
        message.is_used = True
        state = self._result.states[rank, held.chunk]
        state.values.append(value)
        state.moves.append(len(self._result.moves))
        move = Move(message.src, rank, held.chunk, reduce, message.block, message.version, step, held.receiver.placed)
        self._result.moves.append(move)

    def _one_state(self, rank: int) -> str:
        return f"gpu {rank} keeps beside another one of it; a Schedule has one state for each rank and chunk"

    def _fail(self, step: Instruction, fault: str) -> NoReturn:
        raise ScheduleError(f"{self._program.file}: {step}: {fault}")


def _ending(location: Location, held: Held | None, chunk: int) -> str:
    if held and held.chunk == chunk:
        return f"{location} ends with another sum of chunk {chunk} than the gpu made last"
    return f"{location} ends with {f'chunk {held.chunk}' if held else 'nothing'} instead of chunk {chunk}"
