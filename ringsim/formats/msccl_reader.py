"""MSCCL XML as a `Schedule`, to be proved, timed and run here.

A program is ordered, run on symbols, and its transfers are put into steps:
1. A step follows the previous step of its thread block, the step given by depid and deps, and, if it receives, the
sending step: on a connection (two gpus and a channel) the k-th receive takes the k-th message. A send does not wait for
its receiver; MSCCL has room for several chunks.
2. A Schedule has one state for each rank and chunk, MSCCL has three buffers. A message therefore becomes a transfer
where it is used: added to the rank's state of the chunk (REDUCE), or in its place (COPY) because it is sent on, added
to or required at the end. A value that is used while the rank's state of the chunk differs is refused.
3. Each transfer is in the earliest step in which it still reads the same state as in the program.
"""

import bisect
import itertools
import math
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ringsim.formats.msccl_file import Instruction, Placed, Program, Types, buffers_of, read_program
from ringsim.schedule import Schedule, ScheduleError, Transfer, held_at_end, held_at_start
from ringsim.text_table import MAX_NAMED

if TYPE_CHECKING:
    import networkx as nx

MAX_BYTES = 2**30  # of the table of preceding steps
NO_STEP = -1  # in place of a step or a move: held from the start
NOT_A_STATE = -1  # in place of a version: it was added to a state
_ONE_STATE = "its gpu keeps together with another one of it; a Schedule has one state for each rank and chunk"


class Location(NamedTuple):
    """A chunk's place in a buffer of a gpu."""

    gpu: int
    buffer: str
    offset: int

    def __str__(self) -> str:
        return f"{self.buffer} {self.offset}"


def read_msccl(path: str | os.PathLike[str]) -> Schedule:
    """Return the schedule with the same sums in the same order as the MSCCL program in a file.

    Its name is `msccl:` and the name in the file.
    Raises ValueError or ScheduleError, in one line that begins with file and place, for a file that is not MSCCL XML,
    deadlocks, has a race, or cannot be a Schedule; OSError if it cannot be read.

        >>> from pathlib import Path
        >>> from ringsim import msccl_lines, read_msccl, ring_all_reduce
        >>> _ = Path("ring.xml").write_text("".join(msccl_lines(ring_all_reduce(4))))
        >>> read_msccl("ring.xml")
        Schedule(all_reduce msccl:ring over 4 ranks, 4 chunks, 6 steps)
    """
    path = Path(path)
    program = read_program(path)
    steps = _steps(_Run(program))
    name = f"msccl:{program.name or path.stem}"
    return Schedule.from_transfers(program.collective, name, program.num_ranks, program.num_chunks, steps)


@dataclass(slots=True, eq=False)
class _Value:
    """The content of a location: the `version`-th state of a chunk on its gpu, or an unused message.

    send, receive: the steps of the message, whose version is the sender's; NO_STEP: a state.
    """

    chunk: int
    version: int
    send: int
    receive: int = NO_STEP

    @property
    def is_unused(self) -> bool:
        return self.send != NO_STEP


@dataclass(slots=True)
class _Cell:
    value: _Value
    writer: int
    readers: list[int] = field(default_factory=list)


class _Move(NamedTuple):
    """A transfer, without its step, of the `version`-th state of a chunk on its sender.

    at: the instruction that uses the message. placed: see `Instruction`.
    """

    transfer: Transfer
    version: int
    at: Instruction
    placed: Placed | None


