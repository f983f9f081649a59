"""A user's own algorithm, by file and function."""

import os
import warnings
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from ringsim.registry import build
from ringsim.schedule import Collective, ScheduleError, verify
from tests.refusals import said_by
from tests.ringsim.commands import written

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
    return written(folder / "my.py", text)


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


WRONG = (
    "def other(n): pass\ndef _helper(n): pass\ndef third(n): pass",
    "def mine(n)",
    "import no_such_module",
    "def helper(n):\n    return {}[n]\n\ndef mine(n):\n    return helper(n)\n",
    "def mine(n): raise RuntimeError('two\\n  lines')",
    "def mine(n): raise SystemExit",
    "def mine(): pass",
    "def mine(n): return [n]",
    "from ringsim import ring_all_gather as mine",
    "from ringsim import Schedule\ndef mine(n): return Schedule.from_columns(10, 'x', n, 1, [])",
    "from ringsim import Collective, Schedule\ndef mine(n): return Schedule(Collective.REDUCE, 'x', n, 1, [])",
)


def refusal(name: str) -> str:
    """The message of the error with which an algorithm of this name is refused."""
    return said_by(ValueError, build, Collective.ALL_REDUCE, name, 2)


def test_what_is_wrong_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    """The file, the function and the fault; a file alone is answered with its functions, and not run for that."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    said = {text: refusal(f"{in_file(tmp_path, text).name}:mine") for text in WRONG}
    said |= {f"{text} alone": refusal(in_file(tmp_path, text).name) for text in (EXCHANGE, "def (")}
    said |= {name: refusal(name) for name in ("none.py", "none.py:mine", "folder:mine")}
    assert not [message for message in said.values() if "\n" in message]
    assert said == snapshot


def test_a_warning_of_pythons_adds_no_line(tmp_path: Path) -> None:
    """A warning of Python about the file becomes part of the error, or is dropped."""
    file = in_file(tmp_path, "def ring(num_ranks):\n    return [[]](num_ranks)\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="it raised TypeError: 'list' object is not callable"):
            build(Collective.ALL_REDUCE, f"{file}:ring", 2)
