"""The script that predicts whole programs, and measures them."""

import re
from pathlib import Path

import pytest

from tests.processes import run_python

ENDS_EARLY = """\
import torch
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
optimizer.step()
"""


def fidelity(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output, and the last line on stderr."""
    done = run_python("scripts/program_fidelity.py", *arguments)
    return done.returncode, done.stdout, done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["normal", "batch"])
def test_a_program_is_predicted_and_measured(policy: str) -> None:
    """One row, with times that are above zero, and the error that follows from them."""
    exit_code, output, _ = fidelity("--turns", "1", "--gloo-thread-policy", policy, "examples/fsdp.py gloo")
    assert exit_code == 0
    header, _, row = output.splitlines()
    assert header == "| program on 2 ranks | predicted ms | measured ms | error |"
    found = re.fullmatch(r"\| `examples/fsdp.py gloo` \| ([\d.]+) \| ([\d.]+) \| ([-+]\d+)% \|", row)
    assert found is not None
    predicted_ms, measured_ms, error = map(float, found.groups())
    assert predicted_ms > 0
    assert error == pytest.approx(100 * (predicted_ms / measured_ms - 1), abs=5)  # the milliseconds are rounded


@pytest.mark.slow
def test_a_program_of_too_few_steps(tmp_path: Path) -> None:
    """Its line says how many there must be."""
    script = tmp_path / "early.py"
    script.write_text(ENDS_EARLY)
    done = run_python("scripts/program_fidelity.py", "--timed", "normal", str(tmp_path), str(script))
    assert (done.returncode, done.stderr) == (1, f"{script}: made 1 steps: it must make 7 or more\n")


def test_a_program_that_there_is_not() -> None:
    """It is refused before the probes, which take a while."""
    assert fidelity("examples/fsdp.py gloo", "nowhere.py 1") == (
        2,
        "",
        "program_fidelity: nowhere.py: there is no such program",
    )
