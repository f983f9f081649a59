"""`trainers evaluate` and `trainers sample`: of runs that were made before."""

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.fuzz.launcher import Launcher
from tests.trainers.commands import launch, result_of
from trainers.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
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
    done = invoke("evaluate", str(path))
    assert (done.exit_code, done.stderr) == (
        2, f"trainers: {options}: does not exist: a run writes it next to its checkpoints\n",
    )  # fmt: skip
    options.write_text('task = "mlp"\nseed = 0\n')
    for more, said in (((), "is of a task with task lm, now mlp; seed 7, now 0; "), (("--task", "lm"), "is another")):
        done = invoke("evaluate", str(path), *more)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert said in done.stderr


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


def test_the_model_of_the_strategy_comparison_writes_too(trained: Path, tmp_path: Path) -> None:
    """Its checkpoint names the sizes of the model elsewhere; evaluate wants one of a run."""
    run = load_checkpoint(trained / "checkpoint-3.pt")
    sizes = {name: value for name, value in run.config["task"].items() if isinstance(value, int)}
    save_checkpoint(tmp_path / "checkpoint.pt", Checkpoint(run.model_state, {}, {"model": sizes}, 3))
    assert invoke("sample", str(tmp_path / "checkpoint.pt"), "--prompt", "one").exit_code == 0
    (tmp_path / "run.toml").write_bytes((trained / "run.toml").read_bytes())
    done = invoke("evaluate", str(tmp_path / "checkpoint.pt"))
    assert "is not from a training session: evaluate reads checkpoints of trainers train" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("sample {run} --prompt x --tokens 0", "Invalid value for '--tokens': 0 is not in the range"),
        ("sample {run} --prompt x --temperature 0", "Invalid value for '--temperature': 0.0 is not in the range"),
        ("sample {run}/nothing --prompt x", "nothing: cannot be read: No such file or directory"),
        ("sample {run}/run.toml --prompt x", "run.toml: is truncated, damaged or not a checkpoint"),
        ("sample {mlp} --prompt x", "is of the task mlp, which does not produce text: sample needs one of the task lm"),
        ("evaluate {empty}", "there is no checkpoint in this directory, such as checkpoint-50.pt"),
    ],
)
def test_mistakes_are_told_in_a_line(trained: Path, tmp_path: Path, arguments: str, message: str) -> None:
    """With exit code 2."""
    save_checkpoint(tmp_path / "mlp.pt", Checkpoint({}, {}, {"task": {"task": "mlp"}}, 3))
    (tmp_path / "empty").mkdir()
    names = {"run": trained, "mlp": tmp_path / "mlp.pt", "empty": tmp_path / "empty"}
    done = invoke(*(part.format(**names) for part in arguments.split()))
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr


def test_a_model_that_has_diverged_has_no_figures(trained: Path, tmp_path: Path) -> None:
    """Rather than numbers that JSON does not have; a line says so, with exit code 1."""
    run = load_checkpoint(trained / "checkpoint-3.pt")
    state = {name: tensor * math.nan for name, tensor in run.model_state.items()}
    save_checkpoint(tmp_path / "checkpoint-3.pt", Checkpoint(state, {}, run.config, 3))
    (tmp_path / "run.toml").write_bytes((trained / "run.toml").read_bytes())
    done = invoke("evaluate", str(tmp_path), "--json")
    assert json.loads(done.stdout)["evaluation"] == {"loss": None, "bits_per_byte": None}
    assert done.exit_code == 1
    assert done.stderr == (
        f"trainers: checkpoint {tmp_path}/checkpoint-3.pt: loss, bits_per_byte: not finite, as the model has diverged\n"
    )
