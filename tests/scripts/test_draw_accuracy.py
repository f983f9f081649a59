"""The points of the picture of accuracy, and the picture that is drawn from them."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from syrupy.assertion import SnapshotAssertion

import draw_accuracy
from accuracy_points import HKBU, Point, read_points, write_points
from tests.refusals import said_by

POINTS = [
    Point("GPU cluster", "a log: all_reduce ring, 8 ranks, 4 B", 1e-3, 1.25e-3),
    Point(HKBU, "", 4e-3, 1e-3),
    Point("loopback", "", 2e-3, 2e-3),
    Point("loopback", "", 3e-3, 2e-3),
]


def test_points_are_read_as_they_were_written(tmp_path: Path) -> None:
    """In a folder that is made for them."""
    path = tmp_path / "points/clusters.csv"
    write_points(path, POINTS)
    assert read_points(path) == POINTS


HEADER = "place,case,predicted_s,measured_s\n"
BROKEN = (
    "place,predicted_s\nloopback,1\n", f"{HEADER}loopback,1\n", f"{HEADER}loopback,a,1,2\nloopback,a,1,x\n",
    f"{HEADER}loopback,a,nan,1\n", f"{HEADER}moon,a,1,1\n",
)  # fmt: skip


def test_a_broken_file_is_refused(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """With its line; a point of an unknown place would be counted and not drawn."""
    path, said = tmp_path / "points.csv", {}
    for text in BROKEN:
        path.write_text(text)
        said[text] = said_by(ValueError, read_points, path).replace(str(path), "FILE")
    assert said == snapshot


def test_the_caption_counts_the_points(snapshot: SnapshotAssertion) -> None:
    """By place, with the median error; those within the band also without the repository that has half of a place."""
    figure = draw_accuracy.draw_accuracy(POINTS, "2026-11-26")
    legends = [text.get_text() for axes in figure.axes for text in axes.get_legend().get_texts()]
    assert [*legends, *(text.get_text() for text in figure.texts)] == snapshot


def test_no_picture_of_no_points_or_of_what_nothing_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is written by a command of scripts/figures.toml."""
    monkeypatch.setattr(draw_accuracy, "ROOT", tmp_path)
    monkeypatch.setattr(draw_accuracy, "FOLDER", tmp_path)
    for message in ("no points: measure them", "typed.csv: no command of figures.toml writes it"):
        result = CliRunner().invoke(draw_accuracy.main, [str(tmp_path / "accuracy.png")])
        assert result.exit_code == 2
        assert message in result.output
        write_points(tmp_path / "typed.csv", POINTS)
    assert not (tmp_path / "accuracy.png").exists()
