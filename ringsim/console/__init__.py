"""What the command lines of all three packages share: errors in one line, types of options, torchrun."""

from ringsim.console.local_ranks import check_local_rank, run_local_ranks
from ringsim.console.numbers import parse_numbers, parse_share
from ringsim.console.one_line import MISTAKES, OneLineCommand, OneLineGroup, message_of
from ringsim.console.parameters import FILE, OUTPUT, PICTURE, RATE, SIZE, TIME, OutputFile, Quantity
from ringsim.console.progress import Progress, clear_line, progress_bar
from ringsim.console.signals import ended_once
from ringsim.console.torchrun import TorchrunCommand, check_writable, num_ranks

__all__ = [
    "FILE",
    "MISTAKES",
    "OUTPUT",
    "PICTURE",
    "RATE",
    "SIZE",
    "TIME",
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
    "message_of",
    "num_ranks",
    "parse_numbers",
    "parse_share",
    "progress_bar",
    "run_local_ranks",
]
