"""The times of collectives and their file, and percentiles of times."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringsim.measurements.measurements import CollectiveTimes, Measurements, Probe, p10_p90, p95
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
    probes = (Probe("shift", 64, 4, (1e-3, 2e-3)),)
    measurements = Measurements(2, {"machine": "made up"}, probes, (TIMES, replace(TIMES, wrong=None)))
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
        ({"times_s": [1e-3, -1e-3, 2e-3]}, ".times_s[1] = -0.001: must be seconds, at least 1e-12"),
        ({"times_s": []}, ": times_s: must have at least one entry"),
        ({"late_s": [0, 1e-3, -1e-3]}, ".late_s[2] = -0.001: must be seconds, at least 0"),
        ({"calls": 0}, ".calls = 0: must be a whole number, at least 1"),
        ({"positions": [0, 1]}, ": 2 positions for 3 times_s: must be as many"),
        ({"size_bytes": 0}, ".size_bytes = 0: must be a whole number, at least 1"),
        ({"wrong": -1}, ".wrong = -1: must be a whole number, at least 0"),
        ({"rank_medians_s": [1e-3]}, ": 1 rank_medians_s for 2 ranks: one for each"),
        ({"num_ranks": 3, "rank_medians_s": [1.0, 1.0, 1.0]}, ".num_ranks = 3: the file is of 2 ranks"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """In one line with the file, the entry and the field."""
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        Measurements.load(saved(tmp_path / "times.json", **changes))
    assert str(caught.value) == f"{tmp_path / 'times.json'}: collectives[0]{message}"


def test_p10_p90() -> None:
    """Of 0..10 a tenth lies up to 1 and a tenth from 9; a single time is both."""
    assert p10_p90([float(value) for value in range(11)]) == (1.0, 9.0)
    assert p10_p90([5.0]) == (5.0, 5.0)
    with pytest.raises(ValueError, match="at least one"):
        p10_p90([])


def test_p95_is_one_of_the_errors() -> None:
    """The smallest that 95 of 100 do not exceed; of few errors the largest."""
    assert p95(range(1, 101)) == 95
    assert p95([0.1, 0.3, 0.2]) == 0.3
    with pytest.raises(ValueError, match="at least one"):
        p95([])
