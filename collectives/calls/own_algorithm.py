"""`named_with_digest`: by which ranks compare a user's own algorithm, since each of them reads its own file."""

import hashlib

import numpy as np

from ringsim.registry import is_built_in
from ringsim.schedule import Schedule


def named_with_digest(algorithm: str, schedule: Schedule) -> str:
    """Returns the algorithm's name as ranks compare it: with a digest of the schedule, if it is a user's own.

    Ranks whose files differ then have different fingerprints, though the files have the same name.
    """
    if is_built_in(schedule.collective, algorithm):
        return algorithm
    digest = hashlib.blake2b(np.asarray(schedule.bounds(10 * schedule.num_chunks + 1)).tobytes(), digest_size=6)
    for step in schedule.steps:
        digest.update(len(step).to_bytes(8, "little"))
        for column in (step.src, step.dst, step.chunk, step.reduce, step.channel):
            digest.update(np.ascontiguousarray(column).tobytes())
    return f"{algorithm} (schedule {digest.hexdigest()})"
