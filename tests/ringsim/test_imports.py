"""Importing a package loads nothing heavy, and nothing of a package above it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import ringsim.cli", ["torch", "matplotlib", "networkx", "collectives", "trainers"]),
        ("import ringsim.cli; ringsim.cli.main(['--help'], standalone_mode=False)", ["torch", "matplotlib"]),
        ("import ringsim.report.plots.run_pages", ["torch"]),
        ("import sys; sys.path.insert(0, 'scripts'); import netns_testbed", ["torch", "matplotlib", "collectives"]),
        (
            "import trainers; trainers.spawn, trainers.load_task, trainers.TrainConfig\n"
            "import trainers.cli.group, trainers.cli.compare, trainers.launch.environment, trainers.launch.rendezvous\n"
            "import trainers.strategies, trainers.comparison",
            ["torch", "matplotlib"],
        ),
        ("import collectives", ["trainers", "matplotlib"]),
    ],
)
def test_nothing_heavy_or_higher_is_loaded(code: str, unwanted: list[str]) -> None:
    """Neither torch (seconds) nor matplotlib before they are needed, and no floor loads one above it."""
    check = f"{code}; import sys; print([name for name in {unwanted} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
