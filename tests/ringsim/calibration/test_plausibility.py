"""Latencies that no cluster has are doubted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ringsim.calibration import calibrate_logs, cases_of_tables, doubt_line
from ringsim.measurements import read_logs
from tests.ringsim.commands import printed, run
from tests.ringsim.made_logs import TRUE, nccl_log

SHAPES = (("all_gather", 8, 1), ("all_gather", 16, 2), ("all_reduce", 16, 2))


def logs(folder: Path, hop_factor: float = 1.0, link_factor: float = 1.0) -> list[Path]:
    """Of a cluster whose hops take so many times as long as those of a real one."""
    slow = tuple(
        replace(
            protocol,
            hop_latency_s=hop_factor * protocol.hop_latency_s,
            tree_hop_latency_s=hop_factor * protocol.tree_hop_latency_s,
            link_latency_s=link_factor * protocol.link_latency_s,
            tree_link_latency_s=link_factor * protocol.tree_link_latency_s,
        )
        for protocol in TRUE.protocols
    )
    paths = []
    for test, num_ranks, num_nodes in SHAPES:
        paths.append(folder / f"{test}-{num_nodes}.log")
        paths[-1].write_text(nccl_log(test, num_ranks, num_nodes, rates=replace(TRUE, protocols=slow), noise=0.02))
    return paths


def doubt(paths: list[Path]) -> str:
    """On the network that is fitted to them."""
    return doubt_line(calibrate_logs(cases_of_tables(read_logs(paths)), "made"))


@pytest.mark.parametrize("hop_factor", [1, 30])
def test_a_cluster_on_slow_ethernet_is_believed(tmp_path: Path, hop_factor: float) -> None:
    """Up to some hundred microseconds from host to host."""
    assert doubt(logs(tmp_path, hop_factor)) == ""


@pytest.mark.parametrize(
    ("factors", "name", "place", "advice"),
    [
        ((400, 1), "hop_latency", "from host to host takes less than 1 ms; seen in all_", "NCCL_SOCKET_IFNAME"),
        ((1, 150), "link_latency", "within a host takes less than 50 us; seen in all_gather-1.log", "NCCL_DEBUG=INFO"),
    ],
)
def test_what_no_cluster_has_is_doubted(
    tmp_path: Path, factors: tuple[float, float], name: str, place: str, advice: str
) -> None:
    """In one line: which parameter, in which logs, what may be wrong, and what to measure."""
    line = doubt(logs(tmp_path, *factors))
    assert line.startswith("implausible: ")
    assert all(part in line for part in (f"{name} is ", f"a hop {place}", advice, "sendrecv_perf -b 8 -e 8"))
    assert "\n" not in line


def test_the_command_says_it_last(tmp_path: Path) -> None:
    """On stderr where stdout is one object, which has it too."""
    paths = logs(tmp_path, 400)
    line = printed("calibrate", *paths).splitlines()[-1]
    assert line.startswith("implausible: ")
    with_json = run("calibrate", *paths, "--json")
    assert with_json.stderr.strip() == json.loads(with_json.stdout)["implausible"] == line
