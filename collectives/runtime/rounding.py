"""`Rounding`: the chunks that a rank rounds when chunks travel in another dtype than that of the sums."""

from collections import defaultdict
from typing import NamedTuple

from ringsim.schedule import Collective, RankProgram, Receive, Schedule, Send, held_at_end

# After these all ranks hold the same result, so unsent chunks are rounded like sent ones.
ALIKE = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST)


class Rounding(NamedTuple):
    """The chunks that a rank rounds in its own tensor, in addition to its messages.

    in_place: per send, whether the chunk itself takes the rounded value, because this rank adds to it later or keeps
    it.
    at_end: chunks to round after the last step.
    """

    in_place: tuple[bool, ...]
    at_end: tuple[int, ...]


def rounding_of(schedule: Schedule, rank: int, program: RankProgram) -> Rounding:
    """Return the rounding of the schedule's rank `rank`, which executes `program`."""
    receives = defaultdict[int, list[Receive]](list)
    last_sent = dict[int, int]()  # of a chunk: the step of its last send
    for receive in program.receives:
        receives[receive.chunk].append(receive)
    for send in program.sends:
        last_sent[send.chunk] = max(send.step, last_sent.get(send.chunk, send.step))
    is_left_here = held_at_end(schedule.collective, schedule.num_ranks, schedule.num_chunks)[rank]

    def in_place(send: Send) -> bool:
        # A send transmits the value from before its step, so a receive of the same step comes after it.
        later = next((receive for receive in receives[send.chunk] if receive.step >= send.step), None)
        return bool(is_left_here[send.chunk]) if later is None else later.reduce

    def is_rounded_at_end(chunk: int) -> bool:
        last = receives[chunk][-1] if receives[chunk] else None
        return (last is not None and not last.reduce) or last_sent.get(chunk, -1) > (-1 if last is None else last.step)

    unrounded = [chunk for chunk in range(schedule.num_chunks) if not is_rounded_at_end(chunk)]
    return Rounding(tuple(map(in_place, program.sends)), tuple(unrounded) if schedule.collective in ALIKE else ())
