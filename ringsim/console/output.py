"""Progress on stderr, a command's result on stdout, and its files, of which `-` is stdout and each other one is named.

The progress is one line, drawn where stderr is a terminal and gone when the command ends. Click's own bar is not used:
it hides the cursor, which stays hidden when a rank is killed, it counts what an earlier run has done as if this one had
done it, and it knows no phases.
"""

import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self

import click

from ringsim.files import atomic_file
from ringsim.units import format_duration

REDRAW_S = 0.1
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
        self.phase, self.text = "", ""
        self.length: int | None = None
        self.done = self._done_before = 0
        self._begun_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._hidden and self._drawn_at > float("-inf"):
            clear_line()

    def begin(self, phase: str, length: int | None = None, done: int = 0) -> None:
        """Begin a phase. length: of what is to be done, if it is known; done: of that, what an earlier run has done."""
        self.phase, self.length, self.done, self.text = phase, length, done, ""
        self._begun_s, self._done_before = time.monotonic(), done
        self._draw()

    def update(self, count: int, text: str | None = None) -> None:
        """Advance by `count`; `text` replaces the message on how it is going."""
        self.done += count
        self.text = self.text if text is None else text
        if time.monotonic() >= self._drawn_at + REDRAW_S or self.done == self.length:
            self._draw()

    def advance_to(self, done: int, length: int, phase: str) -> None:
        """Set how much of a phase is done, of `length`; the phase begins if it is not the present one."""
        if (phase, length) != (self.phase, self.length):
            self.begin(phase, length)
        self.update(done - self.done)

    def say(self, text: str) -> None:
        """Print a line on stderr above the progress line, which is drawn again at once."""
        say(text)
        if self._drawn_at > float("-inf"):
            self._draw()

    def line(self, width: float = float("inf")) -> str:
        """Return what is drawn, without the bar where that needs more than `width` columns."""
        if self.length is None:
            return "  ".join(filter(None, [f"{self.phase} ...", str(self.done) if self.done else "", self.text]))
        bar = "#" * min(BAR_WIDTH * self.done // max(self.length, 1), BAR_WIDTH)
        count = f"{self.done}/{self.length}"
        parts = [self.phase, f"[{bar:<{BAR_WIDTH}}]", count, self._time_left(), self.text]
        whole = "  ".join(filter(None, parts))
        return whole if len(whole) <= width else "  ".join(filter(None, [parts[0], *parts[2:]]))

    def _time_left(self) -> str:
        made, spent_s = self.done - self._done_before, time.monotonic() - self._begun_s
        if self.length is None or made <= 0 or self.done >= self.length:
            return ""
        return f"{format_duration((self.length - self.done) * spent_s / made)} left"

    def _draw(self) -> None:
        now = time.monotonic()
        if self._hidden or now < self._visible_from:
            return
        self._drawn_at = now
        width = shutil.get_terminal_size().columns - 1
        click.echo(f"{CLEAR_LINE}{self.line(width)[:width]}", file=sys.stderr, nl=False)


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
