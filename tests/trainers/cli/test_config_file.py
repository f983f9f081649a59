"""`--config`: what a TOML file may say, who wins, and that the file which a run leaves starts the same run."""

import math
import os
from dataclasses import replace
from pathlib import Path
from unittest import mock

from click.testing import CliRunner
from syrupy.assertion import SnapshotAssertion

from tests.refusals import refusal_of
from trainers.cli.group import main
from trainers.cli.train import Launch

POINTS = "tests.trainers.points:make_points"


MISTAKES = Path(__file__).with_name("wrong_files.txt").read_text().split("----\n")


def test_mistakes_name_file_key_and_rule(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """In one line, with exit code 2, before anything is written."""
    file, said = tmp_path / "my run.toml", {}
    for text in MISTAKES:
        file.write_text(text)
        told = refusal_of(["--config", str(file), "--output", str(tmp_path / "run")], main)
        said[text] = told.replace(str(file), "FILE")
    assert list(tmp_path.iterdir()) == [file]
    said["missing"] = refusal_of(["--config", "/nowhere/run.toml"], main)
    assert said == snapshot


def launched(tmp_path: Path, text: str, *arguments: str, **environment: str) -> tuple[Launch, int | None]:
    """Return the launch that such a file would start, and the number of ranks."""
    file = tmp_path / "run.toml"
    file.write_text(text)
    with mock.patch("trainers.cli.train._start", return_value=0) as run, mock.patch.dict(os.environ, environment):
        done = CliRunner().invoke(main, ["--config", str(file), *arguments])
    assert done.exit_code == 0, done.stderr
    return run.call_args.args[0], run.call_args.args[2]


def test_the_command_line_wins(tmp_path: Path) -> None:
    """Over options, and over those of the task; a number of epochs may be written as on the command line."""
    text = "steps = 7\nsave-every = 5\nranks = 2\nclip-norm = 2\nquiet = true\n[task-options]\nd-model = 32\nheads = 2"
    launch, ranks = launched(tmp_path, text, "--steps", "9", "--heads", "8")
    assert (launch.config.steps, launch.config.steps_between_saves(1), launch.config.clip_norm) == (9, 5, 2.0)
    assert (launch.options, launch.quiet, ranks) == ({"d_model": 32, "heads": 8}, True, 2)


def test_a_launcher_decides_on_the_number_of_ranks(tmp_path: Path) -> None:
    """Else each of torchrun's ranks would start as many as the file says."""
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "1"}
    variables |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29400", "GROUP_RANK": "0"}
    launch, ranks = launched(tmp_path, "ranks = 4", **variables)
    assert ranks is None
    assert "\nranks = 1\n" in launch.options_file


def test_every_option_comes_back_as_it_was(tmp_path: Path) -> None:
    """Of a user's task, too, with text that TOML has to escape; and with what a later version may have otherwise."""
    options = ["--clip-norm", "0.1", "--save-every", "2epochs", "--warmup-steps", "1", "--steps", "9", "--ranks", "2"]
    odd = 'a "b"\\ \x7f ü \n'
    options += ["--task", POINTS, "--set", "dropout=Infinity", "--output", str(tmp_path / odd)]
    first, _ = launched(tmp_path, "", *options)
    second, ranks = launched(tmp_path, first.options_file, "--task", POINTS)
    assert replace(second, resume=first.resume) == first
    assert (second.options, second.config.output, ranks) == ({"dropout": math.inf}, tmp_path / odd, 2)
    launch, _ = launched(tmp_path, "", "--task", "lm", "--heads", "2")
    assert 'data = "topics"\nlearning-rate = 0.003\nvocabulary = 256\nd-model = 128\nheads = 2\n' in launch.options_file
