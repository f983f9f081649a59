"""`python -m collectives.recording REQUEST [REPORT]`: what `ringsim trace` starts; REQUEST is a `TraceRequest` as JSON.

The file REPORT gets the exit code as soon as it is known, before the program's functions of atexit run; or the place of
the program, if a signal such as SIGSEGV ends the process.
"""

import atexit
import faulthandler
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

from collectives.recording.program import record_program
from collectives.recording.step_counter import INTERRUPTING
from ringsim.console import in_one_line
from ringsim.files import decode
from ringsim.traces import INTERRUPTED, TraceRequest

USER_MISTAKE = 2  # the exit code
_SIGNALS = signal.SIGTERM, INTERRUPTING
_ALL_SIGNALS = signal.valid_signals()
ENDING_S = 5.0  # in which the program's own functions of atexit may end


def main() -> None:
    """Record the program, or end with exit code 2 and one line.

    After Ctrl-C, `ringsim trace` sends SIGTERM; then the line says how far the program has come.
    """
    _interrupt_at_signals()
    report = Path(sys.argv[2] if len(sys.argv) > 2 else os.devnull)
    faulthandler.enable(report.open("ab"), all_threads=False)
    faulthandler.enable = lambda *_, **__: None  # if the program asks for it, too, the report is still told
    program = ""
    try:
        request = decode(TraceRequest, json.loads(sys.argv[1]))
        program = request.program
        record_program(request, partial(_end, report, USER_MISTAKE)).save(Path(request.output))
    except Exception as error:
        is_told = isinstance(error, ValueError | OSError)  # else the recorder is wrong, which must not cost a traceback
        _end(report, USER_MISTAKE, str(error) if is_told else f"{program}: {type(error).__name__}: {error}")
    except KeyboardInterrupt as interrupt:
        _end(report, INTERRUPTED, str(interrupt) or "interrupted")
    _end(report, 0)


def _interrupt_at_signals() -> None:
    """Let SIGTERM and the recorder's own signal raise KeyboardInterrupt here, and SIGTERM end a forked process.

    Also one that is only just forked: Python's first function after a fork would swallow the KeyboardInterrupt, and
    the process live on.
    """
    masks = threading.local()

    def before() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def in_child() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        restore()

    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler)
    os.register_at_fork(before=before, after_in_parent=restore, after_in_child=in_child)


def _end(report: Path, exit_code: int, message: str = "") -> NoReturn:
    """End the process as Python does, but without waiting for threads."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)  # at once; their handlers may be the program's, and raise
    for number in _ALL_SIGNALS:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)  # in all threads
    with suppress(OSError):  # the disk is full, or the program may open no more files
        report.write_text(f"{exit_code}\n")
        faulthandler.dump_traceback_later(ENDING_S, exit=True, file=report.open("ab"))
    if message:
        with suppress(Exception):
            click.echo(f"ringsim trace: {in_one_line(message)}", err=True)
    with suppress(Exception):
        atexit._run_exitfuncs()
        sys.stdout.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    main()
