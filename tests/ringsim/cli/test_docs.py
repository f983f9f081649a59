"""The examples in the docs, run as they stand there."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringsim import algorithm, load_network, predict_time
from ringsim.cli import main

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block of a page."""
    return BLOCK.findall((ROOT / page).read_text())


def printed(command: str) -> str:
    """What a command line of ringsim prints."""
    result = CliRunner().invoke(main, shlex.split(command, comments=True)[1:], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def examples(page: str) -> list[tuple[list[str], str | None]]:
    """The commands of each block that has only commands of ringsim, and the output below it, if it is shown."""
    following = [*blocks(page)[1:], ("", "")]
    return [
        (text.splitlines(), output if after == "text" else None)
        for (language, text), (after, output) in zip(blocks(page), following, strict=True)
        if language == "console" and all(line.startswith("ringsim ") for line in text.splitlines())
    ]


@pytest.mark.parametrize("page", ["docs/simulator.md", "docs/networks.md", "docs/ddp.md"])
def test_the_output_below_commands_is_what_they_print(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, since one may read what another wrote; in a directory in which docs/ and examples/ are."""
    for folder in ("docs", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    assert any(output for _, output in examples(page))
    for commands, output in examples(page):
        text = "".join(map(printed, commands))
        assert output is None or text.rstrip() == output.rstrip(), commands


@pytest.mark.parametrize("page", ["docs/rule.md", "docs/cost-model.md"])
def test_the_output_below_a_program_is_what_it_prints(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Between the two there may be text."""
    programs = [(text, index) for index, (language, text) in enumerate(blocks(page)) if language == "python"]
    assert programs
    for program, index in programs:
        exec(compile(program, page, "exec"), {})
        assert ("text", capsys.readouterr().out) == blocks(page)[index + 1]


def test_the_page_shows_the_file_that_its_command_takes() -> None:
    """But for the lines that name it."""
    shown = next(text for language, text in blocks("docs/simulator.md") if language == "toml")
    assert (ROOT / "docs/networks/failing.toml").read_text().endswith(f"\n\n{shown}")


@pytest.mark.parametrize("log", ["all_gather-2nodes", "all_reduce-8nodes"])
def test_the_logs_in_examples_are_what_the_simulator_predicts(log: str) -> None:
    """As their first lines say."""
    collective, _, nodes = log.removesuffix("nodes").partition("-")
    ring = algorithm("ring", 8 * int(nodes), collective)
    rows = [line.split() for line in (ROOT / f"examples/logs/{log}.log").read_text().splitlines() if line[0] != "#"]
    assert len(rows) == 11
    for row in rows:
        predicted_us = predict_time(ring, load_network("dgx-a100"), int(row[0])) * 1e6
        assert float(row[5]) == float(row[9]) == pytest.approx(predicted_us, abs=0.006)


def test_the_readme_shows_what_its_second_command_prints() -> None:
    """As it says."""
    commands = next(text for _, text in blocks("README.md") if text.startswith("ringsim plot")).splitlines()
    assert ("", printed(commands[1])) in blocks("README.md")


def test_the_readme_shows_what_its_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The first thing that a reader tries."""
    program = next(text for language, text in blocks("README.md") if language == "python")
    exec(compile(program, "README.md", "exec"), {})
    assert ("", capsys.readouterr().out) in blocks("README.md")
