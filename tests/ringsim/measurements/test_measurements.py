"""Measurements and their file: the times of collectives, percentiles of times, and recorded runs."""

import json
import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from ringsim.measurements.measurements import TRANSFER, CollectiveTimes, Measurements, Probe, ProbeKind, p10_p90, p95
from ringsim.schedule.collective import Collective
from tests.refusals import said_by
from tests.ringsim.commands import written
from tests.ringsim.made_run import made_run

TIMES = CollectiveTimes(Collective.REDUCE_SCATTER, "ring", 4096, "float32", "sum", 3, False, 0, 1, (3e-3, 1e-3, 2e-3),
                        (0.0, 0.0, 1e-3), (0, 1, 0), (1e-3, 2e-3, 2e-3))  # fmt: skip
WHOLE = Measurements(
    3, {"machine": "made up"}, (Probe("shift", 64, 4, (1e-3, 2e-3)),), (TIMES, replace(TIMES, wrong=None)),
    (made_run(), made_run(Collective.BROADCAST, "binomial_tree", slower=1.7)),
)  # fmt: skip
DATA = json.loads(WHOLE.as_text())
RUN = DATA["runs"][0]


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    """Every field to the last bit, also where there was no result to look at; JSON has no NaN, and writes nothing."""
    path = tmp_path / "measurements.json"
    WHOLE.save(path)
    assert Measurements.load(path) == WHOLE
    assert TIMES.times_without_skew_s == (3e-3, 1e-3, 1e-3)
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


MISTAKES: dict[str, list[dict[str, Any]]] = {
    "": [{"num_ranks": 0}, {"provenance": []}, {"probes": [3]}, {"version": []}, {"runs": "none"}],
    "probes": [
        {"times_s": [1e-3, -1e-3]}, {"times_s": [1e-300]}, {"times_s": [1e10]}, {"times_s": []}, {"size_bytes": 0},
        {"in_flight": 2**21}, {"kind": ""},
    ],
    "collectives": [
        {"times_s": []}, {"late_s": [0, 1e-3, -1e-3]}, {"calls": 0}, {"positions": [0, 1]}, {"wrong": -1},
        {"rank_medians_s": [1e-3]}, {"num_ranks": 1, "rank_medians_s": [1.0]},
    ],
    "runs": [
        {"size_bytes": 10}, {"num_ranks": 2}, {"clock_error_s": -1}, {"runs_s": []}, {"chunk": [0]},
        {name: [] for name in TRANSFER}, first("src", 3), first("dst", 0), first("applied_s", -1.0),
        {name: [RUN[name][0]] * 12 for name in TRANSFER[:4]},  # recorded twice
    ],
}  # fmt: skip


def test_what_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    """In one line with the file, the entry, the field, its value and the rule."""
    monkeypatch.chdir(tmp_path)
    said = []
    for place, mistakes in MISTAKES.items():
        for changes in mistakes:
            data = deepcopy(DATA)
            (data[place][0] if place else data).update(changes)
            said.append(said_by(ValueError, Measurements.load, written(Path("m.json"), json.dumps(data))))
    assert all(message.startswith("m.json: ") and "\n" not in message for message in said)
    assert said == snapshot


def test_percentiles() -> None:
    """p10_p90 is interpolated; p95 is the smallest error that 95 of 100 do not exceed, of few errors the largest."""
    assert p10_p90([float(value) for value in range(11)]) == (1.0, 9.0)
    assert p10_p90([5.0]) == (5.0, 5.0)
    assert (p95(range(1, 101)), p95([0.1, 0.3, 0.2])) == (95, 0.3)


def test_clocks_of_two_machines_may_disagree_a_little() -> None:
    """By as much as the record says."""
    data = deepcopy(DATA)
    data["runs"][0] |= first("applied_s", -1e-5) | {"clock_error_s": 2e-5}
    assert Measurements.from_dict(data).runs[0].applied_s[0] == -1e-5


def test_kinds_of_probes() -> None:
    """Each has its text, and other text is a kind of its own."""
    texts = "shift shift/rested ping/11_cpu reduce/bfloat16_cpu call/dist/warm shm/call/async shm/add/cached call/odd/a"
    kinds = [ProbeKind.read(text) for text in texts.split()]
    assert list(map(str, kinds)) == texts.split()
    assert kinds[2] == ProbeKind("ping", "11", clock="cpu")
    assert kinds[-3:] == [
        ProbeKind("call", "", "async", "shm"), ProbeKind("add", "", "cached", "shm"), ProbeKind("call/odd/a"),
    ]  # fmt: skip
