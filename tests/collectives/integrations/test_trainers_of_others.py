"""Lightning and accelerate train on the backend "ring"; what of theirs there is decides what is run."""

import ast
import re
from pathlib import Path

import pytest

from tests.processes import run_python

PRINTED = re.compile(r"^on (\w+): loss and weights (\[.*\]), the same on both: (\w+)$", re.MULTILINE)

pytestmark = pytest.mark.slow


def under_torchrun(program: str, *arguments: str) -> tuple[str, list[float], str]:
    """Return what a program prints on two ranks: backend, loss, weights, and whether both ranks have the same."""
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
    done = run_python(*torchrun, str(Path(__file__).parent / program), *arguments)
    printed = PRINTED.search(done.stdout)
    assert done.returncode == 0, done.stderr
    assert printed is not None, done.stdout + done.stderr
    return printed[1], ast.literal_eval(printed[2]), printed[3]


@pytest.mark.parametrize("library", ["lightning", "accelerate"])
def test_it_trains_on_ring_as_on_gloo(library: str, tmp_path: Path) -> None:
    """A mean of losses over ranks included, bit for bit, as two ranks are; and it learns."""
    pytest.importorskip(library, reason=f"{library} is not installed: pip install '.[integrations]'")
    folder = [str(tmp_path)] if library == "lightning" else []
    on_ring, on_gloo = (under_torchrun(f"{library}_program.py", backend, *folder) for backend in ("ring", "gloo"))
    loss, *weights = on_ring[1]
    assert (on_ring, on_gloo) == tuple((backend, [loss, *weights], "True") for backend in ("ring", "gloo"))
    assert loss < 0.1
    assert weights == pytest.approx([1.0, -2.0, 3.0], abs=0.1)
