"""The lines of a log, without what launchers put before them."""

import re
from collections.abc import Iterator
from pathlib import Path

from ringsim.files import quoted, read_bytes
from ringsim.units import MAX_DIGITS, whole_number

# Open MPI's --tag-output and --timestamp-output, srun's --label, a log's own [TAG]:, and colours.
_PREFIX = re.compile(
    r"^(?:\s*(?:\[\d+,\s*\d+\]<std(?:out|err)>:?|\w{3} \w{3} +\d+ [\d:]+ \d{4}|\d{4}-\d\d-\d\d[T ][\d:.,]+Z?|"
    r"\[[A-Z]+\]:|\[\d+\]|\d+:)(?=[\s#<\[]|$))+"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MAX_BYTES = 64 * 2**20  # a log with more is not one table of results


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields each line with its number, from 1.

    Raises ValueError for a file that cannot be a log, OSError if it is unreadable.
    """
    data = read_bytes(path, MAX_BYTES)
    if b"\0" in data[:4096]:
        raise ValueError(f"{path}: is not text: give the output of nccl-tests, OSU or Gloo's benchmark")
    for number, line in enumerate(data.decode(errors="replace").splitlines(), start=1):
        yield number, clean(line)


def whole(text: str) -> int:
    """Returns the number of these digits. Raises ValueError for more digits than a quantity here can have."""
    number = whole_number(text)
    if number is None:
        raise ValueError(f"{quoted(text)}: must be a whole number of at most {MAX_DIGITS} digits 0 to 9")
    return number


def clean(line: str) -> str:
    """Returns the line as the benchmark printed it, without prefixes and colours."""
    return _PREFIX.sub("", _COLOUR.sub("", line)).strip()
