"""Without torch, as for somebody who installed only what simulates."""

import tomllib
from pathlib import Path

import pytest

from tests.processes import ROOT, run_python

# Torch then is not found, as where it is not installed.
ADVICE = "needs torch, which is not installed: run pip install '.[torch]' in your clone of ringsim"
WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.split(".")[0] == "torch" else find(name, *rest)
sys.argv = sys.argv[1:]
"""
RINGSIM = WITHOUT_TORCH + "from ringsim.cli import main; main()"
TRAINERS = WITHOUT_TORCH + "from trainers.cli.group import main; main(prog_name='trainers')"
BENCHMARK = WITHOUT_TORCH + "from collectives.benchmark.command import main; main(prog_name='benchmark')"


@pytest.mark.parametrize(
    "command", ["ringsim simulate --ranks 4 --size 1MiB", "ringsim plot --ranks 4 -o ring.png", "trainers train --help"]
)
def test_simulating_needs_no_torch(command: str, tmp_path: Path) -> None:
    """Nor does any help."""
    program = RINGSIM if command.startswith("ringsim") else TRAINERS
    done = run_python("-c", program, *command.split(), folder=tmp_path)
    assert (done.returncode, "torch" in done.stderr) == (0, False)


@pytest.mark.parametrize(
    ("program", "command", "place"),
    [
        (RINGSIM, "ringsim measure --ranks 2", "ringsim: measure"),
        (TRAINERS, "trainers --task mlp --steps 1", "trainers: this command"),
        (TRAINERS, "trainers --task mlp --steps 1 --ranks 2", "trainers: this command"),
        (TRAINERS, "trainers compare", "trainers: this command"),
    ],
)
def test_what_needs_torch_says_so_in_one_line(program: str, command: str, place: str, tmp_path: Path) -> None:
    """With the command that installs it, and nothing is left behind."""
    done = run_python("-c", program, *command.split(), folder=tmp_path)
    assert done.stderr == f"{place} {ADVICE}\n"
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])


@pytest.mark.parametrize("program", [WITHOUT_TORCH + "import collectives", BENCHMARK])
def test_importing_collectives_without_torch_names_the_extra(program: str, tmp_path: Path) -> None:
    """A traceback, as of any import that fails, but with what to do in its last line."""
    done = run_python("-c", program, folder=tmp_path)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last) == (1, f"ModuleNotFoundError: collectives {ADVICE}")


def test_what_trainers_exports_names_the_extra_without_torch() -> None:
    """The import of the package needs no torch, that of a name does."""
    done = run_python("-c", WITHOUT_TORCH + "import trainers; from trainers import DataParallel")
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last) == (1, f"ModuleNotFoundError: trainers.DataParallel {ADVICE}")


def test_torch_is_an_extra_that_development_has() -> None:
    """Both set-up commands install it; `pip install ringsim` does not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not any(name.startswith("torch") for name in project["dependencies"])
    assert any(name.startswith("torch") for name in project["optional-dependencies"]["torch"])
    assert any("torch" in name for name in project["optional-dependencies"]["dev"])
    assert "-e '.[torch]'" in (ROOT / "Makefile").read_text()
