"""Tests of `ringsim.report.sweep_table`."""

import pytest

from ringsim.analysis.sweep_run import run_sweep
from ringsim.network.file_reader import load_network
from ringsim.network.network import Network
from ringsim.report.network_table import describe_network
from ringsim.report.sweep_table import format_sweep
from ringsim.schedule.collective import Collective

NETWORKS = {"one": Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9)}


def test_a_row_for_each_size_and_a_column_for_each_number_of_ranks() -> None:
    """Fastest algorithm, its time, and how much faster than the ring; the ring's own gain is left out."""
    sweep = run_sweep(Collective.ALL_REDUCE, ["ring", "recursive_doubling"], [4, 8], [1000, 1 << 22], NETWORKS)
    assert format_sweep(sweep).splitlines() == [
        "all_reduce, the fastest of 2 algorithms, its time, and how many times as fast as",
        "  the ring",
        "network one: latency 10 us, bandwidth 1 GB/s, each rank has one full-duplex port",
        "",
        "         4 ranks                              8 ranks",
        "1000 B   recursive_doubling     22 us  2.8x   recursive_doubling    33 us  4.3x",
        " 4 MiB   ring                6.351 ms         ring                7.48 ms",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_columns_that_do_not_fit_go_below(width: int) -> None:
    """No line is wider than asked for, and no column is lost."""
    names = ["double_binary_tree", "recursive_doubling"]
    text = format_sweep(run_sweep(Collective.ALL_REDUCE, names, [2, 4, 8, 16, 32, 64], [8, 1 << 22], NETWORKS), width)
    assert "as fast as the second" in " ".join(text.split())
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    headings = " ".join(line for line in lines if line.startswith("  ") and "ranks" in line)
    assert headings.replace(" ranks", "").split() == ["2", "4", "8", "16", "32", "64"]


def test_a_uniform_network_is_explained() -> None:
    """A cluster, whose description says what it is, needs no such note."""
    networks = {"ports": Network(latency_s=1e-6, bandwidth_bytes_per_s=1e9), "gbe": load_network("gbe")}
    text = format_sweep(run_sweep(Collective.ALL_REDUCE, ["ring", "direct"], [8], [1 << 24], networks))
    assert " ".join(text.split()).count("each rank has one full-duplex port") == 1


def test_a_network_is_described_by_its_times_and_rates() -> None:
    """Costs of nothing are left out."""
    network = Network(2e-6, 1e9, gap_s=1e-6).as_dict() | {"hosts": [1, 2], "kind": "star"}
    assert describe_network(network) == ["latency 2 us", "bandwidth 1 GB/s", "gap 1 us"]
