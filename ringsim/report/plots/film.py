"""A moving picture of one run, or two side by side, as GIF or MP4: for slides, where a page cannot be shown."""

import os
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.animation import FFMpegWriter
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from ringsim.analysis import RunView, check_animated, slow_pairs
from ringsim.files import atomic_file
from ringsim.report.contributor_colours import contributor_colours
from ringsim.report.plots.chunk_grid import draw_cells, name_cells
from ringsim.report.plots.graph import GraphDrawing
from ringsim.report.plots.lanes import FEW_RANKS, Lanes, draw_bars, set_time_axis, time_unit
from ringsim.report.plots.style import palette
from ringsim.schedule import Bools
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
_LEGEND_COLUMNS = 5
_GREEN = "#009E73"

OnProgress = Callable[[int], object]


def num_frames(runs: Sequence[RunView]) -> int:
    """Return how many frames a film of these runs has."""
    steps = max(run.schedule.num_steps for run in runs)
    return min(max(_FRAMES_PER_STEP * steps, _MIN_FRAMES), _MAX_FRAMES)


def save_film(runs: Sequence[RunView], path: str | os.PathLike[str], on_progress: OnProgress = lambda _: None) -> None:
    """Draw all frames and write them to `path`, whole or not at all: GIF or MP4, by its suffix.

    on_progress: is told after each frame that there was one more.

    Raises ValueError for an MP4 where ffmpeg is not installed and for more transfers than can be shown, OSError if the
    file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() == ".mp4":
        _save_mp4(Film(runs), path, on_progress)
    else:
        _save_gif(Film(runs), path, on_progress)


class Film:
    """A figure that can be drawn at any time of the runs."""

    def __init__(self, runs: Sequence[RunView]) -> None:
        """Draw what does not move. Raises ValueError for more transfers or chunks than can be shown."""
        for run in runs:
            check_animated(run.schedule)
        self._runs = runs
        self._first_s = min(float(run.timeline.start_s.min(initial=0.0)) for run in runs)
        self._last_s = max(run.timeline.until_s for run in runs) or 1.0
        self.figure = Figure(figsize=(_WIDTH * len(runs), _HEIGHT + _LANES + 1.35), dpi=_DPI)
        self._canvas: Any = FigureCanvasAgg(self.figure)  # matplotlib's own calls have no annotations
        edges = {"left": 0.085 / len(runs), "right": 0.985, "top": 0.79, "bottom": 0.125}
        grid = self.figure.add_gridspec(1, len(runs), wspace=0.14, **edges)
        self._views: list[_GraphFrame | _ChunksFrame | _TimeFrame] = []
        for number, run in enumerate(runs):
            cells = grid[0, number].subgridspec(2, 2, height_ratios=(_HEIGHT, _LANES), wspace=0.16, hspace=0.26)
            self._views.append(_GraphFrame(self.figure.add_subplot(cells[0, 0]), run))
            self._views.append(_ChunksFrame(self.figure.add_subplot(cells[0, 1]), run))
            self._views.append(_TimeFrame(self.figure.add_subplot(cells[1, :]), run, self._first_s, self._last_s))
        bold: dict[str, Any] = {"fontweight": "bold", "va": "center"}
        self._texts = [
            (
                self.figure.text(left, 0.945, "", fontsize=12, **bold),
                self.figure.text(left, 0.9, "", fontsize=10, color=palette().blue, **bold),
                self.figure.text(left, 0.878, "", fontsize=9.5, va="top", linespacing=1.25),
            )
            for left in (number / len(runs) * 1.03 + 0.012 for number in range(len(runs)))
        ]

    @property
    def times_s(self) -> list[float]:
        """The times of the frames, evenly spaced."""
        times: list[float] = np.linspace(self._first_s, self._last_s, num_frames(self._runs)).tolist()
        return times

    def draw(self, time_s: float) -> None:
        """Make the figure show this moment."""
        for view in self._views:
            view.draw(time_s)
        for run, (title, phase, sentence) in zip(self._runs, self._texts, strict=True):
            title.set_text(_title(run))
            step, told = _moment(run, time_s)
            phase.set_text(step)
            sentence.set_text("\n".join(textwrap.wrap(told, _SENTENCE, max_lines=2, placeholder=" ...")))

    def frames(self, on_progress: OnProgress) -> Iterator[Image.Image]:
        """Yield all frames in their order."""
        for time_s in self.times_s:
            self.draw(time_s)
            self._canvas.draw()
            yield Image.fromarray(np.asarray(self._canvas.buffer_rgba())[..., :3].copy())
            on_progress(1)


class _GraphFrame:
    """The ranks, their links, and the chunks that travel along them."""

    def __init__(self, axes: Axes, run: RunView) -> None:
        self._axes, self._run, self._moving = axes, run, list[Artist]()
        self._colours = contributor_colours(run.schedule.num_ranks)
        self._graph = GraphDrawing(axes, run.graph)
        failing = {(pair.src, pair.dst) for pair in run.troubles.pairs if pair.fails_at_s is not None}
        self._graph.draw_links(slow_pairs(run.troubles) | failing, arrows=False)
        self._graph.draw_ranks(self._colours)
        self._width = min(0.4 * self._graph.closest, 30.0)  # points, of a chunk

    def draw(self, time_s: float) -> None:
        for artist in self._moving:
            artist.remove()
        timeline = self._run.timeline
        rows = np.flatnonzero((timeline.start_s <= time_s) & (time_s < timeline.applied_s)).tolist()
        self._moving = [artist for row in rows for artist in self._draw_chunk(row, *self._place(row, time_s))]

    def _place(self, row: int, time_s: float) -> tuple[float, float]:
        """Return where a chunk is on its way; what never arrives stays near its sender."""
        timeline = self._run.timeline
        src, dst = int(timeline.src[row]), int(timeline.dst[row])
        start_s, arrived_s = float(timeline.start_s[row]), float(timeline.arrived_s[row])
        share = 0.2
        if np.isfinite(arrived_s):
            share = min((time_s - start_s) / (arrived_s - start_s), 1.0) if arrived_s > start_s else 1.0
        rim = min(0.36, (self._graph.radius + 0.45 * self._width) / self._graph.length(src, dst))
        x, y = self._graph.point(src, dst, rim + (1 - 2 * rim) * share).tolist()
        return x, y

    def _draw_chunk(self, row: int, x: float, y: float) -> Iterator[Artist]:
        """Draw a box with the chunk's number above, and below a stripe for each share; a dot where ranks are many."""
        schedule, timeline, colours = self._run.schedule, self._run.timeline, palette()
        colour = colours.dark_grey if timeline.reduce[row] else _GREEN
        if not np.isfinite(timeline.applied_s[row]):
            colour = colours.vermillion
        if schedule.num_ranks > FEW_RANKS:
            yield from self._axes.plot(x, y, "o", color=colour, markersize=0.8 * self._graph.radius, zorder=5)
            return
        width, height = self._graph.in_data(self._width, 0.62 * self._width)
        num_stripes = schedule.num_ranks if schedule.collective.reduces else 1
        left, stripe = x - width / 2, width / num_stripes
        box: dict[str, Any] = {"facecolor": colours.paper, "edgecolor": colour, "linewidth": 1.4, "zorder": 5}
        yield self._axes.add_patch(Rectangle((left, y - height / 2), width, height, **box))
        for rank in np.flatnonzero(self._run.meanings.sent[row]).tolist():
            corner, colour = (left + rank % num_stripes * stripe, y), self._colours[rank]
            yield self._axes.add_patch(Rectangle(corner, stripe, height / 2, facecolor=colour, linewidth=0, zorder=5))
        number: dict[str, Any] = {"fontsize": 0.26 * self._width, "fontweight": "bold", "zorder": 6}
        yield self._axes.text(x, y - height / 4, str(timeline.chunk[row]), ha="center", va="center_baseline", **number)


