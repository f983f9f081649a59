"""GOAL text of a `Schedule`, which LogGOPSim's `txt2bin` reads, so that another simulator can check ours.

As in spcl/LogGOPSim (`txt2bin.re`) sizes are in bytes, `calc` in nanoseconds; `a requires b`: a starts when b is done.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from ringsim.limits import require_memory
from ringsim.schedule import NO_ROW, RankOperation, Schedule, dependencies, operations_of_ranks

BYTES_PER_TRANSFER = 250  # of memory, while it is written, at most
MAX_NICS = 256  # txt2bin keeps the number of a nic in one byte


def goal_lines(
    schedule: Schedule,
    size_bytes: int,
    reduce_bytes_per_s: float = math.inf,
    on_progress: Callable[[int], object] = lambda _: None,
) -> Iterator[str]:
    r"""Yield the lines of `schedule` for a tensor of `size_bytes` in GOAL text.

    Transfer t is `s<t>` on its sender, `r<t>` on its receiver and, if it is reduced at a finite rate, `c<t>`, a calc of
    the rounded nanoseconds. Each pair of ranks numbers its messages with tags, and has its own nic at both ends. An
    empty chunk is one byte, since LogGOPSim charges (size - 1) G.
    on_progress: called after each rank with the number of transfers to it.
    Raises ValueError for a negative size and for more kinds of pairs than GOAL has nics.

        >>> from ringsim import goal_lines, ring_all_reduce
        >>> next(goal_lines(ring_all_reduce(4), 2**20))
        'num_ranks 4\n'
    """
    require_memory(f"{schedule} in GOAL text", schedule.num_transfers * BYTES_PER_TRANSFER)
    waits = dependencies(schedule)
    num_bytes = schedule.chunk_bytes(size_bytes)[waits.chunk]
    calc_ns = (np.rint(num_bytes / reduce_bytes_per_s * 1e9) * waits.reduce).astype(np.int64)
    hops, nics = np.unique((waits.dst - waits.src) % schedule.num_ranks, return_inverse=True)
    if len(hops) > MAX_NICS:
        raise ValueError(f"{schedule}: needs {len(hops)} nics a rank, one for each distance; GOAL has {MAX_NICS}")

    def label(operation: RankOperation) -> str:
        is_send, row = operation
        return f"{'s' if is_send else 'c' if calc_ns[row] else 'r'}{row}"

    yield f"num_ranks {schedule.num_ranks}\n"
    for rank, operations in enumerate(operations_of_ranks(waits, schedule.num_ranks)):
        yield f"rank {rank} {{\n"
        num_messages: Counter[tuple[bool, int]] = Counter()
        for (is_send, row), required in operations:
            peer, before = (waits.dst, waits.before_on_channel) if is_send else (waits.src, waits.before_on_connection)
            tag = num_messages[is_send, peer[row]]
            num_messages[is_send, peer[row]] += 1
            kind, to = ("send", "to") if is_send else ("recv", "from")
            nic = f" nic {nics.ravel()[row]}" if nics.ravel()[row] else ""
            yield f"{kind[0]}{row}: {kind} {max(num_bytes[row], 1)}b {to} {peer[row]} tag {tag}{nic}\n"
            last = label(RankOperation(is_send, row))
            if last.startswith("c"):
                yield f"{last}: calc {calc_ns[row]}\n{last} requires r{row}\n"
            in_order = [RankOperation(is_send, int(before[row]))] if before[row] != NO_ROW else []
            for earlier in sorted({*required, *in_order}):
                yield f"{last} requires {label(earlier)}\n"
        yield "}\n"
        on_progress(sum(not is_send for (is_send, _), _ in operations))
