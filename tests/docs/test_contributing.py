"""The three worked examples of CONTRIBUTING.md, made in a copy of the repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

PAGE = "CONTRIBUTING.md"
COPIED = ("ringsim", "collectives", "trainers", "tests", "scripts", "docs", "examples", "pyproject.toml", "README.md")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository as the page would have it: with its files, and its changes applied."""
    leave_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=leave_out)
        else:
            shutil.copy(ROOT / name, tmp_path)
    for block in blocks(PAGE):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text)
        if block.language == "diff":
            run(["git", "apply", "-"], tmp_path, block.text)
    return tmp_path


def run(command: list[str], folder: Path, text: str = "") -> str:
    """Return the output of a command that succeeds."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    python_path = f"{folder}{os.pathsep}{folder / 'scripts'}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": python_path, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(
        command, cwd=folder, env=environment, input=text, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_changes_apply_and_register(copy: Path) -> None:
    """The names are known, and what the page says of the algorithm is proved."""
    out = run(["ringsim", "verify", "--collective", "broadcast", "--algorithm", "linear", "--ranks", "7"], copy)
    assert out == "broadcast linear over 7 ranks: correct (6 steps, 6 transfers)\n"
    assert "eth-25g" in run(["ringsim", "networks"], copy)
    program = "from trainers.strategies import strategy_info; print(strategy_info('halving_doubling').sync)"
    assert run([sys.executable, "-c", program], copy) == "halving_doubling.HalvingDoubling\n"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_commands_of_the_page_pass(copy: Path) -> None:
    """The tests that it names, and what it starts."""
    commands = [block.text for block in blocks(PAGE) if block.language == "bash"]
    assert len(commands) == 3
    for command in commands:
        run(["bash", "-euo", "pipefail", "-c", command], copy)
