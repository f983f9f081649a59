"""The programs in examples/ run under torchrun, and learn."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("example", ["ddp.py", "fsdp.py"])
def test_it_learns_on_ring(example: str) -> None:
    """By two ranks, in the way its first line says; nothing is complained about."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run(
        [*torchrun, str(ROOT / "examples" / example), "ring"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    losses = [float(loss) for loss in re.findall(r"^ring: step \d+: loss (\S+)$", result.stdout, re.MULTILINE)]
    assert len(losses) == 2
    assert losses[1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("example", "start"),
    [
        ("ddp.py", "torchrun --nproc-per-node 2 examples/ddp.py ring"),
        ("fsdp.py", "torchrun --nproc-per-node 2 examples/fsdp.py ring"),
        ("own_task.py", "python -m trainers --task own_task:Sine --ranks 2, in its folder"),
    ],
)
def test_without_a_launcher_it_says_how_to_start_it(example: str, start: str) -> None:
    """In one line, with exit code 2."""
    environment = {name: value for name, value in os.environ.items() if name != "RANK"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / example)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{example}: start it with {start}\n")
