"""A user's own algorithm, by file and function."""

import os
import warnings
from pathlib import Path

import pytest

from ringsim import Collective, ScheduleError
from ringsim.registry import build
from ringsim.schedule import verify
from tests.refusals import refused

EXCHANGE = """
from __future__ import annotations
from dataclasses import dataclass
from ringsim import Collective, Schedule, Transfer

@dataclass
class Pair:
    first: int
    second: int

def exchange(num_ranks):
    pair = Pair(0, 1)
    there, back = Transfer(pair.first, pair.second, 0, True), Transfer(pair.second, pair.first, 0, True)
    return Schedule.from_transfers(Collective.ALL_REDUCE, "exchange", num_ranks, 1, [[there, back]])
"""


def in_file(folder: Path, text: str) -> Path:
    """A user's file; its folder is not where Python looks for modules."""
    path = folder / "my.py"
    path.write_text(text)
    return path


def test_it_is_built_as_the_built_ins_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule that the function returns is named after its file, also by a relative path, and can be proved."""
    in_file(tmp_path, EXCHANGE)
    monkeypatch.chdir(tmp_path)
    schedule = build(Collective.ALL_REDUCE, "my.py:exchange", 2)
    assert str(schedule) == "all_reduce my.py:exchange over 2 ranks"
    assert verify(schedule)[:2] == (1, 2)


def test_a_change_of_the_file_counts(tmp_path: Path) -> None:
    """The file is read anew, even within the second and with as many bytes, so no stale bytecode is used."""
    path = in_file(tmp_path, EXCHANGE)
    before = path.stat()
    build(Collective.ALL_REDUCE, f"{path}:exchange", 2)
    path.write_text(EXCHANGE.replace("Pair(0, 1)", "Pair(1, 0)"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    (step,) = build(Collective.ALL_REDUCE, f"{path}:exchange", 2).steps
    assert [transfer.src for transfer in step] == [1, 0]


def test_it_is_proved_wherever_it_is_used(tmp_path: Path) -> None:
    """A wrong one would else be simulated, ranked and drawn as if it were right."""
    wrong = in_file(tmp_path, EXCHANGE.replace("[[there, back]]", "[[there]]"))
    with pytest.raises(ScheduleError, match="rank 0: chunk 0 ends with rank 1 counted 0 times"):
        build(Collective.ALL_REDUCE, f"{wrong}:exchange", 2)


def test_an_exception_is_named_with_its_line(tmp_path: Path) -> None:
    """Of the user's file, the last one that was being executed."""
    path = in_file(tmp_path, "def helper(n):\n    return {}[n]\n\ndef broken(n):\n    return helper(n)\n")
    with pytest.raises(ValueError, match=r"line 2: it raised KeyError: 6"):
        build(Collective.ALL_REDUCE, f"{path}:broken", 6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def other(n): pass\ndef _helper(n): pass\ndef third(n): pass",
            "there is no function 'mine' in '{path}': name a function of the file: {path}:other or {path}:third",
        ),
        ("def mine(n)", "it raised SyntaxError: expected ':' (my.py, line 1)"),
        ("import no_such_module", "line 1: it raised ModuleNotFoundError: No module named 'no_such_module'"),
        ("def mine(n): return 1 / (n - 2)", "line 1: it raised ZeroDivisionError: division by zero"),
        ("def mine(n): raise RuntimeError('two\\n  lines')", "line 1: it raised RuntimeError: two lines"),
        ("def mine(n): raise SystemExit", "line 1: it raised SystemExit"),
        ("def mine(): pass", "it raised TypeError: mine() takes 0 positional arguments but 1 was given"),
        ("def mine(n): return [n]", "it returned list, not a Schedule"),
        (
            "from ringsim import ring_all_gather as mine",
            "it is all_gather over 2 ranks; asked for is all_reduce over 2: give the collective all_gather "
            "(--collective all_gather)",
        ),
        (
            "from ringsim import Schedule\ndef mine(n): return Schedule.from_columns(10, 'x', n, 1, [])",
            "line 2: it raised ValueError: collective 10: must be one of Collective",
        ),
        (
            "from ringsim import Collective, Schedule\ndef mine(n): return Schedule(Collective.REDUCE, 'x', n, 1, [])",
            "line 2: it raised ValueError: steps []: must be Steps, which Schedule.from_transfers makes of lists",
        ),
    ],
)
def test_what_is_wrong_with_it_is_said_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    """The message names the file, the function and the fault."""
    path = in_file(tmp_path, text)
    with refused(f"algorithm '{path}:mine': " + message.format(path=path)):
        build(Collective.ALL_REDUCE, f"{path}:mine", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (EXCHANGE, "name a function of the file: {path}:exchange"),
        ("def (", "it raised SyntaxError: invalid syntax (<unknown>, line 1)"),
        (None, "there is no file '{path}'"),
    ],
)
def test_a_file_alone_is_answered_with_its_functions(tmp_path: Path, text: str | None, message: str) -> None:
    """In the form in which one is to be named; the file is not run for that."""
    path = tmp_path / "my.py"
    if text is not None:
        path.write_text(text)
    with refused(f"algorithm '{path}': " + message.format(path=path)):
        build(Collective.ALL_REDUCE, str(path), 2)
    with refused(f"algorithm '{tmp_path}:mine': there is no file '{tmp_path}'"):  # a folder is none
        build(Collective.ALL_REDUCE, f"{tmp_path}:mine", 2)


def test_a_warning_of_pythons_adds_no_line(tmp_path: Path) -> None:
    """A warning of Python about the file becomes part of the error, or is dropped."""
    file = tmp_path / "mine.py"
    file.write_text("def ring(num_ranks):\n    return [[]](num_ranks)\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="it raised TypeError: 'list' object is not callable"):
            build(Collective.ALL_REDUCE, f"{file}:ring", 2)
