"""Progress on stderr, a command's result on stdout, and its files, of which `-` is stdout and each other one is named.

The progress is one line, drawn where stderr is a terminal and gone when the command ends. Click's own bar is not used:
it hides the cursor, which stays hidden when a rank is killed, it counts what an earlier run has done as if this one had
done it, and it knows no phases.
"""

import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self

import click

from ringsim.files import atomic_file
from ringsim.units import format_duration

REDRAW_S = 0.1
RECENT = 50  # marks from which the time left is estimated: the first steps of a phase are slower than the rest
MARK_S = 0.2  # between two marks, at least
BAR_WIDTH = 24
CLEAR_LINE = "\r\033[K"


class Progress:
    """Draw the progress of consecutive phases on a terminal; a context manager. `begin` starts the next phase.

    rank: only rank 0 draws. delay_s: draw nothing during the first `delay_s` seconds, for work that is usually done by
    then.
    """

    def __init__(self, *, rank: int = 0, delay_s: float = 0.0) -> None:
        self._hidden = rank != 0 or not _is_terminal()
        self._visible_from = time.monotonic() + delay_s
        self._drawn_at = float("-inf")
        self._begin("", None, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._hidden and self._drawn_at > float("-inf"):
            clear_line()

    def _begin(self, phase: str, length: int | None, done: int) -> None:
        self.phase, self.length, self.done, self.text = phase, length, done, ""
        self._recent = deque([(time.monotonic(), done)], maxlen=RECENT)

    def begin(self, phase: str, length: int | None = None, done: int = 0) -> None:
        """Begin a phase. length: of what is to be done, if it is known; done: of that, what an earlier run has done."""
        self._begin(phase, length, done)
        self._draw()

    def update(self, count: int, text: str | None = None) -> None:
        """So much more is done; `text`, if there is one, says how it is going."""
        self.done += count
        self.text = self.text if text is None else text
        now = time.monotonic()
        if now >= self._recent[-1][0] + MARK_S:
            self._recent.append((now, self.done))
        if now >= self._drawn_at + REDRAW_S or self.done == self.length:
            self._draw()

    def advance_to(self, done: int, length: int, phase: str) -> None:
        """So much of `length` is done of a phase, which begins if it is not the present one."""
        if (phase, length) != (self.phase, self.length):
            self.begin(phase, length)
        self.update(done - self.done)

    def say(self, text: str) -> None:
        """Print a line on stderr above the progress line, which is drawn again at once."""
        say(text)
        if self._drawn_at > float("-inf"):
            self._draw()

    def line(self, width: int | None = None) -> str:
        """Return what is drawn; where it does not fit into `width`, without the bar, and then cut."""
        if self.length is None:
            parts = [f"{self.phase} ...", str(self.done) if self.done else "", self.text]
        else:
            filled = min(BAR_WIDTH * self.done // max(self.length, 1), BAR_WIDTH)
            bar = f"[{'#' * filled}{' ' * (BAR_WIDTH - filled)}]"
            parts = [self.phase, bar, f"{self.done}/{self.length}", self._time_left(), self.text]
        whole = "  ".join(filter(None, parts))
        if self.length is not None and width is not None and len(whole) > width:
            whole = "  ".join(filter(None, [parts[0], *parts[2:]]))
        return whole[:width]

    def _time_left(self) -> str:
        (first_s, first_done), (last_s, last_done) = self._recent[0], self._recent[-1]
        if self.length is None or last_done <= first_done or self.done >= self.length:
            return ""
        left_s = (self.length - last_done) * (last_s - first_s) / (last_done - first_done)
        return f"{format_duration(left_s)} left"

    def _draw(self) -> None:
        now = time.monotonic()
        if self._hidden or now < self._visible_from:
            return
        self._drawn_at = now
        width = shutil.get_terminal_size().columns - 1
        click.echo(f"{CLEAR_LINE}{self.line(width)}", file=sys.stderr, nl=False)


def progress_bar(length: int, label: str, *, rank: int = 0, done: int = 0, delay_s: float = 0.0) -> Progress:
    """Return a `Progress` of one phase, which has begun."""
    progress = Progress(rank=rank, delay_s=delay_s)
    progress.begin(label, length, done)
    return progress


def say(text: str) -> None:
    """Print a line on stderr, in place of a progress line."""
    clear_line()
    click.echo(text, err=True)


def clear_line() -> None:
    """Erase what a progress line, also that of a rank which has been ended, left in the last line of the terminal."""
    if _is_terminal():
        click.echo(CLEAR_LINE, file=sys.stderr, nl=False)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()  # it is None if it was closed before the program began


STDOUT = Path("-")

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, in seconds, bytes and bytes per second."
)
wide_option = click.option("--wide", is_flag=True, help="Print more columns, which may need over 80 characters.")


@contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file for the block: stdout for `-`, else a new one, which replaces `path` when the block has ended.

    Says on stderr that it was written. Raises OSError, as `atomic_file` does, if it cannot be written.
    """
    if path == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with atomic_file(path) as file:
        yield file
    say_wrote(path)


def say_wrote(path: Path | str) -> None:
    """Names a file that was written; on stderr, so that stdout holds nothing but the result."""
    click.echo(f"wrote {path}", err=True)


def print_result(text: str, data: Mapping[str, Any], as_json: bool, *files: Path | None) -> None:
    """Print the result of a command, as text or as one JSON object.

    files: those that were written; where stdout is one of them, nothing else is printed there.

    Raises ValueError for a number that JSON does not have.
    """
    if STDOUT not in files:
        click.echo(json.dumps(data, allow_nan=False) if as_json else text)


def require_one_stdout(as_json: bool, *files: Path | None) -> None:
    """Raise UsageError if more than one thing is to be printed to stdout."""
    if as_json + sum(file == STDOUT for file in files) > 1:
        raise click.UsageError("only one of --json and the files named - can be printed to stdout")
