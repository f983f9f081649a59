"""The attack on files in a short form, and its own parts."""

import random
from pathlib import Path

import pytest

from tests.fuzz import files
from tests.fuzz.case import describe
from tests.fuzz.files import check, draw_case
from tests.fuzz.readers import READERS, Outcome, Reader

NUM_CASES = 20  # of each seed: together some seconds


@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
def test_what_is_right_is_read(reader: Reader, tmp_path: Path) -> None:
    """Otherwise the attack would not get far into the reader."""
    path = tmp_path / f"right{reader.suffix}"
    path.write_bytes(reader.example())
    outcome = reader.read(path)
    assert (outcome.exit_code, outcome.stderr) == (0, "")


@pytest.mark.parametrize("seed", range(6))
def test_hostile_files(seed: int) -> None:
    """Each is read, or refused in one line; what was found with others has a test beside its reader's."""
    draws = random.Random(seed)
    for _ in range(NUM_CASES):
        case = draw_case(draws)
        try:
            case.run()
        except AssertionError as error:
            raise AssertionError(f"{describe(case)}\n{error}") from None


def raising(_: Path) -> Outcome:
    """What a reader without any check would do."""
    raise RecursionError("too deep")


def spinning(_: Path) -> Outcome:
    """A loop without an end, which catches whatever it can."""
    while True:
        try:
            sum(range(10**5))
        except Exception:
            continue


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (raising, "a traceback, not one line:.*RecursionError: too deep"),
        (spinning, "took more than 0.2 s of processor time:.*spinning"),
        (lambda _: Outcome(1, "", "no\n"), "exit code 1"),
        (lambda _: Outcome(2, "", ""), "no message"),
        (lambda _: Outcome(2, "", "one\ntwo\n"), "more than one line"),
        (lambda _: Outcome(2, "", "x" * 3000 + "\n"), "a line that nobody reads to its end"),
        (lambda _: Outcome(2, "", "ringsim: \n"), "an empty message"),
        (lambda _: Outcome(0, "time  nan s\n", ""), "a NaN that nobody refused"),
        (lambda _: Outcome(0, '{"time_s": NaN}\n', ""), "a NaN that nobody refused"),
    ],
)
def test_faults_are_noticed(read: object, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a reader can do wrong."""
    monkeypatch.setattr(files, "LIMIT_S", 0.2)
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        check(Reader("made up", ".txt", bytes, read), b"")  # type: ignore[arg-type]
