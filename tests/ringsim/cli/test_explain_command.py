"""`ringsim explain`, by click's runner."""

from pathlib import Path

import pytest

from tests.ringsim.commands import as_json, printed


def test_a_ring_of_four() -> None:
    """Each step in a sentence with its arithmetic, below the rule of its phase."""
    lines = printed("explain", "--ranks", "4", "--size", "1MiB", "--wide").splitlines()
    assert max(map(len, printed("explain", "--ranks", "4", "--size", "1MiB").splitlines())) <= 80
    assert lines[:7] == [
        "all_reduce ring, 4 ranks, 1 MiB in 4 chunks of 256 KiB",
        "Network: latency 10 us, bandwidth 1.25 GB/s, each rank has one full-duplex port.",
        "Every rank starts with its contribution to every chunk; at the end every rank must hold the sum of all 4 "
        "contributions to every chunk.",
        "",
        "reduce-scatter, steps 1 to 3",
        "  In step s = 1 to 3 rank r sends chunk (r - s) mod 4 to rank (r + 1) mod 4: after the first step, the chunk "
        "that it received and added its contribution to in the step before.",
        "  step 1  every rank r sends chunk (r - 1) mod 4 to rank (r + 1) mod 4, which adds its contribution: 2 of 4",
    ]
    assert lines[7] == "          rank 0: chunk 3, rank 1: chunk 0, rank 2: chunk 1, rank 3: chunk 2"
    assert "all-gather, steps 4 to 6" in lines
    assert "  time           1.318 ms" in lines


def test_a_rank_with_one_port_gains_nothing_by_sending_to_many() -> None:
    """Its port is named as the bottleneck."""
    told = printed("explain", "--ranks", "4", "--size", "16MiB", "--wide")
    assert "bottleneck     rank0.out" in told
    helping = told[told.index("What would help most") : told.index("no gain: ")]
    assert "algorithm direct" not in helping


def test_of_what_gains_nothing_the_nearest_are_told() -> None:
    """Three of them, and how many more --wide tells."""
    told, wide = (printed("explain", "--ranks", 4, *more).split("no gain: ")[1] for more in ([], ["--wide"]))
    everything = [line.split(")")[0] for line in " ".join(wide.split()).split(", ")]
    *nearest, rest = [line.split(")")[0] for line in " ".join(told.split()).split(", ")]
    assert (len(nearest), nearest) == (3, everything[:3])
    assert rest == f"and {len(everything) - 3} more (--wide"


def test_of_many_steps_only_some_are_told() -> None:
    """The first of each phase, and its last."""
    lines = printed("explain", "--ranks", "16", "--size", "1MiB", "--wide").splitlines()
    start = lines.index("reduce-scatter, steps 1 to 15")
    assert [line[:9] for line in lines[start + 2 : start + 5]] == ["  step 1 ", "  step 2 ", "  step 3 "]
    assert lines[start + 5] == "  steps 4 to 14 follow the same pattern"
    assert lines[start + 6].startswith("  step 15  every rank r sends chunk (r - 15) mod 16")


def test_the_advice_is_what_simulate_says() -> None:
    """The best alternative, simulated by itself, takes the time that it was said to take."""
    options = ["--ranks", "8", "--size", "64KiB", "--network", "gbe"]
    result = as_json("explain", *options)
    times = {other["name"]: other["time_s"] for other in result["alternatives"]}
    simulated = as_json("simulate", *options, "--algorithm", "halving_doubling")
    assert times["halving_doubling"] == simulated["time_s"]
    half = [other for other in result["alternatives"] if other["name"] == "half the latency of all links"]
    assert half[0]["times_as_fast"] == pytest.approx(result["time_s"] / half[0]["time_s"])
    ordered = [other["time_s"] for other in result["alternatives"] if other["time_s"] is not None]
    assert ordered == sorted(ordered)
    assert result["walkthrough"]["phases"][0]["steps"][0]["number"] == 0


def test_what_fails_and_what_would_finish(tmp_path: Path) -> None:
    """A run that never finishes has that said, with who waits; without the failure it finishes."""
    network = tmp_path / "failing.toml"
    network.write_text('[host]\nranks = 1\n[host.nic]\nbandwidth = "1GB/s"\n[[failure]]\nrank = 2\n')
    text = printed("explain", "--ranks", "4", "--network", network)
    assert "never finishes" in text
    assert "rank2 failed at 0 ns" in text
    assert "no failures" in text.partition("What would help most, by simulation")[2].splitlines()[1]
    result = as_json("explain", "--ranks", "4", "--network", network)
    assert result["time_s"] is None


def test_a_rank_placement() -> None:
    """Is named, and holds for the alternatives too."""
    text = printed("explain", "--ranks", "4", "--order", "0,2,1,3", "--size", "1KiB")
    assert "rank 0 sends chunk 3 to rank 2" in text


def test_one_rank() -> None:
    """Nothing to send, nothing to gain."""
    text = printed("explain", "--ranks", "1")
    assert "A single rank has nothing to send." in text
    assert "none of the alternatives that were simulated" in text


@pytest.mark.parametrize(
    ("network", "is_named"), [("docs/networks/slow-nic.toml", True), ("gbe", False), ("dgx-h100-cluster", False)]
)
def test_a_search_is_named_where_every_algorithm_is_far_above_the_bound(network: str, is_named: bool) -> None:
    """Not where one is close to it, nor where NCCL would execute the collective."""
    told = printed("explain", "--network", network, "--ranks", 16, "--size", "64MiB", "--wide")
    assert ("above the bound: ringsim synthesize searches for a faster schedule" in told) == is_named