class _ChunksFrame:
    """A row for each rank, a column for each chunk."""

    def __init__(self, axes: Axes, run: RunView) -> None:
        self._axes, self._run = axes, run

    def draw(self, time_s: float) -> None:
        axes, schedule = self._axes, self._run.schedule
        axes.clear()
        axes.set_title("contributions that each rank holds of each chunk", fontsize=8, pad=5)
        name_cells(axes, schedule.num_ranks, schedule.num_chunks, with_ranks=True)
        held, finished = self._state(time_s)
        draw_cells(axes, held, finished, held)

    def _state(self, time_s: float) -> tuple[Bools, Bools]:
        """Return whose shares are in each chunk of each rank, and whether it is complete."""
        run, timeline, meanings = self._run, self._run.timeline, self._run.meanings
        held = run.initial[..., None] == np.arange(run.schedule.num_ranks)
        finished = held.sum(axis=-1) == run.needed
        applied = np.flatnonzero(timeline.applied_s <= time_s)
        # Of what was applied to a chunk the last in step order holds.
        for row in applied[np.argsort(timeline.step[applied], kind="stable")].tolist():
            held[timeline.dst[row], timeline.chunk[row]] = meanings.result[row]
            finished[timeline.dst[row], timeline.chunk[row]] = meanings.finished[row]
        return held, finished


