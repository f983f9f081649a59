"""Commands whose user's mistakes end in one line on stderr and exit code 2, never in a traceback."""

import os
import re
import sys
from typing import Any, NoReturn

import click

from ringsim.schedule import ScheduleError

MISTAKES = (click.ClickException, ValueError, OSError, ScheduleError)  # what a user got wrong, or the machine refuses
LONGEST = 1000  # characters of a message
_BREAK = re.compile(r"\s*[\r\n]\s*")


class OneLineCommand(click.Command):
    """A click command that turns ValueError, OSError and ScheduleError into one message, as it does usage errors.

    (The message of a ScheduleError goes on with the grid that shows the fault.)
    """

    def main(self, *args: Any, **extra: Any) -> Any:
        main: Any = super().main
        if not extra.pop("standalone_mode", True):
            return main(*args, **extra, standalone_mode=False)
        try:
            status = main(*args, **extra, standalone_mode=False)
        except click.UsageError as error:
            self.refuse(in_one_line(error.format_message()), error.ctx.command_path if error.ctx else self.name)
        except click.exceptions.Abort:
            sys.exit(130)
        except BrokenPipeError:  # the reader of our output had enough, such as `head`
            sys.exit(1)
        except MemoryError as error:
            self.refuse(f"not enough memory: {error}", self.name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != "torch":
                raise
            self.refuse(needs_torch("this command"), self.name)
        except MISTAKES as error:
            self.refuse(message_of(error), self.name)
        sys.exit(status if isinstance(status, int) else 0)

    def refuse(self, message: str, command: str | None) -> NoReturn:
        """Say what is wrong and exit with code 2."""
        click.echo(f"{command}: {message}", err=True)
        sys.exit(2)


def needs_torch(command: str) -> str:
    """What is said to a user who installed only what simulates."""
    return f"{command} needs torch, which is not installed: pip install 'ringsim[torch]'"


def message_of(error: Exception) -> str:
    """What an error says to a user: which file and what is wrong with it, without the system's number for that."""
    if isinstance(error, click.ClickException):
        return in_one_line(error.format_message())
    if isinstance(error, OSError) and error.strerror:
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else ""
        return in_one_line(f"{name}: {error.strerror}" if name else error.strerror)
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
    """The same for a group of commands."""
