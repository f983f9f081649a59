"""The times of collectives, and their file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringsim.measurements.collective_times import CollectiveTimes
from ringsim.measurements.measurements import Measurements
from ringsim.schedule.collective import Collective

TIMES = CollectiveTimes(
    collective=Collective.REDUCE_SCATTER,
    algorithm="ring",
    size_bytes=4096,
    dtype="float32",
    op="sum",
    num_ranks=2,
    in_place=False,
    wrong=0,
    calls=1,
    times_s=(3e-3, 1e-3, 2e-3),
    arrival_skew_s=(0.0, 0.0, 1e-3),
    positions=(0, 1, 0),
    rank_medians_s=(1e-3, 2e-3),
)


def saved(path: Path, **changes: Any) -> Path:
    """A file of TIMES in which some fields are others."""
    data = Measurements(2, {"machine": "made up"}, collectives=(TIMES,)).as_dict()
    data["collectives"][0].update(changes)
    path.write_text(json.dumps(data))
    return path


def test_times_survive_their_file(tmp_path: Path) -> None:
    """Written and read again they are equal, also where there was no result to look at."""
    measurements = Measurements(2, {"machine": "made up"}, collectives=(TIMES, replace(TIMES, wrong=None)))
    measurements.save(tmp_path / "measurements.json")
    assert Measurements.load(tmp_path / "measurements.json") == measurements
    assert TIMES.together_s == (3e-3, 1e-3, 1e-3)
    assert (TIMES.median_s, TIMES.p10_p90_s) == (2e-3, pytest.approx((1.2e-3, 2.8e-3)))


def test_files_without_collectives_are_read(tmp_path: Path) -> None:
    """Those of version 1, which held probes only."""
    path = tmp_path / "old.json"
    probe = {"kind": "shift", "size_bytes": 64, "in_flight": 1, "times_s": [1e-3]}
    path.write_text(
        json.dumps(
            {"format": "ringsim-measurements", "version": 1, "num_ranks": 2, "provenance": {}, "probes": [probe]}
        )
    )
    measurements = Measurements.load(path)
    assert measurements.collectives == ()
    assert [probe.size_bytes for probe in measurements.probes] == [64]


def test_files_of_one_call_an_iteration_are_read(tmp_path: Path) -> None:
    """Those of version 2, where nobody said who was late."""
    data = Measurements(2, {"machine": "made up"}, collectives=(TIMES,)).as_dict()
    data["version"] = 2
    for times in data["collectives"]:
        del times["calls"], times["late_s"]
    (tmp_path / "old.json").write_text(json.dumps(data))
    assert Measurements.load(tmp_path / "old.json").collectives == (replace(TIMES, arrival_skew_s=(0.0, 0.0, 0.0)),)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"collective": "all_to_all"},
            '.collective = "all_to_all": must be one of all_reduce, reduce_scatter, all_gather, broadcast, reduce',
        ),
        ({"algorithm": 3}, ".algorithm = 3: must be text of one line"),
        ({"in_place": 1}, ".in_place = 1: must be true or false"),
        ({"times_s": 3.0}, ".times_s = 3.0: must be a list"),
        ({"times_s": [1e-3, -1e-3, 2e-3]}, ".times_s[1] = -0.001: must be seconds, at least 1e-12"),
        ({"times_s": [1e-3, "2", 2e-3]}, '.times_s[1] = "2": must be seconds, at least 1e-12'),
        ({"times_s": []}, ": times_s: must have at least one entry"),
        ({"late_s": [0, 1e-3, -1e-3]}, ".late_s[2] = -0.001: must be seconds, at least 0"),
        ({"calls": 0}, ".calls = 0: must be a whole number, at least 1"),
        ({"positions": [0, 1]}, ": 2 positions for 3 times_s: must be as many"),
        ({"positions": [0, 1.5, 0]}, ".positions[1] = 1.5: must be a whole number, at least 0"),
        ({"size_bytes": 0}, ".size_bytes = 0: must be a whole number, at least 1"),
        ({"wrong": -1}, ".wrong = -1: must be a whole number, at least 0"),
        ({"rank_medians_s": [1e-3]}, ": 1 rank_medians_s for 2 ranks: one for each"),
        ({"num_ranks": 3, "rank_medians_s": [1.0, 1.0, 1.0]}, ".num_ranks = 3: the file is of 2 ranks"),
        (
            {"colour": "red"},
            ".colour: unknown key; known here are collective, algorithm, size_bytes, dtype, op, num_ranks, in_place, "
            "wrong, calls, times_s, late_s, positions, rank_medians_s",
        ),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """In one line with the file, the entry and the field."""
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        Measurements.load(saved(tmp_path / "times.json", **changes))
    assert str(caught.value) == f"{tmp_path / 'times.json'}: collectives[0]{message}"


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    """And an entry that is no object is refused."""
    path = saved(tmp_path / "times.json")
    data = json.loads(path.read_text())
    del data["collectives"][0]["op"]
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"collectives\[0\]: op is missing"):
        Measurements.load(path)
    data["collectives"][0] = 7
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"collectives\[0\] = 7: must be a table"):
        Measurements.load(path)
