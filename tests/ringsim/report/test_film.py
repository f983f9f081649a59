"""Films of an animation: GIF, and MP4 where ffmpeg is."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.animation import FFMpegWriter
from PIL import Image

from ringsim import Network
from ringsim.analysis import RunView
from ringsim.registry import build
from ringsim.report.plots.film import Film, save_film
from ringsim.schedule import Collective
from tests.ringsim.made_networks import DEAD_LINK, made_network

NETWORK = Network(latency_s=10e-6, bandwidth_bytes_per_s=1.25e9, reduce_bytes_per_s=5e9)


def made(algorithm: str, num_ranks: int) -> RunView:
    """A run of 1 MiB."""
    return RunView(build(Collective.ALL_REDUCE, algorithm, num_ranks), NETWORK, 2**20)


def test_a_gif_moves_and_is_small(tmp_path: Path) -> None:
    """As that of the README: four ranks, well under 600 KB, repeated for ever."""
    path = tmp_path / "ring.gif"
    save_film([made("ring", 4)], path)
    assert path.stat().st_size < 600_000
    with Image.open(path) as film:
        assert film.n_frames > 40
        assert film.info["loop"] == 0
        first = np.asarray(film.convert("RGB"))
        film.seek(film.n_frames - 1)
        assert (first != np.asarray(film.convert("RGB"))).any()


@pytest.mark.parametrize("runs", [("ring", "halving_doubling"), ("torus",)])
def test_any_moment_can_be_drawn(runs: tuple[str, ...]) -> None:
    """Of one run and of two, with few ranks and with many."""
    film = Film([made(name, 8 if len(runs) == 2 else 24) for name in runs])
    for time_s in (0.0, film.times_s[len(film.times_s) // 2], film.times_s[-1]):
        film.draw(time_s)
        film.figure.canvas.draw()


def test_a_run_that_hangs_says_so() -> None:
    """In its last frames."""
    schedule = build(Collective.ALL_REDUCE, "ring", 4)
    film = Film([RunView(schedule, made_network(DEAD_LINK), 2**20)])
    film.draw(film.times_s[-1])
    texts = [text.get_text() for text in film.figure.texts]
    assert "never finishes" in texts[0]
    assert texts[2] == "Rank 2 hangs, and all others wait: the run cannot continue."


def test_an_mp4_needs_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says so, and nothing is left behind."""
    monkeypatch.setattr(FFMpegWriter, "isAvailable", classmethod(lambda _: False))
    with pytest.raises(ValueError, match="an .mp4 is written by ffmpeg, which is not installed: install it, or choose"):
        save_film([made("ring", 4)], tmp_path / "ring.mp4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="no ffmpeg on PATH")
def test_an_mp4(tmp_path: Path) -> None:
    """By matplotlib's own writer."""
    path = tmp_path / "ring.mp4"
    save_film([made("ring", 2)], path)
    assert path.read_bytes()[4:8] == b"ftyp"
