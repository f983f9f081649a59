"""Files of text, JSON and TOML: whatever is wrong with one is said in one line."""

import math
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from ringsim.files.text_file import naming_place, parse_json, parse_toml, read_bytes, read_json, read_text, toml_text
from tests.refusals import refusal_of, said_by

DEEP = '{"a":' * 10**5


MANY = f"1{'0' * 5000}"  # digits
NO_JSON = (" \n", '{\n"a": ', '{"a b": -Infinity}', f"[{MANY}]", '{"a": 1, "b": {"a": 1, "a": 1}}', DEEP)
NO_TOML = ("a = [", f"a = {MANY}", f"a = {'[' * 10**5}")


def test_what_is_neither_json_nor_toml(snapshot: SnapshotAssertion) -> None:
    """The place and the rule."""
    said = [said_by(ValueError, parse_json, text) for text in NO_JSON]
    said += [said_by(ValueError, parse_toml, text) for text in NO_TOML]
    assert [message.partition(" for integer string")[0] for message in said] == snapshot  # the rest is Python's


def test_what_is_written_as_toml_is_read() -> None:
    """Also infinity, odd keys and mixed lists; None is left out, but cannot be in a list."""
    inner = {"x y": {"": [1, {"a": [math.inf], "ü.": {}}]}, "rows": [{"b": -math.inf}, {"c-1": 0.5}]}
    table = {"a\n": 'b"\x7f', "mixed": [{"a": 1}, 2], "seen": True, "t.u": inner}
    assert parse_toml(toml_text(table | {"left_out": None})) == table
    assert toml_text({"rate": math.nan, "sizes": (1, 2)}) == "rate = nan\nsizes = [1, 2]\n"
    assert "None" in said_by(ValueError, toml_text, {"sizes": [1, None]})


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    """The name of the file comes first; a mark at its beginning and Windows' line ends are nothing."""
    monkeypatch.chdir(tmp_path)
    path, told = Path("a.json"), []
    path.write_bytes(b"\xef\xbb\xbf[\r\n1]")
    assert (read_text(path), read_json(path)) == ("[\n1]", [1])
    for content in (b"[\xff]", b"["):
        path.write_bytes(content)
        told.append(said_by(ValueError, read_json, path))
    told.append(said_by(IsADirectoryError, read_json, Path("..")))
    assert [*told, said_by(ValueError, read_bytes, Path("/dev/zero"), 3)] == snapshot


COMMANDS = ("calibrate FILE", "compare --network gbe FILE", "ddp --profile FILE", "ddp --layers FILE",
            "simulate --order FILE", "networks FILE.toml", "import FILE",
            "verify --algorithm FILE.py:ring")  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("content", [DEEP, "", "{", "\0\xff", None], ids=["deep", "empty", "cut", "binary", "/"])
def test_every_command_says_so_in_one_line(tmp_path: Path, command: str, content: str | None) -> None:
    """Every command refuses a file that is nested deeply, empty, cut off or binary, or a directory."""
    path = tmp_path / f"FILE{Path(command.partition('FILE')[2].partition(':')[0]).name}"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content.encode("latin-1"))
    assert str(path) in refusal_of(command.replace("FILE", str(tmp_path / "FILE")))


def test_an_error_gets_the_place_before_it() -> None:
    """A ValueError only; what is wrong with the machine has its own words."""
    with pytest.raises(ValueError, match="^probes\\[3\\]: must be a list$"), naming_place("probes[3]"):
        raise ValueError("must be a list")
    with pytest.raises(OSError, match="^gone$"), naming_place("probes[3]"):
        raise OSError("gone")
