"""`python -m collectives.recording REQUEST`: what `ringsim trace` starts; REQUEST is a `TraceRequest` as JSON."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import click

from collectives.recording.program import ProgramError, record_program
from collectives.recording.step_counter import USER_MISTAKE
from ringsim.console import in_one_line
from ringsim.files import decode
from ringsim.traces import INTERRUPTED, TraceRequest


def main() -> None:
    """Record the program, and end with exit code 2 and one line if that cannot be.

    `ringsim trace` sends SIGTERM after Ctrl-C; then the line says how far the program has come.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    request = decode(TraceRequest, json.loads(sys.argv[1]))
    try:
        trace = record_program(request)
    except ProgramError as error:
        _end(str(error), USER_MISTAKE)
    except KeyboardInterrupt as interrupt:
        _end(str(interrupt) or "interrupted", INTERRUPTED)
    trace.save(Path(request.output))


def _end(message: str, exit_code: int) -> NoReturn:
    click.echo(f"ringsim trace: {in_one_line(message)}", err=True)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
