"""`ringsim animate`, by click's runner."""

from pathlib import Path

import pytest

from ringsim import Measurements
from tests.ringsim.commands import refused, run
from tests.ringsim.made_run import made_run

UNIFORM = ["--latency", "10us", "--bandwidth", "1GB/s", "--reduce-bandwidth", "4GB/s"]


def test_a_path_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named after what it shows; segments are named, as the schedules of both have the same name."""
    monkeypatch.chdir(tmp_path)
    run("animate", "--ranks", "4", "--compare", "ring,ring/4")
    (page,) = tmp_path.iterdir()
    assert page.name == "ringsim-all_reduce-ring-ring-4-4.html"
    assert "<h1>all_reduce, ring compared with ring/4: 4 ranks, 64 MiB</h1>" in page.read_text()


def test_a_measured_run_beside_its_prediction(tmp_path: Path) -> None:
    """Of several recorded runs the one that is asked for, else the first."""
    measured, page = tmp_path / "measured.json", tmp_path / "run.html"
    runs = (made_run(num_ranks=4, slower=1.3), made_run(algorithm="binomial_tree", num_ranks=4))
    Measurements(4, {}, runs=runs).save(measured)
    run("animate", "--measured", measured, *UNIFORM, "-o", page)
    assert all(f'"name":"ring, {side} over gloo"' in page.read_text() for side in ("predicted", "measured"))
    run("animate", "--measured", measured, "--algorithm", "binomial_tree", *UNIFORM, "-o", page)
    assert '"name":"binomial_tree, measured over gloo"' in page.read_text()


def test_a_file_without_a_run(tmp_path: Path) -> None:
    """It says how to get one."""
    path = tmp_path / "measured.json"
    Measurements(4, {}).save(path)
    told = f"ringsim: {path}: holds no recorded run: ringsim measure --record makes a file that does\n"
    assert refused("animate", "--measured", path) == told
