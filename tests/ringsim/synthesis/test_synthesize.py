"""Synthesis: what is found is right, near the bound, never slower than built-in algorithms, and the same when read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from syrupy.assertion import SnapshotAssertion

from cabled_networks import fully_connected, hosts, hypercube, islands, star, torus
from ringsim import Collective, Schedule, algorithm, find_placement, msccl_lines, permute_ranks, predict_time, verify
from ringsim.libraries import OURS
from ringsim.network import Network, load_network, read_network
from ringsim.registry import base_name, build
from ringsim.simulation import RULE, Runtime, simulate
from ringsim.synthesis import SearchOptions, SearchState, built_in, search, synthesize
from ringsim.synthesis import drafts as drafts_module
from ringsim.synthesis.drafts import Drafting, Problem, in_order_of
from ringsim.synthesis.matching import islands_of, overlays
from ringsim.synthesis.search import usable_links
from tests.refusals import said_by
from tests.ringsim.commands import written

LARGE = 2**28
GATHER, SCATTER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE
NETWORKS: dict[str, tuple[Callable[[], Network], int, float, list[Collective]]] = {
    # Uniform ones within 2 % of the bound, below which no algorithm is.
    "ring": (lambda: load_network("docs/networks/ring-of-six.toml"), 6, 1.02, [REDUCE]),
    "torus": (lambda: torus(3, 3), 9, 1.02, [GATHER, REDUCE]),
    "hypercube": (lambda: hypercube(3), 8, 1.02, [REDUCE]),
    "fully connected": (lambda: fully_connected(6), 6, 1.02, [REDUCE]),
    "switch": (star, 8, 1.02, [GATHER]),
    # Uneven ones within 10 %, where built-in algorithms often take several times as long.
    "torus with a cable missing": (lambda: torus(3, 3, missing=1), 9, 1.1, [SCATTER]),
    "one NIC at a quarter": (lambda: star(2), 8, 1.1, [GATHER, SCATTER]),
    "hosts, one NIC at a quarter": (lambda: hosts(3, 1, 1), 9, 1.1, [SCATTER]),
    "islands": (lambda: islands(4), 8, 1.1, [REDUCE]),
    "a NIC for a pair": (lambda: hosts(4, 2), 8, 1.1, [REDUCE]),
}
SEARCHED_LONG = ("torus with a cable missing", "one NIC at a quarter", "hosts, one NIC at a quarter")


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        *((name, collective) for name, (*_, collectives) in NETWORKS.items() for collective in collectives),
        *(pytest.param(name, REDUCE, marks=pytest.mark.slow) for name in SEARCHED_LONG),
    ],
)
def test_networks_are_used_nearly_as_well_as_they_can_be(name: str, collective: Collective) -> None:
    """And at least as well as by the fastest built-in algorithm."""
    make, num_ranks, within, _ = NETWORKS[name]
    enough = within if within < 1.1 else 1.09
    synthesis = synthesize(collective, make(), num_ranks, LARGE, SearchOptions(seconds=100, enough=enough))
    best_s = min(one.time_s for one in synthesis.named if one.time_s is not None)
    assert synthesis.time_s <= min(best_s, within * synthesis.bound.time_s)
    verify(synthesis.schedule)


def test_built_in_algorithms_are_tried_in_segments_and_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a slow host two pipelined trees are faster of which that host is a leaf."""
    monkeypatch.setattr(built_in, "candidates", lambda *_: ["double_binary_tree"])
    monkeypatch.setattr(drafts_module, "WAVES", ())
    monkeypatch.setattr(search, "MAX_RESTARTS", 1)  # the seconds are for the forms
    monkeypatch.setattr(built_in, "NUM_PLACEMENTS", 8)
    place = Mock(wraps=find_placement)
    monkeypatch.setattr(built_in, "find_placement", place)
    monkeypatch.setattr(built_in, "SEGMENTS", (4,))
    synthesis = synthesize(Collective.ALL_REDUCE, star(2), 4, 2**20, SearchOptions(seconds=60, chunks_per_rank=1))
    plain = {one.algorithm: one.time_s for one in synthesis.named if "/" not in one.algorithm and one.order is None}
    variants = [one for one in synthesis.named if "/" in one.algorithm or one.order is not None]
    assert any("/" in one.algorithm for one in variants)
    assert any(one.order is not None for one in variants)
    for one in variants:
        assert one.time_s < plain[base_name(one.algorithm)]
        placed = permute_ranks(build(Collective.ALL_REDUCE, one.algorithm, 4, 2**20), one.order or range(4))
        verify(placed)
        assert predict_time(placed, star(2), 2**20) == pytest.approx(one.time_s)
        assert ("--order" in one.options) == (one.order is not None)
    assert all(0 < call.kwargs["seconds"] < 60 for call in place.call_args_list)  # in what time is left


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE_SCATTER])
def test_a_file_holds_all_that_matters(collective: Collective, tmp_path: Path) -> None:
    """Read back from MSCCL XML, as --algorithm does, a found schedule takes as long."""
    network = torus(3, 3, missing=1)
    synthesis = synthesize(collective, network, 9, 2**20, SearchOptions(seconds=0.1, enough=1.5))
    file = written(tmp_path / "found.xml", "".join(msccl_lines(synthesis.schedule, with_places=True)))
    read = algorithm(str(file), 9, collective)
    assert [list(step) for step in read.steps] == [list(step) for step in synthesis.schedule.steps]
    assert predict_time(read, network, 2**20) == synthesis.time_s


