"""The script that predicts whole programs, and measures them."""

import re
from pathlib import Path

import click
import pytest
from syrupy.assertion import SnapshotAssertion

from program_fidelity import main, measured_s
from tests.processes import run_python
from tests.refusals import refusals_in


@pytest.mark.slow
def test_a_program_is_predicted_and_measured() -> None:
    """One row, with times that are above zero, and the error that follows from them."""
    done = run_python("scripts/program_fidelity.py", "--turns", "1", "examples/ddp.py gloo")
    assert done.returncode == 0, done.stderr
    header, _, row = done.stdout.splitlines()
    assert header == "| program on 2 ranks | predicted ms | measured ms | error |"
    found = re.fullmatch(r"\| `examples/ddp.py gloo` \| ([\d.]+) \| ([\d.]+) \| ([-+]\d+)% \|", row)
    assert found is not None
    predicted_ms, measured_ms, error = map(float, found.groups())
    assert predicted_ms > 0
    half = 0.05  # ms: both times are rounded to a tenth, and on a fast machine there are few of them
    least, most = (predicted_ms - half) / (measured_ms + half), (predicted_ms + half) / (measured_ms - half)
    assert 100 * (least - 1) - 1 <= error <= 100 * (most - 1) + 1


@pytest.mark.slow
def test_a_program_that_fails_on_one_rank(tmp_path: Path) -> None:
    """The error is what that rank said last, and not what torchrun makes of it, also of one that makes no step."""
    script = tmp_path / "fails.py"
    script.write_text("import os\nassert os.environ['RANK'] == '0', 'the moon'\nimport time\ntime.sleep(60)\n")
    with pytest.raises(click.ClickException, match=r"fails.py on 2 ranks: (\[rank1\]: )?AssertionError: the moon$"):
        measured_s([str(script)], 2, "normal", tmp_path)
    script.write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(click.ClickException, match=r"fails.py: made 0 steps: it must make 7 or more$"):
        measured_s([str(script)], 2, "normal", tmp_path)


def test_a_program_that_there_is_not(monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    """It is refused in one line, before the probes, which take a while."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which the command sets
    assert refusals_in(Path(__file__).with_name("program_mistakes.txt"), main) == snapshot
