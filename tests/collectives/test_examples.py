"""The programs in examples/ run on several ranks, and learn."""

import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from syrupy.assertion import SnapshotAssertion

from tests.ranks import RankPool, group_on, run_forked_programs, run_script

ROOT = Path(__file__).parents[2]


def printed_by_first(folder: Path, example: str, *arguments: str) -> str:
    """Return the output of rank 0 of two."""
    first, _ = run_forked_programs(2, 120, folder, run_script, ROOT / "examples" / example, arguments)
    assert first.returncode == 0, first.stderr
    return first.stdout


@pytest.mark.parametrize("example", ["ddp.py", "fsdp.py"])
def test_it_learns_on_ring(tmp_path: Path, example: str) -> None:
    """By two ranks."""
    printed = printed_by_first(tmp_path, example, "ring")
    losses = [float(loss) for loss in re.findall(r"^ring: step \d+: loss (\S+)$", printed, re.MULTILINE)]
    assert len(losses) == 2
    assert losses[1] < 0.5 * losses[0]


def on_both(group: dist.ProcessGroup, arguments: list[str]) -> tuple[list[float], list[float], bool]:
    """The losses of the example with experts on Gloo and on "ring", and whether the weights have the same bits."""
    example = SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "moe.py")))
    options = example.read_options(arguments)
    on_gloo, model = example.train(options, group)
    on_ring, other = example.train(options, group_on("ring", group.size()))
    same = all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    return on_gloo, on_ring, same


def test_experts_train_alike_on_both_backends(ring_ranks: RankPool) -> None:
    """Bit for bit on two ranks; of three, whose sums of gradients are added in other orders, nearly so."""
    small = ["--steps", "30", "--batch-size", "64", "--width", "32"]
    for num_ranks in (2, 3):
        for on_gloo, on_ring, same in ring_ranks.run(on_both, small, num_ranks=num_ranks):
            assert on_ring == pytest.approx(on_gloo, rel=1e-3)
            assert same or num_ranks > 2
            assert on_ring[-1] < 0.8 * on_ring[0]


def test_gpt_runs_on_either_backend_by_one_word(tmp_path: Path) -> None:
    """It learns; and all that it prints is the same but for the backend's name: on two ranks a sum is one addition."""
    small = ["--steps", "51", "--batch-size", "4", "--layers", "1", "--width", "32", "--sample", "20"]
    printed = {}
    for backend in ("gloo", "ring"):
        text = printed_by_first(tmp_path, "gpt.py", "--backend", backend, *small)
        assert re.search(rf"^{backend}: held-out loss \S+, weights \S+$", text, re.MULTILINE)
        losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", text)]
        assert losses[-1] < 0.9 * losses[0]
        printed[backend] = text.replace(f"{backend}: ", "")
    assert printed["gloo"] == printed["ring"]


@pytest.mark.parametrize("example", ["ddp.py", "fsdp.py", "gpt.py", "moe.py", "llama.py", "own_task.py"])
def test_without_a_launcher_it_says_how_to_start_it(
    example: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    """In one line, with exit code 2."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "argv", [example])
    with pytest.raises(SystemExit) as leaving:
        runpy.run_path(str(ROOT / "examples" / example), run_name="__main__")
    assert leaving.value.code == 2
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert errors == snapshot
