"""Names on a profiler's time line: which transfer of which schedule a rank is at. Without one they cost nothing."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch.autograd import profiler

from collectives.runtime.instructions import Do
from collectives.runtime.rank_part import RankPart

Doing = Sequence[Callable[[int], None]]

# What takes time. Posting a receive, and freeing its place, does not.
NAMES = {
    Do.ARRIVE: "receive chunk {chunk} from rank {peer}",
    Do.APPLY: "apply chunk {chunk} from rank {peer}",
    Do.SEND: "send chunk {chunk} to rank {peer}",
    Do.LEAVE: "wait until chunk {chunk} has left for rank {peer}",
}


def profiling() -> bool:
    """Whether torch.profiler is on in this process, in whatever thread it was started."""
    return profiler._is_profiler_enabled


def span(name: str) -> AbstractContextManager[object]:
    """A block that has this name on the profiler's time line, if there is one."""
    return profiler.record_function(name) if profiling() else nullcontext()


def named(doing: Doing, part: RankPart) -> Doing:
    """`doing`, what each word of a script means to a run of `part`, with a span round each."""
    return [_named(Do(word), do, part) for word, do in enumerate(doing)]


def _named(word: Do, do: Callable[[int], None], part: RankPart) -> Callable[[int], None]:
    schedule, program, peers = part.schedule, part.program, part.peers
    start = f"{schedule.algorithm} {schedule.collective.value}: step"

    def name_of(index: int) -> str:
        if word is Do.LAUNCH:
            return f"{start} {index}, launch its sends and receives"
        transfer = part.sends[index] if word in (Do.SEND, Do.LEAVE) else program.receives[index]
        return f"{start} {transfer.step}, {NAMES[word].format(chunk=transfer.chunk, peer=peers[transfer.peer])}"

    def do_named(index: int) -> None:
        with profiler.record_function(name_of(index)):
            do(index)

    return do_named if word in NAMES or word is Do.LAUNCH else do
