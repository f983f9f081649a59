"""Runs that nobody ran: a simulated one, a recorded one that is made of it, and a comparison."""

from ringsim import Collective, Network, RunView, simulate
from ringsim.calibration import ComparedCase, Comparison, Timing
from ringsim.calibration.comparison import issued_s
from ringsim.libraries import Call
from ringsim.measurements.measurements import TRANSFER, RecordedRun
from ringsim.registry import build
from ringsim.simulation import IN_ORDER

NETWORK = Network.uniform(1e-5, 1e9, 4e9, 1e-6, 2e-6)
UNIFORM = Network.uniform(latency_s=10e-6, bandwidth_bytes_per_s=1.25e9, reduce_bytes_per_s=5e9)


def made_view(
    algorithm: str,
    num_ranks: int,
    network: Network = UNIFORM,
    collective: Collective | str = Collective.ALL_REDUCE,
    size_bytes: int = 2**20,
    name: str = "",
) -> RunView:
    """The view of a built-in algorithm."""
    return RunView(build(Collective(collective), algorithm, num_ranks, size_bytes), network, size_bytes, name=name)


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


def made_comparison(ratios: list[float], num_groups: int = 1, used: bool = False) -> Comparison:
    """Predictions that are so many times the measured 1 ms, for as many sizes, of several algorithms."""
    cases = [
        ComparedCase(Timing(call, f"algorithm{group}", (1e-3,), spread_s=(9e-4, 11e-4)), ratio * 1e-3, "test", used)
        for group in range(num_groups)
        for call, ratio in ((Call("all_reduce", 1024 << place, 4, 1), ratio) for place, ratio in enumerate(ratios))
    ]
    return Comparison("box", tuple(cases))
