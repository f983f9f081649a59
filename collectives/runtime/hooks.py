"""Hooks of a run, which see its instructions: the log of `execute`, and names on a profiler's time line.

A hook is given what a run does for each opcode, and returns what the run does instead.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from torch.autograd import profiler

from collectives.runtime.instructions import Opcode, RankPart

Action = Callable[[int], None]
Actions = Sequence[Action]  # by the number of the opcode; to look that up in a dict takes Python 3.11 longer
Hook = Callable[[Actions, RankPart], Actions]

# Opcodes that take time. Posting a receive, also again, does not.
NAMES = {
    Opcode.WAIT_RECV: "receive chunk {chunk} from rank {peer}",
    Opcode.APPLY: "apply chunk {chunk} from rank {peer}",
    Opcode.SEND: "send chunk {chunk} to rank {peer}",
    Opcode.WAIT_SEND: "wait until chunk {chunk} has left for rank {peer}",
}


class Event(NamedTuple):
    """One transfer of a rank at one moment, as the `log` of `execute` holds it.

    kind: "sent" as it issued a send, "applied" when it had applied a receive.
    step, chunk: of the schedule. peer: a rank of the group.
    time_s: of `time.perf_counter`, which on Linux is one clock for all processes of a machine.

        >>> log = []
        >>> collectives.execute(ringsim.ring_all_reduce(2), torch.ones(4), log=log)
        >>> sorted((event.kind, event.step) for event in log)
        [('applied', 0), ('applied', 1), ('sent', 0), ('sent', 1)]
    """

    kind: str
    step: int
    peer: int
    chunk: int
    time_s: float


def logging_to(log: list[Event]) -> Hook:
    """Return a hook that notes every send before it is issued, and every receive once it is applied, in `log`."""

    def hook(actions: Actions, part: RankPart) -> Actions:
        send, apply = actions[Opcode.SEND], actions[Opcode.APPLY]

        def note(opcode: Opcode, index: int) -> None:
            transfer = part.transfer(opcode, index)
            kind, peer = "sent" if opcode is Opcode.SEND else "applied", part.peers[transfer.peer]
            log.append(Event(kind, transfer.step, peer, transfer.chunk, time.perf_counter()))

        def logged_send(index: int) -> None:
            note(Opcode.SEND, index)  # before it is: a receiver that has a core may be done before this rank goes on
            send(index)

        def logged_apply(index: int) -> None:
            apply(index)
            note(Opcode.APPLY, index)

        changed = list(actions)
        changed[Opcode.SEND], changed[Opcode.APPLY] = logged_send, logged_apply
        return changed

    return hook


def profiling() -> bool:
    """Whether torch.profiler is on in this process, in whatever thread it was started."""
    return profiler._is_profiler_enabled


def span(name: str) -> AbstractContextManager[object]:
    """Return a block that has this name on the profiler's time line, if there is one."""
    return profiler.record_function(name) if profiling() else nullcontext()


def naming_spans(actions: Actions, part: RankPart) -> Actions:
    """Put a span that names the transfer round each action: a hook."""
    return [_named(Opcode(number), action, part) for number, action in enumerate(actions)]


def _named(opcode: Opcode, action: Action, part: RankPart) -> Action:
    start = f"{part.schedule.algorithm} {part.schedule.collective.value}: step"

    def name_of(index: int) -> str:
        if opcode is Opcode.LAUNCH:
            return f"{start} {index}, launch its sends and receives"
        transfer = part.transfer(opcode, index)
        return f"{start} {transfer.step}, {NAMES[opcode].format(chunk=transfer.chunk, peer=part.peers[transfer.peer])}"

    def named_action(index: int) -> None:
        with profiler.record_function(name_of(index)):
            action(index)

    return named_action if opcode in NAMES or opcode is Opcode.LAUNCH else action
