"""Messages of trainers that use `ringsim.suggestions`; those of ringsim are in cli/mistakes.txt."""

import pytest
from click.testing import CliRunner

from trainers.cli.group import main as trainers


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("train --strategy bucketted", "bucketed"),
        ("train --strategy ddp_hok/4", "ddp_hook"),
        ("train --task wines", "wine"),
        ("train --task mlp --leaning-rate 1", "--learning-rate"),
        ("train --task lm --stratgy ring", "--strategy"),
        ("compare --step 9", "--steps"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(command: str, meant: str) -> None:
    """In the one line that says what is known."""
    done = CliRunner().invoke(trainers, command.split())
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert f"did you mean {meant}?" in done.stderr
