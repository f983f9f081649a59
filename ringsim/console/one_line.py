"""Commands in which a user's mistake ends in one line on stderr and exit code 2; what all help texts share."""

import inspect
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

from ringsim.console.output import clear_line
from ringsim.schedule import ScheduleError
from ringsim.suggestions import to_install

MISTAKES = (click.ClickException, ValueError, OSError, ScheduleError)  # what a user got wrong, or the machine refuses
LONGEST = 1000  # characters of a message
_BREAK = re.compile(r"\s*[\r\n]\s*")


class OneLineCommand(click.Command):
    """A click command that turns ValueError, OSError and ScheduleError into one message, as it does usage errors.

    The message of a ScheduleError goes on with the grid that shows the fault, and the exit code is 1. Ctrl-C, too, is
    one line, and exit code 130; a command that has more to say of it raises `click.exceptions.Abort` with that.
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
            clear_line()
            click.echo(f"{self.name}: {str(abort) or 'interrupted'}", err=True)
            sys.exit(130)
        except BrokenPipeError:  # the reader of our output had enough, such as `head`
            sys.exit(1)
        except MemoryError as error:
            self.refuse(f"not enough memory: {error}".removesuffix(": "), self.name)
        except RecursionError:
            self.refuse("a file is nested too deeply", self.name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != "torch":
                raise
            self.refuse(needs_torch("this command"), self.name)
        except ScheduleError as error:  # a result: the command was called rightly, and the schedule is wrong
            self.refuse(message_of(error), self.name, exit_code=1)
        except MISTAKES as error:
            self.refuse(message_of(error), self.name)
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Abort from None  # by itself click would print an empty line

    def refuse(self, message: str, command: str | None, exit_code: int = 2) -> NoReturn:
        """Say what is wrong and exit with code 2, or another."""
        click.echo(f"{command}: {message}", err=True)
        sys.exit(exit_code)


def needs_torch(command: str) -> str:
    """Return what is said to a user who installed only what simulates."""
    return f"{command} needs torch, which is not installed: {to_install('torch')}"


def message_of(error: Exception) -> str:
    """Return what an error says to a user.

    Which file and what is wrong with it, without the system's number for that.
    """
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
    """Without line breaks, which click puts into lists of choices, and without what would control a terminal.

    Either may also come from a file or its name. Of what is very long, such as a name of thousands of letters, the
    beginning and the end are shown: the place and the rule.
    """
    joined = _BREAK.sub(" ", text)
    shown = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in joined)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST // 2]} ... {shown[-LONGEST // 2 :]}"


class OneLineGroup(OneLineCommand, click.Group):
    """The same for a group of commands; alone it prints its help, which has the first sentence of each whole."""

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
    """Return the end of a help text (`epilog` of a click command) with commands that a reader can try."""
    lines = "\n".join(f"  {command}" for command in commands)
    return f"\b\nExample{'s' * (len(commands) > 1)}:\n{lines}"


def command(*tried: str, name: str | None = None, **settings: Any) -> Callable[[Callable[..., None]], click.Command]:
    """Return the decorator of a command, whose help ends with commands that a reader can try.

    name: that of the function without it. settings: others of `click.command`.
    """
    return click.command(name, epilog=examples(*tried), **settings)


def general_help(program: str, rule: str) -> str:
    """Return what is said once for all commands of `program`: what becomes of files, and completion by the shell.

    rule: one more about files; its first line goes on where the general ones end.
    """
    return inspect.cleandoc(GENERAL.format(program=program, variable=program.upper().replace("-", "_"), rule=rule))
