"""Wrong values that a program hands over, and the one line in which each is refused.

Those in place of schedules and of their steps are in schedule/test_user_steps.py, those in commands in
cli/mistakes.txt.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated

from syrupy.assertion import SnapshotAssertion

from ringsim import Collective, Network, Workers, algorithm, find_placement, goal_lines, plot, run_sweep, verify
from ringsim.console.parameters import parse_share
from ringsim.files import parsed, values
from ringsim.measurements import Measurements, RankHosts, p10_p90, p95
from ringsim.report.network_table import parse_placement
from ringsim.report.pages import page
from ringsim.traces import TraceRequest
from ringsim.training_step import BucketCaps
from ringsim.units import decimal_number, parse_rate, parse_size, parse_time
from tests.refusals import said_by

NETWORK = Network.uniform(latency_s=1e-5, bandwidth_bytes_per_s=1e9)
RING = partial(algorithm, "ring")


def sweep(names: list[str], ranks: list[int], sizes: list[int]) -> object:
    """An all_reduce on one network."""
    return run_sweep(Collective.ALL_REDUCE, names, ranks, sizes, {"fast": NETWORK})


def hosts_in(machines: object, hosts: list[int]) -> object:
    """Return the hosts that the measurements of three ranks name."""
    return RankHosts.from_measurements(Measurements(3, {"machines": machines, "hosts": hosts}))


MISTAKES: list[Callable[[], object]] = [
    *(partial(parse_size, text) for text in ("12XB", "1.5", "", "nan", "1e400GB")),
    *(partial(parse_rate, text) for text in ("10", "-1GB/s")),
    *(partial(parse_time, text) for text in ("-1us", "1 minute")),
    lambda: decimal_number("3,5"),
    *(partial(parse_share, text) for text in ("5", "ten", "-1%", "nan", "inf")),  # 5 is rather meant as 5 %
    *(
        partial(parsed, Annotated[int, values.whole(least)], value, "x")
        for least, value in ((3, 2), (0, 2**61), (0, True))
    ),
    *(partial(parsed, rule, value, "x") for rule, value in ((values.Size, 0), (values.Rate, "3"), (values.Time, 3))),
    *(partial(parsed, rule, value, "x") for rule, value in ((bool, 1), (values.Number, True))),
    *(partial(BucketCaps.from_mb, cap) for cap in (0, -1, math.nan, math.inf, 1e308)),  # torch does not look
    lambda: BucketCaps(1, 0),
    *(partial(percentiles, []) for percentiles in (p10_p90, p95)),
    *(partial(hosts_in, *hosts) for hosts in (([0], [0, 0, 0]), (3, [0, 0, 0]), ([0, 0, 0], [0, 9, 0]))),
    # Only where all hosts but the last have as many ranks, one host's after the other's, is there one number.
    *(partial(getattr, RankHosts(on, on), "ranks_per_host") for on in ((0, 1, 0, 1), (0, 1, 1), (0, 0, 1, 2, 2))),
    lambda: sweep(["tree"], [2, 3], [1]),
    lambda: sweep([], [2], [1]),
    lambda: sweep(["ring"], [2], [0]),
    lambda: sweep(["ring"], [1, 2], [1]),
    lambda: find_placement(RING(5), NETWORK, 2**22, budget=0),
    lambda: parse_placement("0;1"),
    lambda: Workers(0),
    lambda: Workers(2, "tcp://a:1"),
    lambda: Workers(1, "tcp://a"),
    lambda: plot(RING(129)),
    lambda: page("page.j2", "title", data=math.nan),  # which JSON does not have
    lambda: TraceRequest("train.py", (), False, 4, 4, 2, 3, "step.trace.json"),
    lambda: next(goal_lines(algorithm("direct", 258, "broadcast"), 1000)),  # a NIC is a byte in LogGOPSim's binary
    lambda: verify(RING(4096)),  # before it is begun
]


def test_the_message_names_the_value_and_the_rule(snapshot: SnapshotAssertion) -> None:
    """In one line, and before any work."""
    said = [said_by(ValueError, make) for make in MISTAKES]
    assert not [message for message in said if "\n" in message]
    assert said == snapshot
