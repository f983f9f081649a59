"""Measurements and their file: the times of collectives, percentiles of times, and recorded runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringsim.files import decode, encode
from ringsim.measurements.measurements import CollectiveTimes, Measurements, Probe, p10_p90, p95
from ringsim.measurements.recorded_run import TRANSFER, RecordedRun
from ringsim.schedule.collective import Collective
from tests.ringsim.made_run import made_run

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
    """Files of version 1 held probes only."""
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
    """Files of version 2 did not say which rank was late."""
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


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    """Every field of every run, to the last bit."""
    runs = made_run(), made_run(Collective.BROADCAST, "binomial_tree", slower=1.7)
    Measurements(3, {}, runs=runs).save(tmp_path / "m.json")
    assert Measurements.load(tmp_path / "m.json").runs == runs


def test_a_file_without_runs_has_none() -> None:
    """As those written before there were any."""
    data = Measurements(3, {}).as_dict()
    del data["runs"]
    assert Measurements.from_dict(data).runs == ()


def test_the_time_ends_with_the_last_application() -> None:
    """As that of a simulated run does."""
    run = made_run(slower=2.0)
    assert run.time_s == max(run.applied_s) == run.end_s[0]
    assert len(run) == len(run.transfers) == 12


def changed(**fields: Any) -> dict[str, Any]:
    """A right run for JSON, but for these fields."""
    return json.loads(json.dumps(encode(made_run()))) | fields


def first(name: str, value: Any) -> dict[str, Any]:
    """A right run whose first transfer has another value in this column."""
    data = changed()
    data[name][0] = value
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(size_bytes=0), "size_bytes = 0: must be a whole number, at least 1"),
        (changed(size_bytes=10), "size_bytes 10: must be whole elements of 4 bytes"),
        (changed(num_ranks=2), "3 begin_s for 2 ranks: one for each"),
        (changed(clock_error_s=-1), "clock_error_s = -1: must be seconds, at least 0"),
        (changed(runs_s=[]), "runs_s: must have at least one entry"),
        (changed(chunk=[0]), "1 chunk for 12 transfers: one for each"),
        (changed(**{name: [] for name in TRANSFER}), "applied_s: the last is 0.0: must be after 0"),
        (first("step", -1), "step[0] = -1: must be a whole number, at least 0"),
        (first("src", 3), "src[0] 3: there are only 3 ranks"),
        (first("dst", 0), "dst[0] 0: is the sender itself"),
        (first("issued_s", float("nan")), "issued_s[0] = NaN: must be seconds"),
        (first("applied_s", float("inf")), "applied_s[0] = Infinity: must be seconds"),
        (first("applied_s", -1.0), "applied_s[0] -1.0: is before it was issued, at 0.0"),
        (changed(**{name: [changed()[name][0]] * 12 for name in ("step", "src", "dst", "chunk")}), "is recorded twice"),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_is_refused(data: Any, message: str) -> None:
    """In one line, with the field, its value and the rule."""
    with pytest.raises(ValueError) as error:  # noqa: PT011  the message is compared below
        decode(RecordedRun, data)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_clocks_of_two_machines_may_disagree_a_little() -> None:
    """By as much as the record says."""
    data = first("applied_s", -1e-5)
    with pytest.raises(ValueError, match="before it was issued"):
        decode(RecordedRun, data)
    assert decode(RecordedRun, data | {"clock_error_s": 2e-5}).applied_s[0] == -1e-5


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ("none", 'm.json: runs = "none": must be a list'),
        ([changed(), changed(size_bytes=0)], "m.json: runs[1].size_bytes = 0: must be a whole number, at least 1"),
        ([encode(made_run(num_ranks=4))], "m.json: runs[0].num_ranks = 4: the file is of 3 ranks"),
    ],
)
def test_files_name_the_run(runs: Any, message: str, tmp_path: Path) -> None:
    """Of several."""
    path = tmp_path / "m.json"
    path.write_text(json.dumps(Measurements(3, {}).as_dict() | {"runs": runs}))
    with pytest.raises(ValueError) as error:  # noqa: PT011  the message is compared below
        Measurements.load(path)
    assert str(error.value).endswith(message)
