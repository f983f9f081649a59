"""Tests of `ringsim.measurements.recorded_run`, and of the files that hold such runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from ringsim.files import decode, encode
from ringsim.measurements.measurements import Measurements
from ringsim.measurements.recorded_run import TRANSFER, RecordedRun
from ringsim.schedule.collective import Collective
from tests.ringsim.made_run import made_run


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
def test_what_cannot_be_is_refused(data: Any, message: str) -> None:
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
