"""Messages of commands to the torchrun that started them."""

import json
from pathlib import Path

import click
import pytest

from ringsim.console.torchrun import TorchrunCommand


def test_torchrun_is_told_of_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that its report of the failure, which comes last, says what the user has to do."""
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    command = TorchrunCommand("benchmark", params=[click.Option(["--ranks"], type=int)])
    with pytest.raises(SystemExit) as ended:
        command.main(["--ranks", "many"])
    assert ended.value.code == 2
    told = json.loads(file.read_text())
    assert "'many' is not a valid integer" in told["message"]
    assert told["message"] in capsys.readouterr().err
    assert int(told["timestamp"])
