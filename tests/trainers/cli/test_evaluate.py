"""`trainers evaluate` and `trainers sample`: of runs that were made before."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from syrupy.assertion import SnapshotAssertion

from tests.fuzz.launcher import Launcher
from tests.refusals import refusal_of, refusals_in
from tests.trainers.commands import launch, result_of
from trainers.checkpoints.checkpoint import Checkpoint, save_checkpoint
from trainers.cli.group import main
from trainers.tasks.model import TEMPERATURE

SMALL = ["--d-model", "16", "--heads", "2", "--layers", "1", "--d-ff", "16", "--sequence-length", "16", "--seed", "7"]


@pytest.fixture(scope="module")
def trained(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny language model of a text of its own."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text").write_text("one two three four five six seven eight nine ten\n" * 60)
    options = ["--data", str(folder / "text"), "--steps", "3", "--strategy", "ring", *SMALL]
    done = launch(launcher, *options, "--output", str(folder / "run"))
    assert done.returncode == 0, done.stderr
    return folder / "run"


def invoke(*arguments: str) -> Result:
    """The command in this process, which has loaded torch."""
    return CliRunner().invoke(main, arguments)


def test_a_checkpoint_has_the_figures_of_its_run(trained: Path) -> None:
    """Given as a file, or as the directory."""
    figures = result_of(trained)["evaluation"]
    for path in (trained, trained / "checkpoint-3.pt"):
        done = invoke("evaluate", str(path), "--json")
        assert json.loads(done.stdout)["evaluation"] == pytest.approx(figures)


def test_the_task_is_that_of_the_run(trained: Path, tmp_path: Path) -> None:
    """Where its file is missing, or names another task than the checkpoint or the command line, a line says so."""
    path, options = tmp_path / "checkpoint-3.pt", tmp_path / "run.toml"
    path.write_bytes((trained / "checkpoint-3.pt").read_bytes())
    for name, more, said in (
        ("", (), f"{options}: No such file or directory"),
        ("mlp", (), "must be that of run.toml, {'task': 'mlp', 'seed': 0, "),
        ("mlp", ("--task", "lm"), "task 'mlp': --task lm is another one"),
        ("mine:make", (), "is Python code, which runs only if you name it"),
    ):
        if name:
            options.write_text(f'task = "{name}"\nseed = 0\n')
        assert said in refusal_of(["evaluate", str(path), *more], main)


def test_a_text_goes_on_by_the_seed(trained: Path) -> None:
    """As many bytes as are asked for; the same again for the same seed, others for another one, or when it is cold."""
    common = ("sample", str(trained), "--prompt", "one two", "--tokens", "40", "--json")
    texts = [
        json.loads(invoke(*common, *more).stdout)["text"]
        for more in ((), ("--temperature", str(TEMPERATURE)), ("--seed", "1"), ("--temperature", "0.01"))
    ]
    assert texts[0] == texts[1]
    assert len({*texts}) == 3
    assert all(0 < len(text) <= 40 for text in texts)
    plain = invoke(*common[:-1])
    assert plain.stdout == f"one two{texts[0]}\n"
    assert invoke("sample", str(trained), "--tokens", "5").stdout.startswith("The ")


MISTAKES = Path(__file__).with_name("judging_mistakes.txt")


def test_mistakes_are_told_in_a_line(trained: Path, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """With exit code 2."""
    save_checkpoint(tmp_path / "mlp.pt", Checkpoint({}, {}, {"task": {"task": "mlp"}}, 3))
    (tmp_path / "empty").mkdir()
    names = {"run": trained, "mlp": tmp_path / "mlp.pt", "empty": tmp_path / "empty"}
    assert refusals_in(MISTAKES, main, **names) == snapshot
