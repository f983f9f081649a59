"""Commands that torchrun or srun starts on several ranks: who speaks of a mistake, and what torchrun must set."""

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

import click

from ringsim.console.one_line import OneLineCommand, needs_torch
from ringsim.units import whole_number

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # set by torchrun and by `spawn`
GRACE_S = 20.0  # how long another rank leaves rank 0 to say what is wrong; torchrun ends it sooner


class TorchrunCommand(OneLineCommand):
    """Only the first rank of a host prints the help, and says what the user got wrong.

    The others would repeat it word for word. Each host has a first one, since each may have its own terminal. Under
    `spawn` no rank says it, since `spawn` itself does.
    """

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None and not is_first_of_host():
            option.callback = _exit_silently
        return option

    def refuse(self, message: str, command: str | None, exit_code: int = 2) -> NoReturn:
        tell_launcher(message, exit_code)
        if ERROR_FILE in os.environ and not is_under_torchrun():
            sys.exit(exit_code)
        started = "torch" in sys.modules and sys.modules["torch"].distributed.is_initialized()
        if not (is_first_of_host() or started):
            # torchrun ends all ranks as soon as one exits: that must not happen before rank 0 has spoken.
            time.sleep(GRACE_S)
            sys.exit(exit_code)
        super().refuse(message, command, exit_code)


def is_first_of_host() -> bool:
    """Whether torchrun or srun started this process as the first of its host, or neither started it."""
    return (os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID", "0")) == "0"


def is_under_torchrun() -> bool:
    """Return whether torchrun has started this process, and so will end it."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def tell_launcher(message: str, exit_code: int) -> None:
    """Leave the message, unless there is one, for the launcher's report of the failure: that of torchrun or of `spawn`.

    message: "" if this rank has said all.
    """
    file = os.environ.get(ERROR_FILE)
    if file and not Path(file).exists():
        with contextlib.suppress(OSError):
            failure = {"message": message, "timestamp": time.time(), "exit_code": exit_code}
            Path(file).write_text(json.dumps(failure))


def _exit_silently(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.exit()


def require_torch(command: str) -> None:
    """Raise ValueError, which names `command` and says how to install torch, if it is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise ValueError(needs_torch(command))


def num_ranks(how_to_start: str) -> int:
    """As torchrun says. Raises UsageError if this was not started by torchrun.

    how_to_start: the command line that would have done so.
    """
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
    """How many of them are on this host; 1 if it is not said."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def check_writable(option: str, folder: Path) -> None:
    """Find out before the work, not after it, that `folder`, or the nearest that exists above it, takes no files.

    Raises UsageError that names `option`, such as `--output report`.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise click.UsageError(f"{option}: cannot be written: {error.strerror}") from error