def test_the_same_seed_finds_the_same() -> None:
    """With a bound that the first try meets, so that time does not matter; cut into as many chunks as asked for."""
    first, second = (
        synthesize(Collective.ALL_GATHER, torus(3, 3), 9, LARGE, SearchOptions(seed=3, chunks_per_rank=5))
        for _ in range(2)
    )
    assert [list(step) for step in first.schedule.steps] == [list(step) for step in second.schedule.steps]
    assert first.found_schedule.num_chunks == 45


@pytest.mark.parametrize(
    "phase", ["searching", "proving", "simulating ring", "simulating direct", "simulating forms of ring"]
)
def test_an_interrupt_keeps_what_is_known(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends what is going on: what has been found is proved and compared with what has been simulated."""
    phases: list[str] = []

    def interrupt(state: SearchState) -> None:
        phases.append(state.phase)
        if state.phase == phase:
            raise KeyboardInterrupt

    monkeypatch.setattr(drafts_module, "WAVES", ())  # so that the search is short
    monkeypatch.setattr(built_in, "NUM_PLACED", 0)
    if phase != "searching":
        monkeypatch.setattr(search, "MAX_RESTARTS", 1)
    options = SearchOptions(seconds=1000, chunks_per_rank=1)
    synthesis = synthesize(Collective.ALL_REDUCE, star(2), 4, 2**20, options, on_state=interrupt)
    assert phase in phases
    assert synthesis.num_tried == 1 or phase != "searching"
    verify(synthesis.schedule)
    times = [one.time_s for one in synthesis.named if one.time_s is not None]
    assert times == sorted(times)
    assert synthesis.time_s == min([synthesis.found_s, *times[:1]])
    if phase.startswith("simulating ") and "forms" not in phase:
        skipped = {one.algorithm for one in synthesis.named if one.is_interrupted}
        assert phase.removeprefix("simulating ") in skipped
        assert all("/" not in one.algorithm and one.order is None for one in synthesis.named)
    if phase in ("searching", "proving"):
        assert not any(said.startswith("simulating forms") for said in phases)


@pytest.mark.parametrize(
    ("names", "takes_s", "is_interrupted", "given_s", "num_skipped"),
    [
        (["ring", "direct"], 3.0, False, [10.0, 10.0, 10.0, 7.0, 4.0, 1.0], 0),  # forms have 10 s together, not each
        (["ring", "direct", "bruck"], 6.0, True, [10.0, 4.0], 2),
    ],
)
def test_the_time_that_built_in_algorithms_have(
    names: list[str], takes_s: float, is_interrupted: bool, given_s: list[float], num_skipped: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """10 s each, and after an interrupt 10 s in all; what there is no time for then is skipped as interrupted."""
    monkeypatch.setattr(built_in, "candidates", lambda *_: names)
    now_s, given = [0.0], list[float]()

    def simulated_s(_: Schedule, ends_at: float) -> float:
        given.append(ends_at - now_s[0])
        now_s[0] += takes_s
        if now_s[0] > ends_at:
            raise TimeoutError
        return 1.0

    monkeypatch.setattr(built_in, "time", Mock(monotonic=lambda: now_s[0]))
    options = Collective.ALL_GATHER, star(2), 4, 2**20, 10.0, OURS.runtime, simulated_s, lambda _: None
    built = built_in.BuiltInAlgorithms(*options)
    plain = built.unchanged(is_interrupted=is_interrupted)
    if not is_interrupted:
        built.with_forms(plain)
    assert given == given_s
    assert [one.skipped for one in plain] == [""] * (len(names) - num_skipped) + ["interrupted"] * num_skipped


def test_a_built_in_algorithm_that_is_written_is_named_and_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the file sees segments and placement, and a form that breaks the contract is not written."""
    prove = Mock(wraps=verify)
    monkeypatch.setattr(search, "verify", prove)
    monkeypatch.setattr(drafts_module, "WAVES", ())  # so that what is found is slow
    monkeypatch.setattr(search, "MAX_RESTARTS", 1)
    monkeypatch.setattr(built_in, "NUM_PLACED", 0)
    monkeypatch.setattr(built_in, "SEGMENTS", (4,))
    synthesis = synthesize(Collective.ALL_REDUCE, star(2), 4, 2**20, SearchOptions(60, chunks_per_rank=1))
    assert synthesis.is_named
    assert "/" in synthesis.schedule.algorithm
    assert synthesis.schedule.algorithm == synthesis.named[0].options
    assert [call.args[0] for call in prove.call_args_list] == [synthesis.found_schedule, synthesis.schedule]


def test_a_simulation_ends_soon_after_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second schedule is given up when twice the time is over while it is simulated; the first one is kept."""
    now_s, calls = [0.0], [0]

    def simulated(*arguments: Any, on_progress: Callable[[int], object], **options: Any) -> float:
        calls[0] += 1
        now_s[0] += 1000.0 * (calls[0] == 2)
        on_progress(1)
        return predict_time(*arguments, **options)

    monkeypatch.setattr(search, "time", Mock(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(search, "predict_time", simulated)
    monkeypatch.setattr(built_in, "NUM_PLACED", 0)
    synthesis = synthesize(Collective.ALL_REDUCE, torus(3, 3, missing=1), 9, LARGE, SearchOptions(seconds=100))
    assert synthesis.num_tried == 1
    assert all(one.time_s for one in synthesis.named if not one.skipped)


def test_fewer_waves_are_tried_where_more_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine so slow that 16 waves cannot be simulated, fewer are better than both halves one after the other."""
    now_s = [0.0]

    def clock() -> float:
        now_s[0] += 0.01
        return now_s[0]

    def simulated(schedule: Schedule, *arguments: Any, **options: Any) -> float:
        now_s[0] += 0.01 * schedule.num_transfers
        return predict_time(schedule, *arguments, **options)

    monkeypatch.setattr(search, "time", Mock(monotonic=clock))
    monkeypatch.setattr(search, "predict_time", simulated)
    synthesis = synthesize(Collective.ALL_REDUCE, hosts(4, 1, 1), 16, LARGE, SearchOptions(seconds=50, enough=1.4))
    assert synthesis.found_s <= 1.4 * synthesis.bound.time_s


# Hosts without a limit until they fail.
FAILING = [
    read_network(f'[host]\nranks = 1\nnic.latency = "5us"\n[[failure]]\n{end}', "x")
    for end in ("rank = 2", 'link = "host2.nic0.in"')
]


def test_what_cannot_be_searched_is_refused(snapshot: SnapshotAssertion) -> None:
    """No time, no links, nothing to gain, or too much to look at."""
    ring, sharing = (load_network(f"docs/networks/{name}.toml") for name in ("ring-of-six", "shared-memory"))
    said = [said_by(ValueError, SearchOptions, seconds=0)]
    cases = [(star(), 1, None), (ring, 6, 4096), (sharing, 2, None), *((network, 4, None) for network in FAILING)]
    for network, num_ranks, chunks in cases:
        options = SearchOptions(chunks_per_rank=chunks)
        said.append(said_by(ValueError, synthesize, REDUCE, network, num_ranks, LARGE, options))
    assert said == snapshot


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.REDUCE])
def test_messages_that_take_next_to_no_time_are_still_in_order(collective: Collective) -> None:
    """Turned round, a sum that is passed on at the moment at which it comes must not be passed on before."""
    text = "".join(f'[[hosts]]\nname = "h{rank}"\nranks = [{rank}]\n' for rank in range(6))
    for rank in range(5):
        slow = 'bandwidth = "1Gbit/s"' if rank == 2 else 'latency = "1e-30s"'
        text += f'[[links]]\nbetween = ["h{rank}", "h{rank + 1}"]\n{slow}\n'
    synthesis = synthesize(collective, read_network(text, "free.toml"), 6, LARGE, SearchOptions(seconds=0.2))
    verify(synthesis.schedule)


