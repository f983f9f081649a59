"""Synthesis: what is found is right, near the bound, never slower than built-in algorithms, and the same when read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cabled_networks import fully_connected, hosts, hypercube, islands, star, torus
from ringsim import Collective, algorithm, msccl_lines, predict_time, verify
from ringsim.analysis import BOUNDED
from ringsim.network import AnyNetwork, load_network, read_network
from ringsim.synthesis import SearchOptions, SearchState, synthesize
from tests.ringsim.made_networks import made_network

LARGE = 2**28
UNIFORM: dict[str, tuple[Callable[[], AnyNetwork], int]] = {
    "ring": (lambda: load_network("docs/networks/ring-of-six.toml"), 6),
    "torus": (lambda: torus(4, 4), 16),
    "hypercube": (lambda: hypercube(3), 8),
    "fully connected": (lambda: fully_connected(6), 6),
    "switch": (star, 8),
}
UNEVEN: dict[str, tuple[Callable[[], AnyNetwork], int]] = {
    "torus with a cable missing": (lambda: torus(4, 4, missing=1), 16),
    "one NIC at a quarter": (lambda: star(2), 8),
    "hosts, one NIC at a quarter": (lambda: hosts(4, 1, 1), 16),
    "islands": (lambda: islands(4), 8),
    "a NIC for a pair": (lambda: hosts(4, 2), 16),
}


@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE])
@pytest.mark.parametrize("name", UNIFORM)
def test_uniform_networks_are_used_as_well_as_they_can_be(name: str, collective: Collective) -> None:
    """Within 2 % of the bound, below which no algorithm is, or as fast as the fastest known one."""
    make, num_ranks = UNIFORM[name]
    synthesis = synthesize(collective, make(), num_ranks, LARGE, SearchOptions(seconds=100, enough=1.02))
    best_s = min(one.time_s for one in synthesis.named if one.time_s is not None)
    assert synthesis.bound
    assert synthesis.time_s <= best_s
    assert synthesis.time_s <= 1.02 * synthesis.bound.time_s


@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE])
@pytest.mark.parametrize("name", UNEVEN)
def test_uneven_networks_are_used_to_nine_tenths(name: str, collective: Collective) -> None:
    """Within 10 % of what they allow, where built-in algorithms often take several times as long."""
    make, num_ranks = UNEVEN[name]
    synthesis = synthesize(collective, make(), num_ranks, LARGE, SearchOptions(seconds=100, enough=1.09))
    best_s = min(one.time_s for one in synthesis.named if one.time_s is not None)
    assert synthesis.bound
    assert synthesis.time_s <= best_s
    assert synthesis.time_s <= 1.10 * synthesis.bound.time_s
    verify(synthesis.schedule)


def test_links_that_cost_nothing_keep_the_order_of_additions() -> None:
    """Within hosts of two ranks a chunk passes several ranks at one moment, backwards in time as well."""
    free = read_network('[host]\nranks = 2\n[host.nic]\nbandwidth = "1Gbit/s"', "free.toml")
    for collective in (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE):
        synthesis = synthesize(collective, free, 8, LARGE, SearchOptions(seconds=100, enough=1.3))
        assert synthesis.num_tried
        verify(synthesis.schedule)


@pytest.mark.parametrize("collective", BOUNDED)
def test_a_file_holds_all_that_matters(collective: Collective, tmp_path: Path) -> None:
    """Read back from MSCCL XML, as --algorithm does, a found schedule takes as long."""
    network = torus(3, 3, missing=1)
    synthesis = synthesize(collective, network, 9, 2**20, SearchOptions(seconds=1))
    file = tmp_path / "found.xml"
    file.write_text("".join(msccl_lines(synthesis.schedule, with_places=True)))
    read = algorithm(str(file), 9, collective)
    assert [list(step) for step in read.steps] == [list(step) for step in synthesis.schedule.steps]
    assert predict_time(read, network, 2**20) == synthesis.time_s


def test_the_same_seed_finds_the_same() -> None:
    """With a bound that the first try meets, so that time does not matter."""
    first, second = (synthesize(Collective.ALL_GATHER, torus(4, 4), 16, LARGE, SearchOptions(seed=3)) for _ in range(2))
    assert [list(step) for step in first.schedule.steps] == [list(step) for step in second.schedule.steps]


def test_chunks_per_rank_are_as_given() -> None:
    """All_gather has so many for each rank, broadcast in all."""
    synthesis = synthesize(Collective.ALL_GATHER, torus(3, 3), 9, LARGE, SearchOptions(1, chunks_per_rank=5))
    assert synthesis.schedule.num_chunks == 45
    synthesis = synthesize(Collective.BROADCAST, torus(3, 3), 9, LARGE, SearchOptions(1, chunks_per_rank=7))
    assert synthesis.schedule.num_chunks == 7


def test_an_interrupt_keeps_the_best() -> None:
    """Ctrl-C after the first try."""

    def interrupt(state: SearchState) -> None:
        if state.phase == "searching":
            raise KeyboardInterrupt

    options = SearchOptions(seconds=1000)
    synthesis = synthesize(Collective.ALL_REDUCE, torus(3, 3, missing=1), 9, LARGE, options, on_state=interrupt)
    assert synthesis.num_tried == 1
    verify(synthesis.schedule)


def test_no_time_is_refused() -> None:
    """Even the first try takes some."""
    with pytest.raises(ValueError, match="seconds 0: must be greater than 0"):
        synthesize(Collective.ALL_REDUCE, torus(3, 3), 9, LARGE, SearchOptions(seconds=0))


def test_a_network_that_is_not_connected_is_refused() -> None:
    """A NIC that never carries anything cuts off its rank."""
    dead = made_network('[[failure]]\nlink = "host2.nic0.out"')
    with pytest.raises(ValueError, match=r"test.toml: it does not connect all of the 4 ranks"):
        synthesize(Collective.ALL_REDUCE, dead, 4, LARGE)


def test_one_rank_alone_is_refused() -> None:
    """It sends nothing."""
    with pytest.raises(ValueError, match="num_ranks 1: must be at least 2"):
        synthesize(Collective.ALL_REDUCE, star(), 1, LARGE)
