"""The example in docs/collectives.md, run as it stands there."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "collectives.md"


def test_the_script_that_is_shown_is_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    """The program prints what stands below it."""
    program, shown = re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[:2]
    exec(compile(program, str(PAGE), "exec"), {})
    assert capsys.readouterr().out == shown
