"""Files of text, JSON and TOML: whatever is wrong with one is said in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ringsim.files.text_file import naming_place, parse_json, parse_toml, read_bytes, read_json, read_text
from tests.refusals import refusal_of, refused

DEEP = '{"a":' * 10**5


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_json, " \n", "is empty: must hold JSON"),
        (parse_json, '{\n"a": ', "line 2, column 6: is incomplete JSON: Expecting value; it was cut off or edited"),
        (parse_json, '{"a b": -Infinity}', "-Infinity: must be a finite number"),
        (parse_json, f"[1{'0' * 5000}]", "Exceeds the limit (4300 digits)..."),
        (parse_json, '{"a": 1, "b": {"a": 1, "a": 1}}', "'a' appears twice in one object: must appear once"),
        (parse_json, DEEP, "is nested too deeply"),
        (parse_toml, "a = [", "is not TOML: Invalid value (at end of document)"),
        (parse_toml, f"a = 1{'0' * 5000}", "is not TOML: Exceeds the limit (4300 digits)..."),
        (parse_toml, f"a = {'[' * 10**5}", "is nested too deeply"),
    ],
    ids=range(9),
)
def test_what_is_neither_json_nor_toml(parse: Callable[[str], object], text: str, message: str) -> None:
    """The place and the rule."""
    with refused(message):
        parse(text)


def test_files(tmp_path: Path) -> None:
    """The name of the file comes first; a mark at its beginning and Windows' line ends are nothing."""
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf[\r\n1]")
    assert (read_text(path), read_json(path)) == ("[\n1]", [1])
    path.write_bytes(b"[\xff]")
    with pytest.raises(ValueError, match=r"a\.json: is not UTF-8 text: invalid start byte at byte 1"):
        read_json(path)
    path.write_text("[")
    with pytest.raises(ValueError, match=r"a\.json: line 1, column 2: is incomplete JSON"):
        read_json(path)
    with pytest.raises(IsADirectoryError):
        read_json(tmp_path)
    with pytest.raises(ValueError, match=r"/dev/zero: must not have more than 3 bytes"):
        read_bytes(Path("/dev/zero"), 3)


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
