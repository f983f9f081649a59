"""A log that contains its program, predicted without a GPU and compared with the log's times."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from speedruns import main, read_log

PROGRAM = """import numpy, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
header = numpy.fromfile("data/fineweb10B/fineweb_train_000000.bin", numpy.int32, 3)
assert header.tolist() == [20240520, 1, 20_000_000]
tokens = numpy.fromfile("data/fineweb10B/fineweb_train_000000.bin", numpy.uint16, offset=1024)
assert tokens.size == header[2] and tokens.max() < 50257
weights = nn.Parameter(torch.ones(4096, 4096, device="cuda"))
optimizer = torch.optim.SGD([weights])
for step in range(9):
    (torch.ones(4096, 4096, device="cuda") @ weights).sum().backward()
    dist.all_reduce(weights.grad)
    optimizer.step()
"""
TIMES = "step:0/160 val_loss:10.8 train_time:0ms\nstep:16/160 train_time:400.0ms\nstep:160/160 train_time:2.56s\n"
LOG = f"{'=' * 100}\n{PROGRAM}\n{'=' * 100}\nRunning PyTorch 2.5\n{TIMES}"


def test_a_log_has_its_program_and_times() -> None:
    """The mean of the steps 16 to 160, although some of the times are in ms and some in s."""
    log = read_log(f"/home/runs/3.txt\n{LOG}")
    assert log.code.strip() == PROGRAM.strip()
    assert log.step_s == pytest.approx((2.56 - 0.4) / 144)


@pytest.mark.parametrize("text", ["", PROGRAM, LOG.replace("160", "149"), LOG.replace("16/", "9/")])
def test_other_files_are_refused(text: str) -> None:
    """Without a program, without times, with too few steps, or with one time of those compared."""
    with pytest.raises(ValueError, match="no program, or no times up to step 150"):
        read_log(text)


@pytest.mark.slow
def test_a_record_is_predicted(tmp_path: Path) -> None:
    """From the files of a clone, of which others have no program; and one without any."""
    record = tmp_path / "records" / "track" / "2025-01-01_One"
    record.mkdir(parents=True)
    (record / "a.txt").write_text("nothing")
    (record / "b.txt").write_text(LOG)
    (tmp_path / "records" / "2025-01-02_None").mkdir()
    ended = CliRunner().invoke(main, [str(tmp_path), "2025-01-01_One", "2025-01-02_None"])
    *_, row, error = ended.output.splitlines()
    name, predicted, _, measured, _ = (cell.strip() for cell in row.strip("|").split("|"))
    assert (name, measured) == ("2025-01-01_One", "15.0")
    assert 2 < float(predicted) < 20
    assert ended.exit_code == 1
    assert "no log with a program" in error
