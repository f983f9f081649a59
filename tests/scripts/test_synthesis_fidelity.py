"""Found schedules beside the best named algorithm: how both are chosen, kept and compared; one cell on a testbed."""

from pathlib import Path

import pytest

from cabled_networks import star
from fidelity import MIB, Place
from netns_testbed import why_not
from ringsim.calibration import ComparedCase, Timing
from ringsim.libraries import Call
from ringsim.registry import ALGORITHMS, base_name, build
from ringsim.schedule import Collective, verify
from synthesis_fidelity import Cell, compared, files_of, row

UNEVEN = star(2)
CELL = Cell(Place(4, 1, {2: "250mbit"}), "all_reduce", MIB)


def test_schedules_are_kept_in_files(tmp_path: Path) -> None:
    """They are read as they were chosen, and not searched for again."""
    files = files_of(CELL, UNEVEN, tmp_path, seconds=0.5, again=False)
    named, found = files
    assert (Collective.ALL_REDUCE, base_name(named.partition(" ")[0])) in ALGORITHMS
    assert found == "found"
    for file in files.values():
        verify(build(Collective.ALL_REDUCE, str(file), 4, MIB))
    written = {file: file.stat().st_mtime_ns for file in files.values()}
    assert files_of(CELL, star(), tmp_path, seconds=0.5, again=False) == files
    assert {file: file.stat().st_mtime_ns for file in files.values()} == written


def case(predicted_s: float, measured_s: float) -> ComparedCase:
    """Return what was predicted and measured of an algorithm."""
    timed = Timing(Call("all_reduce", MIB, 4, 4), "some.xml", (measured_s,))
    return ComparedCase(timed, predicted_s, "", used_in_calibration=False)


def test_a_row_has_both_gains_and_how_far_they_are_apart() -> None:
    """More than a tenth is a miss."""
    assert row(CELL, "ring", case(0.060, 0.066), case(0.040, 0.044)) == (
        "| 4 x 1 | all_reduce | 1 MiB | ring | 60 ms | 40 ms | 1.50 | 66 ms | 44 ms | 1.50 | +0.0% |"
    )
    assert row(CELL, "ring", case(0.060, 0.066), case(0.040, 0.055)).endswith("| 1.20 | -20.0% (missed) |")


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
