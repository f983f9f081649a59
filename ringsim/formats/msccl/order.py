"""`StepOrder`: which step of an MSCCL program happens before which, and one order in which all of them can run.

A step comes after the one before it in its thread block, after the step that it names by depid and deps, and, where it
receives, after the step that sends: on a connection (two gpus and a channel) the k-th receive takes the k-th message.
A send is taken not to wait for its receiver; MSCCL's have room for several chunks.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import numpy as np
import numpy.typing as npt

from ringsim.formats.msccl.program import NOP, Instruction, Program, ThreadBlock
from ringsim.schedule import ScheduleError

MAX_BYTES = 2**30
MAX_NAMED = 8  # steps of a deadlock, in a message
Connection = tuple[int, int, int]  # the gpu that sends, the gpu that receives, the channel


@dataclass(frozen=True, slots=True, eq=False)
class StepOrder:
    """All steps of a program in an order in which they can run.

    `sender`: for each step that receives, the place of the one that sends to it.
    `clock`: (num_steps, num_blocks), how many steps of each thread block have certainly been done when a step is.
    `block`: (num_steps,), the column of a step's own thread block in `clock`.
    """

    steps: list[Instruction]
    sender: dict[int, int]
    clock: npt.NDArray[np.int32]
    block: list[int]

    def is_before(self, earlier: int, later: int) -> bool:
        """Whether the step at place `earlier` is done before that at place `later` begins, however fast each is."""
        own = self.block[earlier]
        return bool(self.clock[later, own] >= self.clock[earlier, own])


def order_of(program: Program) -> StepOrder:
    """Return an order of the program's steps.

    Raises ScheduleError for a send without its receive, for different counts of the two, for steps that wait for one
    another or for what is never signalled, and ValueError for a program too large to be looked at.
    """
    steps = [step for block in program.blocks for step in block.instructions]
    if 4 * len(steps) * len(program.blocks) > MAX_BYTES:
        raise ValueError(f"{program.file}: {len(steps)} steps in {len(program.blocks)} tbs are too many to be proved")
    return _Ordering(program, steps).run()


class _Ordering:
    def __init__(self, program: Program, steps: list[Instruction]) -> None:
        self._file = program.file
        self._blocks = program.blocks
        self._steps = steps
        self._number = {(step.gpu, step.block, step.step): number for number, step in enumerate(steps)}
        self._senders = dict(self._matches())
        self._before: list[list[int]] = [[] for _ in steps]
        for number, step in enumerate(steps):
            if step.step:
                self._before[number].append(number - 1)
            if step.waits_for:
                self._before[number].append(self._signal(step, *step.waits_for))
            if step.does.receives:
                self._before[number].append(self._senders[number])

    def run(self) -> StepOrder:
        order = self._sorted()
        place = {number: index for index, number in enumerate(order)}
        column = [index for index, block in enumerate(self._blocks) for _ in block.instructions]
        clock = np.zeros((len(order), len(self._blocks)), dtype=np.int32)
        for index, number in enumerate(order):
            for earlier in self._before[number]:
                np.maximum(clock[index], clock[place[earlier]], out=clock[index])
            clock[index, column[number]] = self._steps[number].step + 1
        sender = {place[receive]: place[send] for receive, send in self._senders.items()}
        return StepOrder([self._steps[number] for number in order], sender, clock, [column[number] for number in order])

    def _matches(self) -> Iterator[tuple[int, int]]:
        """Yield the number of each step that receives, with that of the step that sends to it."""
        sends = self._on_connections(lambda step: step.does.sends, lambda b: (b.gpu, b.send_to, b.channel))
        receives = self._on_connections(lambda step: step.does.receives, lambda b: (b.receive_from, b.gpu, b.channel))
        for connection in sorted(sends.keys() | receives.keys()):
            yield from self._match(connection, sends[connection], receives[connection])

    def _on_connections(
        self, wanted: Callable[[Instruction], bool], connection: Callable[[ThreadBlock], Connection]
    ) -> defaultdict[Connection, list[int]]:
        sends: defaultdict[Connection, list[int]] = defaultdict(list)
        for block in self._blocks:
            for step in block.instructions:
                if wanted(step):
                    sends[connection(block)].append(self._number[step.gpu, step.block, step.step])
        return sends

    def _match(self, connection: Connection, sends: list[int], receives: list[int]) -> Iterator[tuple[int, int]]:
        src, dst, channel = connection
        for send, receive in zip(sends, receives, strict=False):
            counts = self._steps[send].count, self._steps[receive].count
            if counts[0] != counts[1]:
                raise self._fault(receive, f"receives {counts[1]} chunks; {self._steps[send]} sends it {counts[0]}")
            yield receive, send
        if len(sends) > len(receives):
            raise self._fault(
                sends[len(receives)], f"sends to gpu {dst} on chan {channel}, which has no receive left for it"
            )
        if len(receives) > len(sends):
            raise self._fault(
                receives[len(sends)], f"receives from gpu {src} on chan {channel}, which has no send left for it"
            )

    def _signal(self, step: Instruction, block: int, wanted: int) -> int:
        """Return the step at which that thread block says that it has done `wanted`.

        The first from there on with hasdep.
        """
        own = self._number[step.gpu, step.block, step.step]
        number = self._number.get((step.gpu, block, wanted))
        if number is None:
            raise self._fault(own, f"depid {block}, deps {wanted}: gpu {step.gpu} has no such step")
        for later in itertools.takewhile(lambda n: self._is_in(n, step.gpu, block), range(number, len(self._steps))):
            if self._steps[later].has_dependents and self._steps[later].does is not NOP:
                return later
        raise self._fault(own, f"depid {block}, deps {wanted}: neither it nor a later step has hasdep=1")

    def _is_in(self, number: int, gpu: int, block: int) -> bool:
        return (self._steps[number].gpu, self._steps[number].block) == (gpu, block)

    def _sorted(self) -> list[int]:
        """Return all numbers, each after those before it, those that can run at once side by side."""
        sorter = TopologicalSorter(dict(enumerate(self._before)))
        with suppress(CycleError):  # which names a circle, but not always the same one
            sorter.prepare()
        order: list[int] = []
        while ready := sorted(sorter.get_ready()):
            order += ready
            sorter.done(*ready)
        if len(order) < len(self._steps):
            self._report_deadlock(set(range(len(self._steps))) - set(order))
        return order

    def _report_deadlock(self, stuck: set[int]) -> None:
        """Raise ScheduleError with steps that wait for one another, in a circle."""
        path = [min(stuck)]
        while path.count(path[-1]) == 1:
            path.append(min(number for number in self._before[path[-1]] if number in stuck))
        circle = path[path.index(path[-1]) :]
        named = [str(self._steps[number]) for number in circle]
        if len(named) > MAX_NAMED:
            named[MAX_NAMED - 1 : -1] = [f"{len(named) - MAX_NAMED} more steps"]
        waits = ", which waits for ".join(named)
        raise ScheduleError(f"{self._file}: deadlock: {waits.replace(', which waits', ' waits', 1)}")

    def _fault(self, number: int, fault: str) -> ScheduleError:
        return ScheduleError(f"{self._file}: {self._steps[number]}: {fault}")
