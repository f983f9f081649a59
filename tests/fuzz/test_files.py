"""The attack on files in a short form, and its own parts."""

import random
from itertools import islice
from pathlib import Path

import pytest

from tests.fuzz import files
from tests.fuzz.files import Case, cases, check, unpacked
from tests.fuzz.readers import READERS, Outcome, Reader

SEEDS = range(6)
NUM_CASES = 60  # of each seed: together some seconds


@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
def test_what_is_right_is_read(reader: Reader, tmp_path: Path) -> None:
    """Otherwise the attack would not get far into the reader."""
    path = tmp_path / f"right{reader.suffix}"
    path.write_bytes(reader.example())
    outcome = reader.read(path)
    assert (outcome.exit_code, outcome.stderr) == (0, "")


@pytest.mark.parametrize("seed", SEEDS)
def test_hostile_files(seed: int) -> None:
    """Each is read, or refused in one line; what was found with others has a test beside its reader's."""
    for case in islice(cases(random.Random(seed)), NUM_CASES):
        try:
            case.run()
        except AssertionError as error:
            raise AssertionError(f"{case.describe()}\n{error}") from None


def test_a_seed_stands_for_its_cases() -> None:
    """And a description for its case; smaller ones are smaller."""
    first, again = (list(islice(cases(random.Random(7)), 20)) for _ in range(2))
    assert first == again
    for case in first:
        code, call = case.describe().splitlines()
        assert code.startswith("from tests.fuzz.files import Case")
        assert eval(call.removesuffix(".run()"), {"Case": Case, "unpacked": unpacked}) == case
        for smaller in islice(case.smaller(), 50):
            assert isinstance(smaller.content, bytes)
            assert len(smaller.content) < len(case.content or b"")


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
        check(Reader("made up", "lines", ".txt", bytes, read), b"")  # type: ignore[arg-type]
