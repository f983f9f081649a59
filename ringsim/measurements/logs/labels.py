"""`without_labels`: the lines of a log as the benchmark printed them, whatever a launcher has put before each.

Launchers name the host, the rank or the stream: `node01: `, `0: `, `[1,0]<stdout>:`. No list of them is complete, so
the tables tell: what stands before all their rows, but for numbers, is a label.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from ringsim.measurements.logs import gloo, nccl_tests, osu
from ringsim.measurements.logs.nccl_rows import ELEMENT_BYTES

_ROW = re.compile(rf"(?<![\w.])\d+\s+\d+\s+(?:{'|'.join(ELEMENT_BYTES)})\s")  # of nccl-tests: size, count and type
_DECIMAL = re.compile(r"\d\.\d")
_MOST_LABELS = 16  # of one log: where there are more, they are no labels


def without_labels(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines without the labels that stand before the rows and headers of tables."""
    labels = _labels(line for _, line in lines)
    pattern = re.compile(f"(?:{'|'.join(sorted(map(_pattern, labels), key=len, reverse=True))})") if labels else None
    for number, line in lines:
        yield number, pattern.sub("", line, count=1).strip() if pattern and pattern.match(line) else line


def _labels(lines: Iterable[str]) -> set[str]:
    """Return the labels, with 0 for all numbers; without those of rows where a row has none."""
    rows: set[str] = set()
    headers: set[str] = set()
    for line in lines:
        if match := _ROW.search(line):
            if len(_DECIMAL.findall(line, match.start())) > 1 and not line.startswith("#"):
                rows.add(_label(line[: match.start()]))
        elif match := next(filter(None, (header.search(line) for header in _HEADERS)), None):
            headers.add(_label(line[: match.start()]))
    labels = (headers | (set() if "" in rows else rows)) - {""}
    return labels if len(labels) <= _MOST_LABELS else set()


_HEADERS = (nccl_tests.HEADER, osu.TITLE, gloo.HEADER)


def _label(text: str) -> str:
    """Return the text with 0 for all numbers; "" if numbers are all that there is, as they may belong to the table."""
    return re.sub(r"\d+", "0", " ".join(text.split())) if re.search(r"[^\d\s.#]", text) else ""


def _pattern(label: str) -> str:
    """Return a pattern of the label with any numbers and blanks, and nothing that is longer by a part of a word."""
    words = [re.sub(r"\d+", r"\\d+", re.escape(word)) for word in label.split()]
    return r"\s+".join(words) + (r"(?!\w)" if label[-1].isalnum() else "")
