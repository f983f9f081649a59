"""A recorded run that nobody ran: made of a simulated one."""

from ringsim import Collective, Network, simulate
from ringsim.calibration.comparison import issued_s
from ringsim.measurements.measurements import TRANSFER, RecordedRun
from ringsim.registry import build
from ringsim.simulation import IN_ORDER

NETWORK = Network.uniform(1e-5, 1e9, 4e9, 1e-6, 2e-6)


def made_run(
    collective: Collective = Collective.ALL_REDUCE,
    algorithm: str = "ring",
    num_ranks: int = 3,
    size_bytes: int = 12000,
    slower: float = 1.0,
) -> RecordedRun:
    """Every time is `slower` times what it is on NETWORK; each rank began a microsecond before the one after it."""
    schedule = build(collective, algorithm, num_ranks, size_bytes)
    timeline = simulate(schedule, NETWORK, size_bytes, element_bytes=4, runtime=IN_ORDER)
    columns = (timeline.step, timeline.src, timeline.dst, timeline.chunk)
    times = (issued_s(schedule, timeline) * slower, timeline.applied_s * slower)
    rows = sorted(zip(*(column.tolist() for column in (*columns, *times)), strict=True))
    begin = tuple(-1e-6 * (num_ranks - 1 - rank) for rank in range(num_ranks))
    end = (timeline.time_s * slower,) * num_ranks
    return RecordedRun(
        collective, algorithm, size_bytes, 4, num_ranks, (timeline.time_s * slower,) * 3, begin, end,
        **dict(zip(TRANSFER, zip(*rows, strict=True), strict=True)),
    )  # fmt: skip
