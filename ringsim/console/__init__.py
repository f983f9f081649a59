"""Common parts of all command lines: errors, progress, option types, files, and local ranks."""

from click import INT, IntRange

from ringsim.console.local_ranks import ended_once, endings_noted, handling, run_local_ranks, spawn
from ringsim.console.one_line import (
    OneLineCommand,
    OneLineGroup,
    Progress,
    TorchrunCommand,
    check_writable,
    clear_line,
    command,
    examples,
    general_help,
    in_one_line,
    is_under_torchrun,
    message_of,
    needs_torch,
    num_ranks,
    progress_bar,
    ranks_here,
    require_torch,
    say,
)
from ringsim.console.parameters import (
    FILE,
    OUTPUT,
    PICTURE,
    RATE,
    REAL,
    SIZE,
    STDOUT,
    TIME,
    Choice,
    FloatRange,
    Name,
    OutputFile,
    Quantity,
    json_option,
    parse_numbers,
    parse_share,
    print_result,
    require_one_stdout,
    say_wrote,
    wide_option,
    write_output,
)
