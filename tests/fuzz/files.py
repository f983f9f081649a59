"""The attack on files: whatever a file holds, reading it succeeds or ends in one line with exit code 2."""

import random as of_random
import re
import signal
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.case import chance, limited
from tests.fuzz.case import unpacked as unpacked  # noqa: PLC0414  descriptions of cases use it
from tests.fuzz.hostile_content import hostile
from tests.fuzz.readers import BY_NAME, READERS, Outcome, Reader

LIMIT_S = 30.0  # of processor time, which other work on the machine does not lengthen; most files take milliseconds
_WRONG = re.compile(r"\bnan ?(?:s|ms|us|ns|[kMGT]?B|B/s|%|x)\b|: NaN\b")


class TookTooLong(BaseException):
    """Not an Exception, which what is attacked may catch."""


@dataclass(frozen=True, slots=True)
class HostileFile:
    """A file for a reader, by its name; no content: a directory."""

    reader: str
    content: bytes | None

    def run(self) -> None:
        """Raise AssertionError unless the file is read or refused as it must be."""
        check(BY_NAME[self.reader], self.content)


def draw_case(random: of_random.Random) -> HostileFile:
    """Draw a hostile file for any of the readers."""
    reader = random.choice(READERS)
    if chance(random, 0.005):
        return HostileFile(reader.name, None)
    return HostileFile(reader.name, hostile(random, reader.example(), is_json=reader.suffix == ".json"))


def check(reader: Reader, content: bytes | None) -> None:
    """Raise AssertionError for a traceback, more than one line, another exit code, a silent NaN, or no end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"attacked{reader.suffix}"
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)
        _judge(reader, _outcome(reader, path))


def _outcome(reader: Reader, path: Path) -> Outcome:
    try:
        with limited(LIMIT_S, TookTooLong(), signal.SIGPROF, signal.ITIMER_PROF), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # NumPy's, which a user would see as lines on stderr
            return reader.read(path)
    except TookTooLong as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        raise AssertionError(f"{reader.name}: took more than {LIMIT_S:g} s of processor time:\n{where}") from None
    except Exception as error:
        where = "".join(traceback.format_exception(error)[-4:])
        raise AssertionError(f"{reader.name}: a traceback, not one line:\n{where}") from error


def _judge(reader: Reader, outcome: Outcome) -> None:
    said = f"{reader.name}: exit code {outcome.exit_code}, stdout {outcome.stdout[-500:]!r}, stderr {outcome.stderr!r}"
    if outcome.exit_code == 130:
        raise KeyboardInterrupt  # that was for the fuzzer; the command took it for its own
    if outcome.exit_code == 0:
        assert not _WRONG.search(outcome.stdout), f"a NaN that nobody refused: {said}"
        return
    # A program that can be read, and is wrong.
    is_refuted = outcome.exit_code == 1 and reader.suffix in (".xml", ".py")
    assert outcome.exit_code == 2 or is_refuted, said
    assert outcome.stderr.endswith("\n"), f"no message: {said}"
    # The rows of a log that were not read may be named before.
    lines = [line for line in outcome.stderr.removesuffix("\n").split("\n") if not line.startswith("left out: ")]
    is_grid = any(line.lstrip().startswith(("rank", "step")) for line in lines[1:])  # of a schedule that is wrong
    assert len(lines) == 1 or is_grid, f"more than one line: {said}"
    assert len(lines[0]) < 2000, f"a line that nobody reads to its end: {said}"
    assert lines[0].removeprefix("ringsim:").strip(), f"an empty message: {said}"
