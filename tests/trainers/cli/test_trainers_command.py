"""`python -m trainers`, as a user starts it."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from syrupy.assertion import SnapshotAssertion

from tests.fuzz.launcher import Launcher
from tests.refusals import refusal_of, refusals_in
from tests.trainers.commands import POINTS, command, launch, result_of, stalled, start, without_log
from trainers.checkpoints.output import read_log
from trainers.cli.group import main
from trainers.loop.meter import describe_line
from trainers.strategies import STRATEGIES

MISTAKES = Path(__file__).with_name("mistakes.txt")


def test_mistakes_are_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    """Exit code 2, and nothing is written; all that before torch is needed."""
    monkeypatch.chdir(tmp_path)
    assert refusals_in(MISTAKES, main).replace(", ".join(STRATEGIES), "STRATEGIES") == snapshot
    assert list(tmp_path.iterdir()) == []


def test_what_is_found_out_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs that are over before the steps; and a finished run, which is not overwritten."""
    monkeypatch.setattr("trainers.cli.train._start", lambda *_: 0)
    options = ["--task", "mlp", "--batch-size", "100", "--epochs", "1", "--output", str(tmp_path), "--steps"]
    told = "trainers: --steps 100000: the run ends after 80 steps, with its 1 epoch (--epochs)\n"
    for steps, said in (("2", ""), ("100000", told)):
        assert CliRunner().invoke(main, [*options, steps]).stderr == said
    (tmp_path / "checkpoint-30.pt").write_text("")
    there = f"trainers: --output {tmp_path}: there is checkpoint-30.pt of a run already: "
    assert refusal_of([*options, "2"], main) == f"{there}continue it with --resume, or give another --output\n"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert CliRunner().invoke(main, [*options, "many"]).exit_code == 2
    report = json.loads((tmp_path / "error.json").read_text())  # for the report of torchrun, which comes last
    assert "'many' is not a valid integer" in report["message"]
    assert int(report["timestamp"])


def test_the_language_model_on_two_ranks(launcher: Launcher, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """It learns, tells so in a few lines, goes on with a text, and leaves a log, a result and a checkpoint."""
    output, text = tmp_path / "new" / "run", tmp_path / "text"
    text.write_text("one two three four five six seven eight nine ten\n" * 200)  # little to evaluate
    sizes = "--d-model 32 --heads 2 --layers 1 --d-ff 64 --sequence-length 32 --learning-rate 0.01 --batch-size 8"
    options = f"--ranks 2 --steps 40 --save-every 20 --output {output} --data {text} {sizes}"
    done = launch(launcher, *options.split())
    left = ["checkpoint-40.pt", "log.jsonl", "result.json", "run.toml"]
    assert done.returncode == 0, done.stderr
    *told, _, _, _, _ = said = done.stderr.splitlines()
    assert said[len(told) :] == [f"wrote {output / name}" for name in left]
    assert sorted(path.name for path in output.iterdir()) == ["checkpoint-20.pt", *left]
    lines = read_log(output / "log.jsonl")
    assert [line["step"] for line in lines] == [10, 20, 30, 40]
    written = [describe_line(line, 40) for line in lines]
    assert told == [text for text in written if text in {*told, written[0], written[-1]}]  # at most one a second
    assert all(line["tokens_per_s"] == pytest.approx(32 * line["samples_per_s"], rel=0.01) for line in lines)
    result = result_of(output)
    assert result["training"]["num_ranks"] == 2
    assert max(lines[-1]["loss"], result["evaluation"]["loss"]) < lines[0]["loss"] - 0.5
    assert result["memory_bytes"]["parameters"] == 4 * result["num_parameters"]
    shown, _, words = done.stdout.rpartition("\n\n")
    assert "continued by the model:\n" in shown
    figures = [f"{figure:.4f}" for figure in (result["last_loss"], *result["evaluation"].values())]
    for figure in (f"{result['train_s']:.1f} s", *figures):
        assert words.count(figure) == 1
        words = words.replace(figure, "FIGURE")
    assert words == snapshot


def test_the_result_as_json(launcher: Launcher, tmp_path: Path) -> None:
    """One object on stdout, the same as the file; with --quiet the lines are in the log only."""
    done = launch(launcher, *POINTS, "--quiet", "--output", str(tmp_path), "--json")
    written = [tmp_path / name for name in ("checkpoint-12.pt", "log.jsonl", "result.json", "run.toml")]
    assert (done.returncode, done.stderr) == (0, "".join(f"wrote {path}\n" for path in written))
    assert json.loads(done.stdout, parse_constant=pytest.fail) == result_of(tmp_path)
    assert len(read_log(tmp_path / "log.jsonl")) == 12


@pytest.mark.parametrize(
    ("option", "code", "begin", "end"),
    [
        ("--bad", 1, "trainers: training step ", " is nan; a smaller --learning-rate may help, or --on-nan skip\n"),
        ("--spread", 2, "trainers: parameter middle.weight differs between rank 0 and rank 1, by up to ", "\n"),
    ],
)
def test_what_goes_wrong_on_ranks_is_said_once(
    launcher: Launcher, tmp_path: Path, option: str, code: int, begin: str, end: str
) -> None:
    """A loss that is no number, and ranks that begin apart."""
    done = launch(launcher, *POINTS, option, "5", "--ranks", "2", "--output", str(tmp_path))
    said = without_log(done.stderr)
    assert (done.returncode, done.stdout, said.count("\n")) == (code, "", 1)
    assert said.startswith(begin)
    assert said.endswith(end)


@pytest.mark.slow
def test_mistakes_under_torchrun_are_told_once(tmp_path: Path) -> None:
    """By rank 0."""
    done = start("--heads", "3", "--output", str(tmp_path), torchrun=("--nproc-per-node", "2"))
    assert done.returncode != 0
    assert done.stderr.count("trainers: --d-model 128: must be divisible by --heads 3") == 1


@pytest.mark.slow
def test_a_rank_that_stalls_is_named_within_the_timeout(tmp_path: Path) -> None:
    """On a terminal a bar shows loss, samples a second and the share of synchronising; exit code 1."""
    options = f"--epochs 100000 --timeout 3 --output {tmp_path}"
    seen, rest = stalled(command(*POINTS, *options.split()), "% comm")
    assert re.search(r"training .*loss .* samples/s, ", seen)
    assert re.search(r"rank 0: training step \d+, strategy bucketed: .*timed out after 3 s", rest), repr(rest)
    assert rest.count("the first rank to stop responding was rank 1") == 1, repr(rest)
