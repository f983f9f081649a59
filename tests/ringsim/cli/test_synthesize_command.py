"""`ringsim synthesize`, and the bounds that other commands print."""

from pathlib import Path

import pytest

from tests.ringsim.commands import as_json, printed, refused, run

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


def test_explain_and_algorithms_print_the_bound() -> None:
    """In JSON as well."""
    bound = as_json("explain", *RING, "--algorithm", "ring")["bound"]
    assert as_json("algorithms", *RING)["bounds"]["all_reduce"] == bound
    assert "100 % above what this network allows" in " ".join(printed("explain", *RING).split())
    assert "no algorithm takes less than" in printed("algorithms", *RING, "--collective", "all_reduce")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((*RING[:2], "--ranks", 7), "its hosts have 6 ranks: 7 were asked for"),
        (("--ranks", 1), "num_ranks 1: must be at least 2"),
        (("--seconds", "0"), "must be greater than 0"),
        (("--seconds", "soon"), "is no number of seconds"),
        (("--size", "0"), "size 0: must be at least 1 byte"),
        (("--network", "docs/networks/failing.toml", "--ranks", 8), "it does not connect all of the 8 ranks"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[object, ...], line: str) -> None:
    """With exit code 2, before any search."""
    assert line in refused("synthesize", *arguments)


def test_the_size_needs_a_network() -> None:
    """Without one, algorithms have no times."""
    assert "--size has no effect without --network" in refused("algorithms", "--size", "1MiB")
    assert run("algorithms", "--ranks", 4).stderr == ""
