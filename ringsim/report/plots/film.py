"""A moving picture of one run, or two side by side, as GIF or MP4: for slides, where a page cannot be shown."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.animation import FFMpegWriter
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from ringsim.analysis import Animation
from ringsim.files import atomic_file
from ringsim.report.plots.film_views import ChunksView, GraphView, TimeView
from ringsim.report.plots.palette import palette
from ringsim.units import format_size, format_time

_FRAMES_PER_STEP = 13
_MIN_FRAMES, _MAX_FRAMES = 40, 120
_FRAMES_PER_S = 12
_HOLD = 24  # frames for which the last one stays
_DPI = 96
_WIDTH, _HEIGHT, _LANES = 8.0, 3.1, 1.5  # inches; of a second run as many again
_COLOURS = 96  # of a GIF
_EVEN = "crop=trunc(iw/2)*2:trunc(ih/2)*2"  # as the codec of an MP4 asks for
_SENTENCE = 96  # letters, that fit into a line beside one run


OnProgress = Callable[[int], object]


def num_frames(runs: Sequence[Animation]) -> int:
    """Returns how many frames a film of these runs has."""
    steps = max(run.schedule.num_steps for run in runs)
    return min(max(_FRAMES_PER_STEP * steps, _MIN_FRAMES), _MAX_FRAMES)


def save_film(
    runs: Sequence[Animation], path: str | os.PathLike[str], on_progress: OnProgress = lambda _: None
) -> None:
    """Draws all frames and writes them to `path`, whole or not at all: GIF or MP4, by its suffix.

    on_progress: is told after each frame that there was one more.

    Raises ValueError for an MP4 where ffmpeg is not installed, OSError if the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() == ".mp4":
        _save_mp4(Film(runs), path, on_progress)
    else:
        _save_gif(Film(runs), path, on_progress)


class Film:
    """A figure that can be drawn at any time of the runs."""

    def __init__(self, runs: Sequence[Animation]) -> None:
        self._runs = runs
        self._first_s = min(float(run.timeline.start_s.min(initial=0.0)) for run in runs)
        self._last_s = max(run.timeline.until_s for run in runs) or 1.0
        self.figure = Figure(figsize=(_WIDTH * len(runs), _HEIGHT + _LANES + 1.15), dpi=_DPI)
        self._canvas: Any = FigureCanvasAgg(self.figure)  # matplotlib's own calls have no annotations
        grid = self.figure.add_gridspec(
            1, len(runs), left=0.085 / len(runs), right=0.985, top=0.78, bottom=0.085, wspace=0.14
        )
        self._views: list[GraphView | ChunksView | TimeView] = []
        for number, run in enumerate(runs):
            cells = grid[0, number].subgridspec(2, 2, height_ratios=(_HEIGHT, _LANES), wspace=0.12, hspace=0.2)
            self._views.append(GraphView(self.figure.add_subplot(cells[0, 0]), run))
            self._views.append(ChunksView(self.figure.add_subplot(cells[0, 1]), run))
            lanes = self.figure.add_subplot(cells[1, :])
            self._views.append(TimeView(lanes, run, self._first_s, self._last_s))
        self._texts = [
            [self.figure.text(number / len(runs) * 1.03 + 0.012, height, "", **style) for height, style in _lines()]
            for number in range(len(runs))
        ]

    @property
    def times_s(self) -> list[float]:
        """The times of the frames, evenly spaced."""
        times: list[float] = np.linspace(self._first_s, self._last_s, num_frames(self._runs)).tolist()
        return times

    def draw(self, time_s: float) -> None:
        """Makes the figure show this moment."""
        for view in self._views:
            view.draw(time_s)
        for run, (title, phase, sentence) in zip(self._runs, self._texts, strict=True):
            title.set_text(_title(run))
            step, told = _moment(run, time_s)
            phase.set_text(step)
            sentence.set_text(told if len(told) <= _SENTENCE else f"{told[: _SENTENCE - 4]} ...")

    def frames(self, on_progress: OnProgress) -> Iterator[Image.Image]:
        """All frames in their order."""
        for time_s in self.times_s:
            self.draw(time_s)
            self._canvas.draw()
            yield Image.fromarray(np.asarray(self._canvas.buffer_rgba())[..., :3].copy())
            on_progress(1)


def _lines() -> tuple[tuple[float, dict[str, Any]], ...]:
    """The height of each line above the views, and how it is written: title, phase and sentence."""
    return (
        (0.945, {"fontsize": 12, "fontweight": "bold", "va": "center"}),
        (0.9, {"fontsize": 10, "fontweight": "bold", "color": palette().blue, "va": "center"}),
        (0.858, {"fontsize": 9.5, "va": "center"}),
    )


def _title(run: Animation) -> str:
    time = f"done after {format_time(run.timeline.time_s)}" if run.stall is None else "never finishes"
    size = format_size(run.size_bytes)
    return f"{run.schedule.collective.value}, {run.name}: {run.schedule.num_ranks} ranks, {size}, {time}"


def _moment(run: Animation, time_s: float) -> tuple[str, str]:
    """Phase and step, and the sentence of that step."""
    if not run.sentences:
        return "", "one rank has nothing to send"
    step = min(int(np.searchsorted(run.step_end_s, time_s)), len(run.sentences) - 1)
    phase = next(phase for phase in run.phases if phase.first <= step <= phase.last)
    sentence = run.sentences[step]
    if run.stall is not None and time_s >= run.stall.until_s:
        hanging = next((rank for rank in run.stall.ranks if rank.doing != "waits"), run.stall.ranks[0])
        sentence = f"rank {hanging.rank} hangs, and all others wait: nothing more can happen"
    return (
        f"{phase.name}: step {step} (the steps are 0 to {len(run.sentences) - 1})",
        f"{sentence[0].upper()}{sentence[1:]}.",
    )


def _save_gif(film: Film, path: Path, on_progress: OnProgress) -> None:
    frames = list(film.frames(on_progress))
    # One palette for all frames, so that nothing flickers and unchanged parts are not stored again.
    sample = Image.new("RGB", (frames[0].width, 3 * frames[0].height))
    for place, frame in enumerate((frames[0], frames[len(frames) // 2], frames[-1])):
        sample.paste(frame, (0, place * frame.height))
    colours = sample.quantize(_COLOURS, dither=Image.Dither.NONE)
    drawn = [frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in frames]
    frame_ms = 1000 // _FRAMES_PER_S
    durations = [frame_ms] * (len(drawn) - 1) + [frame_ms * _HOLD]
    with atomic_file(path) as file:
        drawn[0].save(
            file, "GIF", save_all=True, append_images=drawn[1:], duration=durations, loop=0, optimize=True, disposal=1
        )


def _save_mp4(film: Film, path: Path, on_progress: OnProgress) -> None:
    if not FFMpegWriter.isAvailable():
        raise ValueError(
            f"{path}: an .mp4 is written by ffmpeg, which is not installed: install it, or take .gif or .html"
        )
    writer = FFMpegWriter(fps=_FRAMES_PER_S, extra_args=["-pix_fmt", "yuv420p", "-vf", _EVEN])
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "film.mp4"
        with writer.saving(film.figure, str(made), _DPI):
            for time_s in film.times_s:
                film.draw(time_s)
                writer.grab_frame()
                on_progress(1)
            for _ in range(_HOLD):
                writer.grab_frame()
        with atomic_file(path) as file:
            file.write(made.read_bytes())
