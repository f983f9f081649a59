"""`RankPart`: what a rank has to do of a schedule, and with whom; the same in every run."""

from dataclasses import dataclass

from ringsim.schedule import RankProgram, Schedule, Send


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank's part of a schedule on a process group.

    sends: those of `program`, in the order in which they are issued.
    peers: the rank of the group that the schedule calls rank i.
    """

    schedule: Schedule
    program: RankProgram
    sends: tuple[Send, ...]
    peers: tuple[int, ...]
