"""`ringsim animate`, by click's runner."""

from dataclasses import replace
from pathlib import Path

import pytest

from ringsim import Measurements
from tests.ringsim.commands import refused, run
from tests.ringsim.made_run import made_run

UNIFORM = ["--latency", "10us", "--bandwidth", "1GB/s", "--reduce-bandwidth", "4GB/s"]


def test_a_page(tmp_path: Path) -> None:
    """It is written, and its path printed."""
    path = tmp_path / "ring.html"
    run("animate", "--ranks", "4", "--size", "1MiB", "-o", path)
    assert "<h1>all_reduce, ring: 4 ranks, 1 MiB</h1>" in path.read_text()


def test_a_path_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named after what it shows."""
    monkeypatch.chdir(tmp_path)
    run("animate", "--ranks", "4", "--compare", "ring,gloo_ring")
    assert "ring compared with gloo_ring" in (tmp_path / "ringsim-all_reduce-ring-gloo_ring-4.html").read_text()


def test_segments_are_named(tmp_path: Path) -> None:
    """The schedules of both have the same name."""
    path = tmp_path / "ring.html"
    run("animate", "--ranks", "4", "--compare", "ring,ring/4", "-o", path)
    assert "<h1>all_reduce, ring compared with ring/4: 4 ranks, 64 MiB</h1>" in path.read_text()


def test_a_measured_run_beside_its_prediction(tmp_path: Path) -> None:
    """Of several recorded runs the one that is asked for, else the first."""
    measured, page = tmp_path / "measured.json", tmp_path / "run.html"
    runs = (made_run(num_ranks=4, slower=1.3), made_run(algorithm="binomial_tree", num_ranks=4))
    Measurements(4, {}, runs=runs).save(measured)
    run("animate", "--measured", measured, *UNIFORM, "-o", page)
    assert '"name":"ring, predicted over gloo"' in page.read_text()
    assert '"name":"ring, measured over gloo"' in page.read_text()
    run("animate", "--measured", measured, "--algorithm", "binomial_tree", *UNIFORM, "-o", page)
    assert '"name":"binomial_tree, measured over gloo"' in page.read_text()


def test_a_gif(tmp_path: Path) -> None:
    """By the suffix."""
    path = tmp_path / "ring.gif"
    run("animate", "--ranks", "2", "--size", "1KiB", "-o", path)
    assert path.read_bytes().startswith(b"GIF8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--compare ring", "ringsim: --compare ring: must name two algorithms, such as ring,halving_doubling"),
        ("--compare ring,tree", "ringsim: algorithm 'tree': all_reduce has ring"),
        ("--compare ring,direct --algorithm ring", "ringsim animate: --compare and --algorithm exclude each other"),
        ("--measured m.json --ranks 4", "ringsim animate: --measured and --ranks exclude each other"),
        ("--measured m.json --compare a,b", "ringsim animate: --compare and --measured exclude each other"),
        ("--measured no.json", "ringsim: no.json: No such file or directory"),
        (
            "--ranks 128",
            "ringsim: all_reduce ring over 128 ranks has 32,512 transfers: an animation shows at most 12,000:",
        ),
        (
            "-o ring.png",
            "ringsim animate: Invalid value for '-o' / '--output': ring.png: must end in .html, .gif, .mp4",
        ),
    ],
)
def test_a_mistake_gets_one_line(arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert refused("animate", *arguments.split()).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_a_run(tmp_path: Path) -> None:
    """It says how to get one."""
    path = tmp_path / "measured.json"
    Measurements(4, {}).save(path)
    told = f"ringsim: {path}: holds no recorded run: ringsim measure --record makes a file that does\n"
    assert refused("animate", "--measured", path) == told


def test_a_python_file_that_a_record_names_is_run_only_if_it_is_trusted(tmp_path: Path) -> None:
    """Whoever made the file of measurements chose the name."""
    own = tmp_path / "own.py"
    own.write_text("from pathlib import Path\nPath('ran').touch()\nfrom ringsim import ring_all_reduce as own\n")
    measured = tmp_path / "measured.json"
    Measurements(4, {}, runs=(replace(made_run(num_ranks=4), algorithm=f"{own}:own"),)).save(measured)
    told = refused("animate", "--measured", measured, *UNIFORM, "-o", tmp_path / "a.html")
    assert f"give --trust {own}:own" in told
    assert list(Path().glob("ran")) == []
