"""Commands with uniform help, one-line progress, and one-line errors with exit code 2."""

import contextlib
import importlib.util
import inspect
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Self

import click

from ringsim.schedule import ScheduleError
from ringsim.suggestions import to_install
from ringsim.units import format_duration, whole_number

REDRAW_S = 0.1
BAR_WIDTH = 24
CLEAR_LINE = "\r\033[K"


class Progress:
    """Draw the progress of consecutive phases as one line on a terminal's stderr, and erase it at the end.

    rank: only rank 0 draws. delay_s: draw nothing before.
    Click's bar hides the cursor for good if a rank is killed, and has no phases.
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
        """Begin a phase of `length` units (None: unknown), `done` of them by an earlier run."""
        self.phase, self.length, self.done, self.text = phase, length, done, ""
        self._begun_s, self._done_before = time.monotonic(), done
        self._draw()

    def update(self, count: int, text: str | None = None) -> None:
        self.done += count
        self.text = self.text if text is None else text
        if time.monotonic() >= self._drawn_at + REDRAW_S or self.done == self.length:
            self._draw()

    def advance_to(self, done: int, length: int, phase: str) -> None:
        if (phase, length) != (self.phase, self.length):
            self.begin(phase, length)
        self.update(done - self.done)

    def say(self, text: str) -> None:
        say(text)
        if self._drawn_at > float("-inf"):
            self._draw()

    def line(self, width: float = float("inf")) -> str:
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
    """Return a `Progress` whose only phase has begun."""
    progress = Progress(rank=rank, delay_s=delay_s)
    progress.begin(label, length, done)
    return progress


def say(text: str) -> None:
    """Print a line on stderr, in place of a progress line."""
    clear_line()
    click.echo(text, err=True)


def clear_line() -> None:
    """Erase a progress line, also that of an ended rank."""
    if _is_terminal():
        click.echo(CLEAR_LINE, file=sys.stderr, nl=False)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()  # it is None if stderr was closed before the start


MISTAKES = (click.ClickException, ValueError, OSError, ScheduleError)  # of the user, or refusals of the machine
LONGEST = 1000  # characters of a message
_BREAK = re.compile(r"\s*[\r\n]\s*")


class OneLineCommand(click.Command):
    """A click command that reports ValueError, OSError and ScheduleError in one line, like usage errors.

    A ScheduleError exits with code 1, after the grid that shows the fault; Ctrl-C with code 130, and the message of
    `click.exceptions.Abort`, if any.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        given = settings.get("context_settings") or {}
        settings["context_settings"] = {"help_option_names": ["-h", "--help"], "show_default": True, **given}
        super().__init__(*args, **settings)

    def main(self, *args: Any, **extra: Any) -> Any:
        main: Any = super().main
        if not extra.pop("standalone_mode", True):
            return main(*args, **extra, standalone_mode=False)
        try:
            status = main(*args, **extra, standalone_mode=False)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.ctx.get_help())
            sys.exit(0)
        except click.UsageError as error:
            self.refuse(in_one_line(error.format_message()), error.ctx.command_path if error.ctx else self.name)
        except click.exceptions.Abort as abort:
            say(f"{self.name}: {str(abort) or 'interrupted'}")
            sys.exit(130)
        except BrokenPipeError:  # the reader of our output, such as `head`, has closed the pipe
            sys.exit(1)
        except MemoryError as error:
            self.refuse(f"not enough memory: {error}".removesuffix(": "), self.name)
        except RecursionError:
            self.refuse("a file is nested too deeply", self.name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != "torch":
                raise
            self.refuse(needs_torch("this command"), self.name)
        except ScheduleError as error:  # a result: the command was used correctly, and the schedule is wrong
            self.refuse(message_of(error), self.name, exit_code=1)
        except MISTAKES as error:
            self.refuse(message_of(error), self.name)
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Abort from None  # click itself would print an empty line

    def refuse(self, message: str, command: str | None, exit_code: int = 2) -> NoReturn:
        click.echo(f"{command}: {message}", err=True)
        sys.exit(exit_code)


def needs_torch(command: str) -> str:
    """Return the message for an installation without torch."""
    return f"{command} needs torch, which is not installed: {to_install('torch')}"


def require_torch(command: str) -> None:
    """Raise ValueError, which names `command` and how to install torch, without torch."""
    if importlib.util.find_spec("torch") is None:
        raise ValueError(needs_torch(command))


def message_of(error: Exception) -> str:
    """Return an error's message to a user; of an OSError the file and the reason."""
    if isinstance(error, click.ClickException):
        return in_one_line(error.format_message())
    if isinstance(error, OSError) and error.strerror:
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else ""
        return in_one_line(f"{name}: {error.strerror}" if name else error.strerror)
    if isinstance(error, ScheduleError):
        message, line_break, grid = str(error).partition("\n")
        return in_one_line(message) + line_break + grid
    return in_one_line(str(error)) if isinstance(error, ValueError) else str(error)


def in_one_line(text: str) -> str:
    """Remove line breaks and terminal controls, which files, their names or click may contain.

    A very long text is cut in the middle, between the place and the rule.
    """
    joined = _BREAK.sub(" ", text)
    shown = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in joined)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST // 2]} ... {shown[-LONGEST // 2 :]}"


