"""`ringsim synthesize`, and the bounds that other commands print."""

from pathlib import Path

from ringsim.analysis import NetworkBound
from ringsim.report.run_summary import bound_line
from tests.ringsim.commands import as_json, printed

RING = ("--network", "docs/networks/ring-of-six.toml", "--ranks", 6)


def test_what_is_found_can_be_used_at_once(tmp_path: Path) -> None:
    """The file takes as long in `simulate`, and the picture is one."""
    file, picture = tmp_path / "found.xml", tmp_path / "links.png"
    search = ("synthesize", *RING, "--collective", "all_gather", "--seconds", 20, "-o", file, "--plot", picture)
    result = as_json(*search)
    assert result["time_s"] <= 1.002 * result["bound"]["time_s"]
    assert result["time_s"] <= min(one["time_s"] for one in result["named"] if one["time_s"])
    assert as_json("simulate", *RING, "--algorithm", file)["time_s"] == result["time_s"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_built_in_algorithm_that_is_faster_is_named() -> None:
    """Six ranks with a port each: a ring is as fast as the bound."""
    arguments = ("synthesize", "--ranks", 6, "--collective", "all_gather", "--latency", "0us", "--seconds", 1)
    text = printed(*arguments)
    assert "as fast as what this network allows" in text
    assert max(map(len, text.splitlines())) <= 80


def test_explain_and_algorithms_have_the_same_bound() -> None:
    """In JSON as in their texts."""
    bound = as_json("explain", *RING, "--algorithm", "ring")["bound"]
    assert as_json("algorithms", *RING, "--collective", "all_reduce")["bounds"]["all_reduce"] == bound


def test_the_bound_is_that_of_the_network_not_of_a_librarys_pace() -> None:
    """A broadcast of NCCL is simulated on links that are several times as fast, as its rings use all NICs of a host."""
    network = ("--network", "dgx-a100", "--ranks", 16)
    bound = as_json("algorithms", *network, "--collective", "broadcast", "--size", "64MiB")["bounds"]["broadcast"]
    explained = as_json("explain", *network, "--collective", "broadcast", "--size", "64MiB", "--algorithm", "ring")
    assert explained["bound"] == bound


def test_a_bound_by_pairs_of_ranks_names_them() -> None:
    """Where each message is copied at its two ends, and nothing else limits it."""
    reason = "the bandwidth of a pair of ranks to rank 0"
    assert bound_line(NetworkBound(0.0, 1.0, (0,)), 1.5) == f"50.0 % above what this network allows (1 s: {reason})"