def test_what_is_found_is_in_an_order_in_which_ranks_wait_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is turned round begins with all that a slow host sends, and a rank in order would wait for that."""
    in_order_s = []
    for share in (0.0, search.ORDER_SHARE):
        monkeypatch.setattr(search, "ORDER_SHARE", share)
        options = SearchOptions(seconds=100, chunks_per_rank=8, enough=1.02)
        found = synthesize(Collective.REDUCE_SCATTER, star(2), 4, 2**24, options).found_schedule
        in_order_s.append(predict_time(found, star(2), 2**24, runtime=OURS.runtime))
    as_planned_s, improved_s = in_order_s
    assert improved_s < 0.99 * as_planned_s


@pytest.mark.parametrize("name", ["ring", "direct", "halving_doubling"])
def test_transfers_in_the_order_of_their_times(name: str) -> None:
    """The same transfers, none before what it depends on, and steps no more than are needed."""
    schedule, network = build(Collective.REDUCE_SCATTER, name, 8), star(2)
    timeline = simulate(schedule, network, 2**20)
    ordered = in_order_of(schedule, timeline.applied_s)
    verify(ordered)
    again = simulate(ordered, network, 2**20)
    assert sorted(zip(again.src, again.dst, again.chunk, strict=True)) == sorted(
        zip(timeline.src, timeline.dst, timeline.chunk, strict=True)
    )
    assert again.time_s <= timeline.time_s * (1 + 1e-9)


OVERHEADS = """
[host]
cores = 1
link = { latency = "10us", bandwidth = "1Gbit/s" }
[rank]
send_overhead = "70us"
receive_overhead = "50us"
"""


@pytest.mark.parametrize("runtime", [RULE, OURS.runtime], ids=["rule", "ours"])
def test_drafts_of_many_messages_are_not_promising(runtime: Runtime) -> None:
    """No estimate is less than what the messages must cost, so small tensors are not cut into many pieces."""
    network = read_network(OVERHEADS, "here")
    links = usable_links(network, 4)
    assert (links.send_s == 70e-6).all()
    assert (links.reversed().send_s == 50e-6).all()
    problem = Problem(Collective.ALL_REDUCE, 2**16, links, islands_of(links), 1e-4, 1.3e-4, 2**15, runtime.in_order)
    for count in (1, 8):
        for draft in Drafting(problem, next(iter(overlays(links, problem.islands))), count, seed=0).drafts()[:4]:
            overheads_s = draft.num_waves * problem.overheads_s(draft.parts)
            num_transfers, num_links = draft.num_transfers, 12
            least_s = num_transfers / 4 * 120e-6 if runtime.in_order else num_transfers / num_links * 70e-6 / 2
            assert overheads_s >= least_s * (1 - 1e-9)
            assert draft.estimate_s >= overheads_s
            assert overheads_s <= predict_time(draft.schedule("it"), network, 2**16, runtime=runtime) * (1 + 1e-9)
