"""Tests of `ringsim.analysis.sweep`."""

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from ringsim import Collective, Network, Sweep, load_network, predict_time, run_sweep
from ringsim.analysis.costs import busbw_bytes_per_s
from ringsim.registry import build
from tests.refusals import said_by
from tests.ringsim.commands import written

FAST = Network.uniform(latency_s=1e-5, bandwidth_bytes_per_s=1e9)
NETWORKS = {"fast": FAST, "slow": Network.uniform(latency_s=1e-3, bandwidth_bytes_per_s=1e7, reduce_bytes_per_s=2e7)}
ALL_REDUCE = Collective.ALL_REDUCE


def small_sweep() -> Sweep:
    """Two algorithms of which each wins somewhere."""
    return run_sweep(ALL_REDUCE, ["ring", "recursive_doubling"], [8, 3], [1 << 24, 1000], NETWORKS)


def test_cells_are_what_the_simulator_predicts() -> None:
    """Each combination once, with the time that the schedule takes on that network, and its rates."""
    cells = small_sweep().cells
    assert len({(cell.network, cell.algorithm, cell.num_ranks, cell.size_bytes) for cell in cells}) == len(cells) == 16
    for cell in cells:
        schedule = build(ALL_REDUCE, cell.algorithm, cell.num_ranks)
        time_s = predict_time(schedule, NETWORKS[cell.network], cell.size_bytes)
        assert cell.time_s == time_s
        assert (cell.num_steps, cell.num_transfers) == (schedule.num_steps, schedule.num_transfers)
        assert cell.algbw_bytes_per_s == cell.size_bytes / time_s
        assert cell.busbw_bytes_per_s == busbw_bytes_per_s(ALL_REDUCE, cell.num_ranks, cell.size_bytes, time_s)


def test_of_equals_the_first_named_wins() -> None:
    """On one host a hierarchical all-reduce is the ring, so who comes first is the user's to say."""
    for names in (["ring", "hierarchical"], ["hierarchical", "ring"]):
        [winner] = run_sweep(ALL_REDUCE, names, [8], [1 << 20], {"fast": FAST}).winners().values()
        assert (winner.cell.algorithm, winner.over_second) == (names[0], 1)


def test_a_schedule_too_large_is_skipped_unbuilt() -> None:
    """All pairs of 100,000 ranks would not fit into memory; the estimate says so at once, and nobody wins there."""
    small = run_sweep(ALL_REDUCE, ["ring"], [2, 4], [8], {"fast": FAST}, max_transfers=10)
    assert small.skipped() == ["ring on 4 ranks skipped: 24 transfers, above 10"]
    told: list[int] = []
    sweep = run_sweep(ALL_REDUCE, ["direct"], [4, 100_000], [8], {"fast": FAST}, told.append)
    assert sum(told) == len(sweep.cells) == 2  # so that a bar reaches its end
    assert [cell.skipped for cell in sweep.cells] == ["", "1e10 transfers, above 1e7"]
    assert sweep.skipped() == ["direct on 100000 ranks skipped: 1e10 transfers, above 1e7"]
    assert (sweep.cells[1].time_s, sweep.cells[1].num_steps, sweep.cells[1].algbw_bytes_per_s) == (None, None, None)
    assert sweep.winners().keys() == {("fast", 4, 8)}


EVEN = """
from ringsim import ring_all_reduce
def even(n):
    if n % 2:
        raise ValueError("only even\\nnumbers")
    return ring_all_reduce(n)
"""


def test_an_algorithm_for_some_numbers_of_ranks_is_skipped_for_others(tmp_path: Path) -> None:
    """A user's own that refuses odd numbers takes part where it can."""
    path = written(tmp_path / "mine.py", EVEN)
    sweep = run_sweep(ALL_REDUCE, [f"{path}:even"], [3, 4], [8], {"fast": FAST})
    assert sweep.cells[0].skipped == f"algorithm '{path}:even': line 5: it raised ValueError: only even numbers"
    assert sweep.cells[1].time_s
    assert Sweep.from_csv(saved(sweep, tmp_path)) == sweep


