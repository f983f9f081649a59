"""Measurements and their file: the times of collectives, percentiles of times, and recorded runs."""

import json
import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringsim.measurements.measurements import TRANSFER, CollectiveTimes, Measurements, Probe, p10_p90, p95
from ringsim.schedule.collective import Collective
from tests.ringsim.made_run import made_run

TIMES = CollectiveTimes(Collective.REDUCE_SCATTER, "ring", 4096, "float32", "sum", 3, False, 0, 1, (3e-3, 1e-3, 2e-3),
                        (0.0, 0.0, 1e-3), (0, 1, 0), (1e-3, 2e-3, 2e-3))  # fmt: skip
WHOLE = Measurements(
    3, {"machine": "made up"}, (Probe("shift", 64, 4, (1e-3, 2e-3)),), (TIMES, replace(TIMES, wrong=None)),
    (made_run(), made_run(Collective.BROADCAST, "binomial_tree", slower=1.7)),
)  # fmt: skip
DATA = WHOLE.as_dict()
RUN = DATA["runs"][0]


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    """Every field to the last bit, also where there was no result to look at; JSON has no NaN, and writes nothing."""
    path = tmp_path / "measurements.json"
    WHOLE.save(path)
    assert Measurements.load(path) == WHOLE
    assert TIMES.together_s == (3e-3, 1e-3, 1e-3)
    assert (TIMES.median_s, TIMES.p10_p90_s) == (2e-3, pytest.approx((1.2e-3, 2.8e-3)))
    with pytest.raises(ValueError, match="JSON compliant"):
        Measurements(4, {"load": math.nan}).save(path)
    assert Measurements.load(path) == WHOLE
    assert list(tmp_path.iterdir()) == [path]


def test_older_files_are_read() -> None:
    """Version 1 held probes only, version 2 did not say which rank was late; recorded runs came later."""
    first = {key: DATA[key] for key in ("format", "num_ranks", "provenance", "probes")} | {"version": 1}
    assert Measurements.from_dict(first) == replace(WHOLE, collectives=(), runs=())
    second = deepcopy(DATA) | {"version": 2}
    for times in second["collectives"]:
        del times["calls"], times["late_s"]
    collectives = tuple(replace(times, arrival_skew_s=(0.0,) * 3) for times in WHOLE.collectives)
    assert Measurements.from_dict(second) == replace(WHOLE, collectives=collectives)


def first(name: str, value: Any) -> dict[str, Any]:
    """The column of a run in which the first transfer has another value."""
    return {name: [value, *RUN[name][1:]]}


@pytest.mark.parametrize(
    ("place", "changes", "message"),
    [
        ("", {"num_ranks": 0}, "num_ranks = 0: must be a whole number from 1 to 131072"),
        ("", {"provenance": []}, "provenance = []: must be an object"),
        ("", {"probes": [3]}, "probes[0] = 3: must be a table of keys and values"),
        ("", {"version": []}, "version [] of ringsim-measurements: this ringsim reads"),
        ("", {"runs": "none"}, 'runs = "none": must be a list'),
        ("probes", {"times_s": [1e-3, -1e-3]}, ".times_s[1] = -0.001: must be seconds, at least 1e-12"),
        ("probes", {"times_s": [1e-300]}, ".times_s[0] = 1e-300: must be seconds, at least 1e-12"),
        ("probes", {"times_s": [1e10]}, ".times_s[0] = 10000000000.0: must be seconds, at least 1e-12 and at most 1e+"),
        ("probes", {"times_s": []}, ": times_s: must have at least one entry"),
        ("probes", {"size_bytes": 0}, ".size_bytes = 0: must be a whole number from 1 to 1099511627776"),
        ("probes", {"in_flight": 2**21}, ".in_flight = 2097152: must be a whole number from 1 to 1048576"),
        ("probes", {"kind": ""}, '.kind = "": must not be empty'),
        ("collectives", {"times_s": []}, ": times_s: must have at least one entry"),
        ("collectives", {"late_s": [0, 1e-3, -1e-3]}, ".late_s[2] = -0.001: must be seconds, at least 0"),
        ("collectives", {"calls": 0}, ".calls = 0: must be a whole number, at least 1"),
        ("collectives", {"positions": [0, 1]}, ": 2 positions for 3 times_s: must be as many"),
        ("collectives", {"wrong": -1}, ".wrong = -1: must be a whole number, at least 0"),
        ("collectives", {"rank_medians_s": [1e-3]}, ": 1 rank_medians_s for 3 ranks: one for each"),
        ("collectives", {"num_ranks": 1, "rank_medians_s": [1.0]}, ".num_ranks = 1: the file is of 3 ranks"),
        ("runs", {"size_bytes": 10}, ": size_bytes 10: must be whole elements of 4 bytes"),
        ("runs", {"num_ranks": 2}, ": 3 begin_s for 2 ranks: one for each"),
        ("runs", {"clock_error_s": -1}, ".clock_error_s = -1: must be seconds, at least 0"),
        ("runs", {"runs_s": []}, ": runs_s: must have at least one entry"),
        ("runs", {"chunk": [0]}, ": 1 chunk for 12 transfers: one for each"),
        ("runs", {name: [] for name in TRANSFER}, ": applied_s: the last is 0.0: must be after 0"),
        ("runs", first("src", 3), ": src[0] 3: there are only 3 ranks"),
        ("runs", first("dst", 0), ": dst[0] 0: is the sender itself"),
        ("runs", first("applied_s", -1.0), ": applied_s[0] -1.0: is before it was issued, at 0.0"),
        ("runs", {name: [RUN[name][0]] * 12 for name in TRANSFER[:4]}, ": "),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, place: str, changes: dict[str, Any], message: str) -> None:
    """In one line with the file, the entry, the field, its value and the rule."""
    data, path = deepcopy(DATA), tmp_path / "m.json"
    (data[place][0] if place else data).update(changes)
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        Measurements.load(path)
    assert str(caught.value).startswith(f"{path}: {place}{'[0]' * bool(place)}{message}")
    assert message != ": " or "is recorded twice" in str(caught.value)


def test_percentiles() -> None:
    """p10_p90 is interpolated; p95 is the smallest error that 95 of 100 do not exceed, of few errors the largest."""
    assert p10_p90([float(value) for value in range(11)]) == (1.0, 9.0)
    assert p10_p90([5.0]) == (5.0, 5.0)
    assert (p95(range(1, 101)), p95([0.1, 0.3, 0.2])) == (95, 0.3)
    for percentiles in (p10_p90, p95):
        with pytest.raises(ValueError, match="at least one"):
            percentiles([])


def test_clocks_of_two_machines_may_disagree_a_little() -> None:
    """By as much as the record says."""
    data = deepcopy(DATA)
    data["runs"][0] |= first("applied_s", -1e-5) | {"clock_error_s": 2e-5}
    assert Measurements.from_dict(data).runs[0].applied_s[0] == -1e-5
