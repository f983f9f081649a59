"""`Launcher`: programs that start ranks, started again and again by forking a process that has loaded torch already.

To load it takes each of a launch's three processes seconds. All else is as when a user starts it: a session of its
own, ranks of `ringsim.console`, and signals as they are by default.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringsim.console.local_ranks import _run_rank as run_rank
from tests.forked import START_LIMIT_S, Forked, answers_of, be_a_program, forget_signals, nursery
from tests.ranks import run_script

NOWHERE = Path(os.devnull)
Program = Callable[[list[str]], None]


class Launcher:
    """One launch at a time."""

    def __init__(self) -> None:
        self._launched: Forked | None = None

    def start(self, arguments: list[str], errors: Path, output: Path = NOWHERE, program: Program | None = None) -> int:
        """The number of the process, in a session of its own; its stderr goes to `errors`, its stdout to `output`.

        program: None: the command `trainers`.
        """
        errors.write_bytes(b"")
        self._launched = nursery().fork(errors)
        self._launched.start(_make_session, str(output), os.getcwd())
        assert answers_of([self._launched], START_LIMIT_S), "a launch does not start"
        self._launched.start(be_a_program, _launch, program or trainers, arguments)
        return self._launched.pid

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, -n after the signal n; None if it is still running after so long."""
        assert self._launched is not None
        return self._launched.wait(timeout_s)

    def close(self) -> None:
        """End the launch, if there still is one."""
        if self._launched is not None:
            self._launched.signal(signal.SIGKILL)


# What follows runs in the launched process.


def trainers(arguments: list[str]) -> None:
    """Be the command of this name."""
    from trainers.cli.group import main as command

    command.main(args=arguments, prog_name="trainers")


def script(arguments: list[str]) -> None:
    """Be `python FILE ARGUMENTS`."""
    run_script(0, Path(arguments[0]), arguments[1:])


def _make_session(output: str, folder: str) -> None:
    os.setsid()
    os.chdir(folder)
    for target, path in enumerate((os.devnull, output)):
        os.dup2(os.open(path, os.O_RDONLY if target == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), target)


def _launch(program: Program, arguments: list[str]) -> None:
    from ringsim.console import local_ranks

    local_ranks.START_METHOD = "fork"
    local_ranks._run_rank = _run
    program(arguments)


def _run(target: Callable[..., Any], arguments: Any) -> None:
    forget_signals()  # which the launch handles
    run_rank(target, arguments)