def test_what_is_skipped_for_one_reason_on_several_numbers_of_ranks_is_one_line() -> None:
    """In order of ranks; another reason, and another set of algorithms, have their own."""
    networks = {"plain": FAST, "gpus": load_network("dgx-h100")}
    sweep = run_sweep(ALL_REDUCE, ["ring", "gloo_ring", "nvls"], [8, 4, 2], [1024], networks)
    assert sorted(sweep.skipped()) == [
        "gloo_ring on 2, 4 and 8 ranks skipped: gpus describes NCCL, not Gloo",
        "nvls on 2, 4 and 8 ranks skipped: plain does not describe NCCL",
    ]


def test_an_algorithm_that_no_network_has_is_simulated_on_all_or_one() -> None:
    """It was asked for by name: how many networks there are does not matter."""
    for name, preset in (("gloo_ring", "dgx-h100"), ("nvls", "gbe")):
        network = load_network(preset)
        one, both = (
            {cell.time_s for cell in run_sweep(ALL_REDUCE, [name], [8], [1024], dict.fromkeys(names, network)).cells}
            for names in ("a", "ab")
        )
        assert one == both != {None}


def test_a_network_without_room_is_skipped() -> None:
    """Said once for all algorithms; the other numbers of ranks are simulated. If there are none, it is a mistake."""
    networks = {"dgx-h100": load_network("dgx-h100")}
    sweep = run_sweep(ALL_REDUCE, ["ring", "direct"], [8, 9], [8], networks)
    assert sweep.winners().keys() == {("dgx-h100", 8, 8)}
    reason = "its hosts have 8 ranks: 9 were asked for"
    assert sweep.skipped() == [f"all algorithms on 9 ranks skipped: ringsim/network/presets/dgx-h100.toml: {reason}"]
    with pytest.raises(ValueError, match=reason):
        run_sweep(ALL_REDUCE, ["ring"], [9], [8], networks)


def saved(sweep: Sweep, folder: Path) -> Path:
    """The path of its CSV file."""
    path = folder / "sweep.csv"
    sweep.to_csv(path)
    return path


def test_csv_gives_back_the_same_sweep(tmp_path: Path) -> None:
    """To the last bit, with networks, provenance and what was skipped; others read column names and one line a cell."""
    sweep = run_sweep(ALL_REDUCE, ["ring", "direct"], [4, 2000], [10**9 + 7], NETWORKS, max_transfers=1e5)
    assert Sweep.from_csv(saved(sweep, tmp_path)) == sweep
    assert sweep.networks["slow"] == NETWORKS["slow"].as_dict()
    comment, header, first, *_ = saved(small_sweep(), tmp_path).read_text().splitlines()
    assert comment.startswith('# {"format": "ringsim-sweep", "version": 1, ')
    assert header.startswith("collective,network,algorithm,num_ranks,size_bytes,")
    assert header.endswith("algbw_bytes_per_s,busbw_bytes_per_s")
    assert first.startswith("all_reduce,fast,ring,3,1000,4,12,")


NO_SWEEPS = (
    ('"version": 1', '"version": 2'), ('{"fast":', '{"quick":'), ("num_ranks,", "ranks,"),
    ("ring,3,1000,", "ring,0,1000,"), ("ring,8,1000,", "ring,8,1000,1,2,,,,\n#"),
    ("ring,8,1000,", "ring,8,1000,1,2,inf,,,\n#"), ("ring,8,1000,", "ring,8,1000,1,2,3,,,4,5,6\n#"),
    ("ring,8,1000,", "ring,3,1000,"), ("ring,8,1000,", 'ring,8,1000,1,"2\n'),
    ("all_reduce,fast,ring,3,1000,", "broadcast,fast,ring,3,1000,"),
)  # fmt: skip


def test_a_file_that_is_no_sweep_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    """The error names the file, the line and the fault."""
    monkeypatch.chdir(tmp_path)
    text, told = saved(small_sweep(), Path()).read_text(), []
    for old, new in NO_SWEEPS:
        changed = written(Path("sweep.csv"), text.replace(old, new))
        assert changed.read_text() != text
        told.append(f"{old} -> {new}: {said_by(ValueError, Sweep.from_csv, changed)}")
    assert told == snapshot


def test_a_file_that_was_edited_is_read_again(tmp_path: Path) -> None:
    """By the next sweep."""
    for name in ("ring", "direct"):
        path = written(tmp_path / "mine.py", f"from ringsim.algorithms.{name} import {name}_all_gather as mine\n")
        own, known = run_sweep(Collective.ALL_GATHER, [f"{path}:mine", name], [5], [8], {"fast": FAST}).cells
        assert (own.num_steps, own.time_s) == (known.num_steps, known.time_s)