class _Run:
    """A run of a program on symbols. moves: in an order of dependence. states: the moves that made each.

    Raises ScheduleError for a faulty program, and ValueError for too large a one.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.moves: list[_Move] = []
        self.states = defaultdict[tuple[int, int], list[int]](list)
        self._steps: list[Instruction] = program.steps
        self._sender = dict(self._senders())
        self._share = program.num_chunks // program.num_ranks
        self._share_buffer, self._longer_buffer = buffers_of(program.collective)
        self._cells: dict[Location, _Cell] = {}
        held = held_at_start(program.collective, program.num_ranks, program.num_chunks)
        for rank, chunk in np.argwhere(held).tolist():
            self.states[rank, chunk].append(NO_STEP)
            self._cells[self._alias(*self._place(rank, "i", chunk))] = _Cell(_Value(chunk, 0, NO_STEP), NO_STEP)
        arrived = list(self._execute())
        self._check_output()
        for value in arrived:
            if value.is_unused:
                raise self._fault(value.receive, f"receives chunk {value.chunk}, which is not used")

    def _senders(self) -> Iterator[tuple[int, int]]:
        sends, receives = (defaultdict[tuple[int, int, int], list[int]](list) for _ in range(2))
        for number, step in enumerate(self._steps):
            block = step.block
            if step.type in Types.SEND:
                sends[block.gpu, block.send, block.chan].append(number)
            if step.type in Types.RECEIVE:
                receives[block.recv, block.gpu, block.chan].append(number)
        for src, dst, channel in sorted(sends.keys() | receives.keys()):
            pair = sends[src, dst, channel], receives[src, dst, channel]
            if len(pair[0]) != len(pair[1]):
                fault = f"{len(pair[0])} steps send and {len(pair[1])} receive: must be as many"
                raise ScheduleError(f"{self.program.file}: gpu {src} to gpu {dst}, chan {channel}: {fault}")
            for send, receive in zip(*pair, strict=True):
                counts = self._steps[send].cnt, self._steps[receive].cnt
                if counts[0] != counts[1]:
                    raise self._fault(receive, f"receives {counts[1]} chunks; {self._steps[send]} sends {counts[0]}")
                yield receive, send

    def _order(self) -> "nx.DiGraph[int]":
        import networkx as nx  # noqa: PLC0415  takes a tenth of a second

        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(range(len(self._steps)))
        graph.add_edges_from((send, receive) for receive, send in self._sender.items())
        graph.add_edges_from((number - 1, number) for number, step in enumerate(self._steps) if step.s)
        signals = defaultdict[tuple[int, int], list[int]](list)
        for number, step in enumerate(self._steps):
            if step.hasdep and step.type != Types.NOP:
                signals[step.block.gpu, step.block.id].append(number)
        for number, step in enumerate(self._steps):
            if step.depid >= 0:  # it waits for the first step with hasdep from `deps` on
                known = signals[step.block.gpu, step.depid]
                place = bisect.bisect_left(known, step.deps, key=lambda signal: self._steps[signal].s)
                if place == len(known):
                    fault = f"depid {step.depid}, deps {step.deps}: neither such a step nor a later one has hasdep=1"
                    raise self._fault(number, fault)
                graph.add_edge(known[place], number)
        return graph

    def _in_order(self) -> Iterator[int]:
        """Yield the steps in a topological order.

        `_clock`: (num_steps, num_blocks), how many steps of each thread block precede the end of a step.
        """
        import networkx as nx  # noqa: PLC0415  takes a tenth of a second

        blocks = {block: number for number, block in enumerate(dict.fromkeys(step.block for step in self._steps))}
        self._block = [blocks[step.block] for step in self._steps]
        shape = len(self._steps), len(blocks)
        if 4 * math.prod(shape) > MAX_BYTES:
            raise ValueError(f"{self.program.file}: {shape[0]} steps in {shape[1]} tbs are too many to be proved")
        graph = self._order()
        if not nx.is_directed_acyclic_graph(graph):
            circle = [str(self._steps[number]) for number, _ in reversed(nx.find_cycle(graph))]
            waits = " waits for ".join([*circle[:MAX_NAMED], *["..."] * (len(circle) > MAX_NAMED), circle[0]])
            raise ScheduleError(f"{self.program.file}: deadlock of {len(circle)} steps: {waits}")
        self._clock = np.zeros(shape, dtype=np.int32)
        for ready in nx.topological_generations(graph):
            for number in sorted(ready):
                self._clock[number] = self._clock[list(graph.pred[number])].max(axis=0, initial=0)
                self._clock[number, self._block[number]] = self._steps[number].s + 1
                yield number

    def _execute(self) -> Iterator[_Value]:
        sent: defaultdict[int, list[_Value]] = defaultdict(list)
        for number in self._in_order():
            step = self._steps[number]
            arriving = sent.pop(self._sender[number]) if number in self._sender else [None] * step.cnt
            for index, value in enumerate(arriving):
                if value:
                    value.receive = number
                    yield value
                held = self._run_one(number, index, value)
                if step.type in Types.SEND and held:
                    sent[number].append(_Value(held.chunk, held.version, number))

    def _run_one(self, number: int, index: int, arriving: _Value | None) -> _Value | None:
        """Run one chunk of a step in the order of `Types`; return the sent or written value."""
        step, held = self._steps[number], arriving
        src = self._alias(step.block.gpu, step.srcbuf, step.srcoff + index)
        dst = self._alias(step.block.gpu, step.dstbuf, step.dstoff + index)
        if step.type in Types.READ_SRC:
            held = self._read(number, src)
        if step.type in Types.ADD and held:
            held = self._sum(number, *((held, arriving) if arriving else (self._read(number, dst), held)))
        if step.type in Types.SEND and held:
            self._take(number, held)
            if held.version == NOT_A_STATE:
                raise self._fault(number, f"sends a value of chunk {held.chunk} that {_ONE_STATE}")
        if step.type in Types.WRITE_DST and held:
            self._write(number, dst, held)
        return held

    def _read(self, number: int, location: Location) -> _Value:
        if location not in self._cells:
            raise self._fault(number, f"reads {location}, where nothing has been written yet")
        cell = self._cells[location]
        self._require_after(number, location, cell.writer)
        cell.readers.append(number)
        return cell.value

    def _write(self, number: int, location: Location, value: _Value) -> None:
        if before := self._cells.get(location):
            self._require_after(number, location, before.writer, *before.readers)
            if location == self._alias(*self._place(location.gpu, "o", before.value.chunk)):
                self._take(number, before.value)  # unread, but temporarily the rank's state
        self._cells[location] = _Cell(value, number)

    def _require_after(self, number: int, location: Location, *others: int) -> None:
        for other in others:
            is_certain = self._clock[number, self._block[other]] > self._steps[other].s
            if other not in (NO_STEP, number) and not is_certain:
                fault = f"uses {location}, which {self._steps[other]} uses too, and neither waits for the other"
                raise self._fault(number, fault)

    def _sum(self, number: int, own: _Value, other: _Value) -> _Value:
        if own.chunk != other.chunk:
            raise self._fault(number, f"adds chunk {other.chunk} to chunk {own.chunk}")
        if not other.is_unused:
            own, other = other, own
        self._take(number, own)
        if not other.is_unused:
            raise self._fault(number, f"adds two values of chunk {own.chunk} of which neither has just arrived")
        if own.version != len(self.states[self._steps[number].block.gpu, own.chunk]) - 1:
            raise self._fault(number, f"adds to a value of chunk {own.chunk} that {_ONE_STATE}")
        self._move(number, other, reduce=True)
        return _Value(own.chunk, own.version + 1, NO_STEP)

    def _take(self, number: int, value: _Value) -> None:
        if value.is_unused:
            self._move(number, value, reduce=False)
            value.version = len(self.states[self._steps[number].block.gpu, value.chunk]) - 1

    def _move(self, number: int, value: _Value, *, reduce: bool) -> None:
        send, receive = self._steps[value.send], self._steps[value.receive]
        self.states[receive.block.gpu, value.chunk].append(len(self.moves))
        transfer = Transfer(send.block.gpu, receive.block.gpu, value.chunk, reduce, send.block.id)
        self.moves.append(_Move(transfer, value.version, self._steps[number], receive.placed))
        value.version, value.send = NOT_A_STATE, NO_STEP

    def _check_output(self) -> None:
        program = self.program
        wanted = held_at_end(program.collective, program.num_ranks, program.num_chunks)
        for rank, chunk in np.argwhere(wanted).tolist():
            location = self._place(rank, "o", chunk)
            cell = self._cells.get(self._alias(*location))
            if cell and cell.value.chunk == chunk:
                self._take(cell.value.receive, cell.value)
                if cell.value.version == len(self.states[rank, chunk]) - 1:
                    continue
            ends = f"another sum than the gpu made last, or chunk {cell.value.chunk}" if cell else "nothing"
            raise ScheduleError(f"{program.file}: gpu {rank}: {location} ends with {ends}: must be chunk {chunk}")

    def _place(self, gpu: int, buffer: str, chunk: int) -> Location:
        return Location(gpu, buffer, chunk % self._share if buffer == self._share_buffer else chunk)

    def _alias(self, gpu: int, buffer: str, offset: int) -> Location:
        """Return the key of a location in `_cells`.

        In place, as in NCCL, the buffer with the gpu's share is part of the longer one.
        """
        if self.program.in_place and buffer != "s":
            offset += gpu * self._share * (buffer == self._share_buffer)
            buffer = self._longer_buffer
        return Location(gpu, buffer, offset)

    def _fault(self, number: int, fault: str) -> ScheduleError:
        return ScheduleError(f"{self.program.file}: {self._steps[number]}: {fault}")


def _steps(run: _Run) -> list[list[Transfer]]:
    """Return the transfers of each step: as in the file if it places all, else as early as possible."""
    rows = [
        (placed.step, placed.row, transfer._replace(channel=placed.channel))
        for transfer, _, _, placed in run.moves
        if placed
    ]
    if len(rows) < len(run.moves):
        rows = [(step, row, run.moves[row].transfer) for row, step in enumerate(_earliest_steps(run))]
    steps = itertools.groupby(sorted(rows), key=lambda row: row[0])
    return [[transfer for _, _, transfer in in_step] for _, in_step in steps]


def _earliest_steps(run: _Run) -> list[int]:
    """Return the earliest step, from 0, in which each move still reads the program's state.

    Raises ScheduleError if there is none.
    """
    import networkx as nx  # noqa: PLC0415  takes a tenth of a second

    graph: nx.DiGraph[int] = nx.DiGraph()  # from a move to those that are at least `distance` steps later, 0 or 1
    graph.add_nodes_from(range(len(run.moves)))
    for made in run.states.values():
        graph.add_edges_from((pair for pair in itertools.pairwise(made) if pair[0] != NO_STEP), distance=0)
    taken = [(run.states[move.transfer.src, move.transfer.chunk], move.version) for move in run.moves]
    next_states = ((number, made[version + 1 : version + 2]) for number, (made, version) in enumerate(taken))
    graph.add_edges_from(((number, later) for number, states in next_states for later in states), distance=0)
    sources = ((made[version], number) for number, (made, version) in enumerate(taken))  # 1 replaces 0 of the same pair
    graph.add_edges_from((pair for pair in sources if pair[0] != NO_STEP), distance=1)
    groups = nx.condensation(graph)  # moves that must be in one step, such as an exchange
    group_of, step_of = groups.graph["mapping"], dict.fromkeys(groups, 0)
    for group in nx.topological_sort(groups):
        for number, later, distance in graph.out_edges(sorted(groups.nodes[group]["members"]), data="distance"):
            if group_of[later] != group:
                step_of[group_of[later]] = max(step_of[group_of[later]], step_of[group] + distance)
            elif distance:
                raise ScheduleError(
                    f"{run.program.file}: {run.moves[later].at}: takes what {run.moves[number].at} makes of chunk "
                    f"{run.moves[later].transfer.chunk}, and must not be in a later step than it, for what was sent "
                    "earlier lies in scratch meanwhile; a Schedule sends and adds in one step"
                )
    return [step_of[group_of[number]] for number in range(len(run.moves))]
