"""`python -m collectives.recording REQUEST`: what `ringsim trace` starts; REQUEST is a `TraceRequest` as JSON."""

import json
import sys
from pathlib import Path

import click

from collectives.recording.program import ProgramError, record_program
from ringsim.console import in_one_line
from ringsim.files import decode
from ringsim.traces import TraceRequest

USER_MISTAKE = 2


def main() -> None:
    """Record the program, and end with exit code 2 and one line if that cannot be."""
    request = decode(TraceRequest, json.loads(sys.argv[1]))
    try:
        trace = record_program(request)
    except ProgramError as error:
        click.echo(f"ringsim trace: {in_one_line(str(error))}", err=True)
        sys.exit(USER_MISTAKE)
    trace.save(Path(request.output))


if __name__ == "__main__":
    main()
