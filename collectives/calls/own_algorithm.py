"""A user's own algorithm on real ranks: proved before it runs, and compared, since each rank reads its own file."""

import hashlib

import numpy as np

from ringsim.registry import build, is_built_in
from ringsim.schedule import Collective, Schedule, verify


def build_proved(collective: Collective, algorithm: str, num_ranks: int, size_bytes: int | None = None) -> Schedule:
    """Returns the schedule, proved if it is a user's own: the result of a wrong one would be wrong in silence.

    Raises ValueError as `build` does, and ScheduleError, with the grid that shows the fault, for one that is wrong.
    """
    schedule = build(collective, algorithm, num_ranks, size_bytes)
    if not is_built_in(collective, algorithm):
        verify(schedule)
    return schedule


def named_with_digest(algorithm: str, schedule: Schedule) -> str:
    """Returns the algorithm's name as ranks compare it: with a digest of the schedule, if it is a user's own.

    Ranks whose files differ then have different fingerprints, though the files have the same name.
    """
    if is_built_in(schedule.collective, algorithm):
        return algorithm
    digest = hashlib.blake2b(np.asarray(schedule.bounds(10 * schedule.num_chunks + 1)).tobytes(), digest_size=6)
    for step in schedule.steps:
        digest.update(len(step).to_bytes(8, "little"))
        for column in (step.src, step.dst, step.chunk, step.reduce):
            digest.update(np.ascontiguousarray(column).tobytes())
    return f"{algorithm} (schedule {digest.hexdigest()})"
