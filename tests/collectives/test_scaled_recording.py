"""`ringsim step --ranks` with real programs: recorded again as one rank of more."""

from pathlib import Path
from typing import Any

import pytest

from ringsim.traces import ProgramTrace
from tests.forked import ROOT
from tests.ringsim.commands import as_json, run

FSDP = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 6))
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
NETWORK = ("--latency", "10us", "--bandwidth", "1GB/s")
COMPUTING = ("--flops", "1GFLOP/s", "--memory-bandwidth", "1GB/s")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def step(name: str, *more: object) -> Any:
    """The prediction for a trace."""
    return as_json("step", name, *NETWORK, *COMPUTING, *more)


def traced(num_ranks: int) -> ProgramTrace:
    """The trace of so many ranks, one on each host as in the network, in a file with their number."""
    name = f"{num_ranks}.json"
    run("trace", "--fake", "--ranks", num_ranks, "--ranks-per-host", 1, "-o", name, "fsdp.py")
    return ProgramTrace.load(name)


def test_the_curve_is_that_of_traces_recorded_by_hand(tmp_path: Path) -> None:
    """Of FSDP2, whose shares, and the rows with which they are filled up, depend on the number of ranks."""
    (tmp_path / "fsdp.py").write_text(FSDP)
    small, large = traced(2), traced(16)
    assert small.request
    assert (small.request.program, small.request.folder) == ("fsdp.py", str(tmp_path))
    # Rows are filled up to a multiple of the ranks: 7 and 6 to 8 and 6 of 2, and to 16 and 16 of 16; the biases too.
    sizes = [max(call.size_bytes for call in trace.steps[0].calls) for trace in (small, large)]
    assert sizes == [4 * (8 * 6 + 8 + 6 * 7 + 6), 4 * (16 * 6 + 16 + 16 * 7 + 16)]
    [scaled] = step("2.json", "--ranks", "16", "--run-recorded")["scaling"]
    fewer, alone = step("2.json"), step("16.json")
    for name in ("num_ranks", "step_s", "compute_s", "exposed_s", "communication_s"):
        assert scaled[name] == alone[name]
    assert scaled["step_s"] > fewer["step_s"]


@pytest.mark.slow
def test_a_module_is_recorded_again() -> None:
    """With its arguments; what it prints is left out of the result."""
    program = "-m", "trainers", "--task", "mlp", "--strategy", "bucketed/0.25"
    run("trace", "--ranks", 2, "--steps", 1, *program)
    result = as_json("step", "step.trace.json", *NETWORK, "--ranks", "3", "--run-recorded")
    assert [scaled["num_ranks"] for scaled in result["scaling"]] == [3]
    assert result["scaling"][0]["communication_s"] > 0
