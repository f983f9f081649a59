"""Names on a profiler's time line: which transfer of which schedule a rank is at. Without one they cost nothing."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch.autograd import profiler

from collectives.runtime.instructions import Opcode, RankPart

Actions = Sequence[Callable[[int], None]]

# What takes time. Posting a receive, also again, does not.
NAMES = {
    Opcode.WAIT_RECV: "receive chunk {chunk} from rank {peer}",
    Opcode.APPLY: "apply chunk {chunk} from rank {peer}",
    Opcode.SEND: "send chunk {chunk} to rank {peer}",
    Opcode.WAIT_SEND: "wait until chunk {chunk} has left for rank {peer}",
}


def profiling() -> bool:
    """Whether torch.profiler is on in this process, in whatever thread it was started."""
    return profiler._is_profiler_enabled


def span(name: str) -> AbstractContextManager[object]:
    """A block that has this name on the profiler's time line, if there is one."""
    return profiler.record_function(name) if profiling() else nullcontext()


def named(actions: Actions, part: RankPart) -> Actions:
    """`actions`, what a run of `part` does for each opcode, with a span round each."""
    return [_named(Opcode(number), action, part) for number, action in enumerate(actions)]


def _named(opcode: Opcode, action: Callable[[int], None], part: RankPart) -> Callable[[int], None]:
    schedule, program, peers = part.schedule, part.program, part.peers
    start = f"{schedule.algorithm} {schedule.collective.value}: step"

    def name_of(index: int) -> str:
        if opcode is Opcode.LAUNCH:
            return f"{start} {index}, launch its sends and receives"
        transfer = part.sends[index] if opcode in (Opcode.SEND, Opcode.WAIT_SEND) else program.receives[index]
        return f"{start} {transfer.step}, {NAMES[opcode].format(chunk=transfer.chunk, peer=peers[transfer.peer])}"

    def named_action(index: int) -> None:
        with profiler.record_function(name_of(index)):
            action(index)

    return named_action if opcode in NAMES or opcode is Opcode.LAUNCH else action
