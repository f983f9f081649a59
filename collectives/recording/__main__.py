"""`python -m collectives.recording REQUEST`: what `ringsim trace` starts; REQUEST is a `TraceRequest` as JSON."""

import json
import sys

from collectives.recording.program import ProgramError, record_program
from ringsim.console import in_one_line
from ringsim.files import decode
from ringsim.traces import TraceRequest

USER_MISTAKE = 2


def main() -> None:
    request = decode(TraceRequest, json.loads(sys.argv[1]))
    try:
        trace = record_program(request)
    except ProgramError as error:
        print(f"ringsim trace: {in_one_line(str(error))}", file=sys.stderr)
        sys.exit(USER_MISTAKE)
    trace.save(request.output)


if __name__ == "__main__":
    main()
