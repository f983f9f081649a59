"""What the command lines of all three packages share: errors in one line, types of options, help, files, torchrun."""

from ringsim.console.help import examples, general_help
from ringsim.console.local_ranks import check_local_rank, run_local_ranks
from ringsim.console.names import Choice, Name
from ringsim.console.numbers import parse_numbers, parse_share
from ringsim.console.one_line import MISTAKES, OneLineCommand, OneLineGroup, in_one_line, message_of
from ringsim.console.output import (
    STDOUT,
    json_option,
    output_file,
    print_result,
    require_one_stdout,
    say_wrote,
    wide_option,
)
from ringsim.console.parameters import (
    FILE,
    INT,
    OUTPUT,
    PICTURE,
    RATE,
    REAL,
    SIZE,
    TIME,
    FloatRange,
    IntRange,
    OutputFile,
    Quantity,
)
from ringsim.console.progress import Progress, clear_line, progress_bar, say
from ringsim.console.signals import ENDINGS, ended_once, handling
from ringsim.console.torchrun import TorchrunCommand, check_writable, num_ranks, require_torch

__all__ = [
    "ENDINGS",
    "FILE",
    "INT",
    "MISTAKES",
    "OUTPUT",
    "PICTURE",
    "RATE",
    "REAL",
    "SIZE",
    "STDOUT",
    "TIME",
    "Choice",
    "FloatRange",
    "IntRange",
    "Name",
    "OneLineCommand",
    "OneLineGroup",
    "OutputFile",
    "Progress",
    "Quantity",
    "TorchrunCommand",
    "check_local_rank",
    "check_writable",
    "clear_line",
    "ended_once",
    "examples",
    "general_help",
    "handling",
    "in_one_line",
    "json_option",
    "message_of",
    "num_ranks",
    "output_file",
    "parse_numbers",
    "parse_share",
    "print_result",
    "progress_bar",
    "require_one_stdout",
    "require_torch",
    "run_local_ranks",
    "say",
    "say_wrote",
    "wide_option",
]