class _TimeFrame:
    """The lanes; what has not happened yet is pale."""

    def __init__(self, axes: Axes, run: RunView, first_s: float, last_s: float) -> None:
        lanes = Lanes(run.timeline, stall=run.stall)
        lanes.scale, lanes.unit = time_unit(last_s)
        set_time_axis(axes, lanes)
        end = last_s * lanes.scale
        axes.set_xlim(first_s * lanes.scale, end)
        axes.tick_params(axis="y", length=0)
        axes.annotate(lanes.unit, (1, 0), (0, -4), "axes fraction", "offset points", fontsize=8, ha="right", va="top")
        handles = draw_bars(axes, lanes)
        axes.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(0, -0.24), ncols=min(len(handles), _LEGEND_COLUMNS),
            fontsize=7, frameon=False, borderaxespad=0, borderpad=0, columnspacing=1.2, handlelength=1.5,
        )  # fmt: skip
        self._scale = lanes.scale
        self._now = axes.axvline(0, color=palette().dark_grey, linewidth=1.2, zorder=6)
        self._ahead = Rectangle((0, -0.5), end, lanes.height, color=palette().paper, alpha=0.62, zorder=5)
        axes.add_patch(self._ahead)

    def draw(self, time_s: float) -> None:
        now = time_s * self._scale
        self._now.set_xdata([now, now])
        self._ahead.set_x(now)


def _title(run: RunView) -> str:
    time = f"done after {format_time(run.timeline.time_s)}" if run.stall is None else "never finishes"
    size = format_size(run.size_bytes)
    return f"{run.schedule.collective.value}, {run.name}: {run.schedule.num_ranks} ranks, {size}, {time}"


def _moment(run: RunView, time_s: float) -> tuple[str, str]:
    """Phase and step, and the sentence of that step."""
    if not run.sentences:
        return "", "a single rank has nothing to send"
    if run.stall is None and time_s >= run.timeline.time_s:
        return "done", f"All {len(run.sentences)} steps are done, and every rank holds its result."
    step = min(int(np.searchsorted(run.step_end_s, time_s)), len(run.sentences) - 1)
    phase = next(phase for phase in run.phases if phase.first <= step <= phase.last)
    sentence = run.sentences[step]
    if run.stall is not None and time_s >= run.stall.until_s:
        hanging = next((rank for rank in run.stall.ranks if rank.doing != "waits"), run.stall.ranks[0])
        sentence = f"rank {hanging.rank} hangs, and all others wait: the run cannot continue"
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
            f"{path}: an .mp4 is written by ffmpeg, which is not installed: install it, or choose .gif or .html"
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
