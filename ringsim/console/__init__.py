"""The common parts of all command lines: errors in one line, types of options, help, files, torchrun."""

from click import INT, IntRange

from ringsim.console.local_ranks import ended_once, endings_noted, handling, run_local_ranks, spawn
from ringsim.console.one_line import (
    OneLineCommand,
    OneLineGroup,
    command,
    examples,
    general_help,
    in_one_line,
    message_of,
    needs_torch,
)
from ringsim.console.output import (
    STDOUT,
    Progress,
    clear_line,
    json_option,
    output_file,
    print_result,
    progress_bar,
    require_one_stdout,
    say,
    say_wrote,
    wide_option,
)
from ringsim.console.parameters import (
    FILE,
    OUTPUT,
    PICTURE,
    RATE,
    REAL,
    SIZE,
    TIME,
    Choice,
    FloatRange,
    Name,
    OutputFile,
    Quantity,
    parse_numbers,
    parse_share,
)
from ringsim.console.torchrun import TorchrunCommand, check_writable, is_under_torchrun, num_ranks, require_torch
