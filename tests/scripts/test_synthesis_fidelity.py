"""Found schedules beside the best named algorithm: how both are chosen, kept and compared; one cell on a testbed."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from cabled_networks import star
from fidelity import MIB, Place
from netns_testbed import why_not
from ringsim.analysis import candidates
from ringsim.calibration import ComparedCase, TimedCase
from ringsim.network import Cluster
from ringsim.registry import ALGORITHMS, base_name, build
from ringsim.schedule import Collective, verify
from ringsim.simulation import OURS, predict_call
from synthesis_fidelity import Cell, best_named, compared, files_of, main, row

UNEVEN = star(2)
CELL = Cell(Place(4, 1, {2: "250mbit"}), "all_reduce", MIB)


def call_s(algorithm: str, network: Cluster, cell: Cell = CELL) -> float:
    """Return the predicted seconds of a call."""
    schedule = build(Collective.ALL_REDUCE, algorithm, cell.num_ranks, cell.size_bytes)
    return predict_call(schedule, network, cell.size_bytes, OURS)


def test_the_best_named_algorithm_is_one_in_its_best_place() -> None:
    """None is faster as it is; the name says in how many segments it goes, and on which ranks."""
    best = best_named(CELL, UNEVEN)
    verify(best)
    algorithm, _, order = best.algorithm.partition(" on ")
    assert (Collective.ALL_REDUCE, base_name(algorithm)) in ALGORITHMS
    assert sorted(order.split(",")) in ([""], ["0", "1", "2", "3"])
    best_s = predict_call(best, UNEVEN, MIB, OURS)
    assert best_s < min(call_s(name, UNEVEN) for name in candidates(Collective.ALL_REDUCE, [UNEVEN]))


def test_a_placement_is_part_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trees are twice as fast where the slow host is a leaf of both, or nearly."""
    monkeypatch.setattr("synthesis_fidelity.candidates", lambda *_: ["double_binary_tree"])
    best = best_named(CELL, UNEVEN)
    verify(best)
    assert re.fullmatch(r"double_binary_tree(/\d+)? on \d(,\d){3}", best.algorithm)


def test_schedules_are_kept_in_files(tmp_path: Path) -> None:
    """They are read as they were chosen, and not searched for again."""
    files = files_of(CELL, UNEVEN, tmp_path, seconds=0.5, again=False)
    best = best_named(CELL, UNEVEN)
    assert next(iter(files)) == best.algorithm
    assert call_s(str(files[best.algorithm]), UNEVEN) == predict_call(best, UNEVEN, MIB, OURS)
    written = {file: file.stat().st_mtime_ns for file in files.values()}
    assert files_of(CELL, star(), tmp_path, seconds=0.5, again=False) == files
    assert {file: file.stat().st_mtime_ns for file in files.values()} == written


def case(predicted_s: float, measured_s: float) -> ComparedCase:
    """Return what was predicted and measured of an algorithm."""
    timed = TimedCase("all_reduce", "some.xml", MIB, 4, 4, (measured_s,))
    return ComparedCase(timed, predicted_s, "", used_in_calibration=False)


def test_a_row_has_both_gains_and_how_far_they_are_apart() -> None:
    """More than a tenth is a miss."""
    assert row(CELL, "ring", case(0.060, 0.066), case(0.040, 0.044)) == (
        "| 4 x 1 | all_reduce | 1 MiB | ring | 60 ms | 40 ms | 1.50 | 66 ms | 44 ms | 1.50 | +0.0% |"
    )
    assert row(CELL, "ring", case(0.060, 0.066), case(0.040, 0.055)).endswith("| 1.20 | -20.0% (missed) |")


def test_words_of_no_cell_are_refused() -> None:
    """Before anything is measured."""
    done = CliRunner().invoke(main, ["--only", "gather of stones"])
    message = "--only gather of stones: no cell has these words; the first is '4 x 1, all_reduce, 1 MiB'"
    assert (done.exit_code, done.stderr) == (2, f"synthesis_fidelity: {message}\n")


@pytest.mark.slow
def test_both_are_timed_in_turn_on_a_testbed(tmp_path: Path) -> None:
    """With right results, and times that a slow host cannot undercut: it receives three quarters of the bytes."""
    if reason := why_not():
        pytest.skip(reason)
    cell = Cell(CELL.place, "all_gather_into_tensor", MIB)
    files = files_of(cell, UNEVEN, tmp_path, seconds=0.5, again=False)
    both = compared(cell, UNEVEN, files, tmp_path, again=False)
    assert [one.case.algorithm for one in both] == [str(file) for file in files.values()]
    for one in both:
        assert one.case.measured_s > 0.75 * MIB / 31.25e6 * 0.8  # the token bucket passes 128 KiB at once
        assert one.predicted_s is not None
