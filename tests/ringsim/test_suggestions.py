"""Tests of `ringsim.suggestions`, and of the messages that use it."""

import pytest
from click.testing import CliRunner

from ringsim.cli import main as ringsim
from trainers.cli.group import main as trainers


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("ringsim verify --algorithm rign", "ring"),
        ("ringsim verify --algorithm halving_dubling/4", "halving_doubling"),
        ("ringsim sweep --algorithm two_shots", "two_shot"),
        ("ringsim simulate --network gbee", "gbe"),
        ("trainers train --strategy bucketted", "bucketed"),
        ("trainers train --strategy ddp_hok/4", "ddp_hook"),
        ("trainers train --task wines", "wine"),
        ("trainers train --task mlp --leaning-rate 1", "--learning-rate"),
        ("trainers train --task lm --stratgy ring", "--strategy"),
        ("trainers compare --step 9", "--steps"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(command: str, meant: str) -> None:
    """In the one line that says what is known."""
    program, *arguments = command.split()
    done = CliRunner().invoke(ringsim if program == "ringsim" else trainers, arguments)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert f"did you mean {meant}?" in done.stderr
