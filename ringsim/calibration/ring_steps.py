"""`with_ring_steps`: what a step of NCCL's ring across hosts takes, by the bytes of a rank, as logs have it.

Such a ring goes at the pace of its slowest link, and NCCL takes protocol and chunk by the bytes of a rank, not by what
is the fastest. So times over sizes have steps and bends that start, latency and bandwidth do not have; on more hosts
they are at the same bytes of a rank. Within a host, and for trees, that does not hold.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ringsim.calibration.cases import TimedCase
from ringsim.calibration.protocol_time import launch_s, predict
from ringsim.measurements import RING_TESTS
from ringsim.network import Cluster, RingStep

FEWEST = 3  # sizes of messages: with fewer the protocols say more
SHORTEST = 1.5  # times the start: what a shorter time has beside it says little of steps


def with_ring_steps(cluster: Cluster, cases: Sequence[TimedCase]) -> Cluster:
    """Return `cluster` with the steps of the rings of most hosts, and of these of most ranks of a host.

    Where so few sizes of these are rings that they do not tell, the next ones count, as they do for smaller and larger
    messages. Rings are the collectives that have no other algorithm, and those for which the formulas of `cluster`
    choose it.
    """
    across = [case for case in cases if case.num_nodes > 1 and case.collective in RING_TESTS and _may_be_ring(case)]
    if not across:
        return cluster
    taken = predict(cluster, [case.question for case in across])
    rings = [case for case, (_, algorithm) in zip(across, taken, strict=True) if algorithm.startswith("ring ")]
    start_s = launch_s(cluster.spec.protocols)
    by_shape: dict[tuple[int, float], dict[int, list[float]]] = {}
    for case in rings:
        if case.calibrated_s > SHORTEST * start_s:
            rounds = 2 if case.collective == "all_reduce" else 1
            step_s = (case.calibrated_s - start_s) / rounds / (case.num_ranks - 1)
            seconds = by_shape.setdefault(_shape(case), {})
            seconds.setdefault(math.ceil(case.size_bytes / case.num_ranks), []).append(step_s)
    known = [shape for shape, seconds in by_shape.items() if len(seconds) >= FEWEST and shape[1].is_integer()]
    if not known:
        return cluster
    most = max(known)
    for shape in sorted(by_shape, reverse=True):
        if shape[1] == most[1]:  # sizes that the rings of more hosts do not reach, as there they are trees
            smallest, largest = min(seconds := by_shape[most]), max(seconds)
            seconds |= {at: times for at, times in by_shape[shape].items() if not smallest <= at <= largest}
    steps = tuple(RingStep(message, time_s) for message, time_s in _nondecreasing(by_shape[most]).items())
    library = replace(cluster.spec.library, ring_steps=steps, ring_ranks=int(most[1]))
    return cluster.with_spec(library=library)


def _nondecreasing(seconds: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Return the step of each message, none shorter than that of a smaller one, as close as may be to those measured.

    More bytes do not pass faster: where it was measured so, the messages share the median of their times (the isotonic
    regression of the logarithms by least absolute deviations, by pooling adjacent violators), as one disturbed time
    that is many times too long must not lift the others.
    """
    pools: list[tuple[list[int], list[float]]] = []
    for message, times in sorted(seconds.items()):
        pools.append(([message], list(times)))
        while len(pools) > 1 and _median_s(pools[-2][1]) > _median_s(pools[-1][1]):
            messages, own = pools.pop()
            pools[-1] = (pools[-1][0] + messages, pools[-1][1] + own)
    return {message: _median_s(times) for messages, times in pools for message in messages}


def _median_s(times: Sequence[float]) -> float:
    """Return the median of the times, by their logarithms."""
    return math.exp(statistics.median(map(math.log, times)))


def _may_be_ring(case: TimedCase) -> bool:
    """Return whether it is a ring, or NCCL's choice; other libraries have algorithms that no formula here describes."""
    return case.algorithm in ("nccl", "ring") and case.settings.groups == 1


def _shape(case: TimedCase) -> tuple[int, float]:
    """Return the hosts, and the ranks of each."""
    return case.num_nodes, case.num_ranks / case.num_nodes
