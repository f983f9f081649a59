"""The checks of words, names and imports, on a small repository with one fault of each kind."""

from pathlib import Path

import click
import pytest
from syrupy.assertion import SnapshotAssertion

import lint

FILES = {
    "docs/page.md": "Right.\nSo\nmany ranks.\n```\nso many\n```\n",
    "ringsim/one/__init__.py": "from ringsim.one.parts import Part, unused, used\n",
    "ringsim/one/parts.py": "class Part: ...\nfound = 1\nerror = ValueError(f'{found}, or take 2')\n",
    "collectives/two/__init__.py": "from ringsim.one import Part\n",
    "collectives/two/more.py": '"""A sum of its own."""\nfrom ringsim.one.parts import Part\nclass Part: ...\n',
    "trainers/three.py": "from ringsim import one\none.used()\n",
    "scripts/run.py": "option('--ranks', help='Of all ranks.')\noption('--hosts', help='Number of hosts.')\n",
}


def test_each_fault_has_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    """Correct text, names and imports are not."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    assert [fault.partition(": write")[0] for fault in lint.faults()] == snapshot


def test_commands_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    """Results as JSON, names that complete, and the code of the programs that a figure starts."""
    command = click.Command("print", params=[click.Option(["--algorithm"]), click.Option(["--file"])])
    (tmp_path / "figures.toml").write_text(
        '[x]\npage = "x.md"\ncommands = ["python scripts/a.py", "torchrun -m b.c"]\nmeasures = ["b"]\nminutes = 1\n'
    )
    monkeypatch.setattr(lint, "REGISTRY", tmp_path / "figures.toml")
    assert [fault.rpartition(": ")[0] for fault in (*lint.wrong_options((command,)), *lint.wrong_figures())] == snapshot