class OneLineGroup(OneLineCommand, click.Group):
    """A group of commands, whose help shows their first sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        shown = [(name, command) for name, command in commands if command is not None and not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(command)) for name, command in shown])


def _summary(command: click.Command) -> str:
    return f"{command.get_short_help_str(limit=LONGEST).rstrip('.')}."


GENERAL = """
\b
A file that exists is replaced by a new one when that is complete, and each
file that was written is named on stderr. {rule}

\b
Names are completed by the shell after
  eval "$(_{variable}_COMPLETE=bash_source {program})"
with zsh or fish in place of bash for those; put it into the shell's start-up
file, such as ~/.bashrc.
"""


def examples(*commands: str) -> str:
    """Return the examples that end a help text (`epilog` of a click command)."""
    lines = "\n".join(f"  {command}" for command in commands)
    return f"\b\nExample{'s' * (len(commands) > 1)}:\n{lines}"


def command(*tried: str, name: str | None = None, **settings: Any) -> Callable[[Callable[..., None]], click.Command]:
    """Return the decorator of a command with these examples. settings: for `click.command`."""
    return click.command(name, epilog=examples(*tried), **settings)


def general_help(program: str, rule: str) -> str:
    """Return the common help of `program`. rule: a further sentence about files."""
    return inspect.cleandoc(GENERAL.format(program=program, variable=program.upper().replace("-", "_"), rule=rule))


VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # set by torchrun and by `spawn`
GRACE_S = 20.0  # for which other ranks wait until rank 0 has printed its error; torchrun ends them sooner


class TorchrunCommand(OneLineCommand):
    """A command on several ranks; the first rank of each host prints the help and the user's mistake.

    Each host may have its own terminal. Under `spawn`, `spawn` prints the mistake.
    """

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None and not _is_first_of_host():
            option.callback = _exit_silently
        return option

    def refuse(self, message: str, command: str | None, exit_code: int = 2) -> NoReturn:
        write_error_file(message, exit_code)
        if ERROR_FILE in os.environ and not is_under_torchrun():
            sys.exit(exit_code)
        started = "torch" in sys.modules and sys.modules["torch"].distributed.is_initialized()
        if not (_is_first_of_host() or started):
            # torchrun ends all ranks as soon as one exits, which must not happen before rank 0 has printed its error.
            time.sleep(GRACE_S)
            sys.exit(exit_code)
        super().refuse(message, command, exit_code)


def _is_first_of_host() -> bool:
    return (os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID", "0")) == "0"


def is_under_torchrun() -> bool:
    """Return whether torchrun started this process, and will end it."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def write_error_file(message: str, exit_code: int) -> None:
    """Store the first message for torchrun or `spawn`; "" if the rank printed it."""
    file = os.environ.get(ERROR_FILE)
    if file and not Path(file).exists():
        with contextlib.suppress(OSError):
            failure = {"message": message, "timestamp": time.time(), "exit_code": exit_code}
            Path(file).write_text(json.dumps(failure))


def _exit_silently(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.exit()


def num_ranks(how_to_start: str) -> int:
    """Return the number of ranks. Raises UsageError, with `how_to_start`, without torchrun's variables."""
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing:
        raise click.UsageError(f"{missing[0]} is not set: start it with torchrun: {how_to_start}")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"):
        if whole_number(os.environ[name]) is None:
            raise click.UsageError(f"{name}={os.environ[name]}: must be a whole number; torchrun sets it")
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank >= count:
        raise click.UsageError(f"RANK={rank}: must be less than WORLD_SIZE={count}; torchrun sets both")
    return count


def ranks_here() -> int:
    """Return the number of ranks on this host; 1 without LOCAL_WORLD_SIZE."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def check_writable(option: str, folder: Path) -> None:
    """Raise UsageError if `folder`, or its nearest existing parent, is not writable. option: for the message."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise click.UsageError(f"{option}: cannot be written: {error.strerror}") from error
