"""`ringsim trace` up to the start of the recording, which stands in tests/collectives/test_recording.py."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from ringsim.cli.commands import trace
from tests.ringsim.commands import invoke


@pytest.mark.parametrize(
    ("per_host", "given", "threads"), [("8", None, "1"), ("1", None, None), ("8", "3", "3"), ("1", "3", "3")]
)
def test_ranks_of_a_host_share_its_cores(
    per_host: str, given: str | None, threads: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As under torchrun, a rank that is not alone computes with one thread, unless the environment says otherwise."""
    environments = []

    def start(command: list[str], env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        environments.append(env)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setattr(trace.subprocess, "run", start)
    (tmp_path / "train.py").write_text("")
    result = invoke(
        "trace", "--ranks", 16, "--ranks-per-host", per_host, "-o", tmp_path / "a.json", tmp_path / "train.py"
    )
    assert result.exit_code == 3
    assert [environment.get("OMP_NUM_THREADS") for environment in environments] == [threads]
