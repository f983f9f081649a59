"""The files of a run, also when some are bad or the disk is full."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch.distributed as dist

from tests.ranks import RankPool
from tests.trainers.points import NUM_STEPS, Ran, config, run
from trainers.checkpoints.output import CheckpointFolder


def flip(path: Path) -> None:
    """One bit of the weights is another one."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_a_bad_checkpoint_is_named_and_the_one_before_used(ranks: RankPool, tmp_path: Path) -> None:
    """The run goes on from there, on all ranks, and ends as if nothing had been."""
    expected = ranks.run(run, config(tmp_path / "whole", steps=9), num_ranks=2)[0]
    parts = tmp_path / "parts"
    ranks.run(run, config(parts, save_every=2), None, 5, num_ranks=2)
    flip(parts / "checkpoint-4.pt")
    resumed = ranks.run(run, config(parts, save_every=2, resume=True, steps=9), num_ranks=2)
    assert resumed[0].said == [
        f"checkpoint {parts / 'checkpoint-4.pt'}: is truncated, damaged or not a checkpoint of this version",
        f"resumed from {parts / 'checkpoint-2.pt'}: 2 of 9 steps are done",
    ]
    assert resumed[0].losses == expected.losses
    assert {each.fingerprint for each in resumed} == {expected.fingerprint}


def test_without_any_good_checkpoint_all_ranks_refuse(ranks: RankPool, tmp_path: Path) -> None:
    """Rather than to begin anew over what may be worth saving; where there is none at all, they begin."""
    ranks.run(run, config(tmp_path), None, 9, num_ranks=2)
    for path in tmp_path.glob("*.pt"):
        flip(path)
    for each in ranks.run(run, config(tmp_path, resume=True), num_ranks=2):
        assert each.error == (
            f"ValueError: --resume: none of the checkpoints in {tmp_path} can be read; give another --output"
        )
    begun = ranks.run(run, config(tmp_path / "new", resume=True), num_ranks=2)[0]
    assert begun.said == [f"no checkpoint in {tmp_path / 'new'} yet: starting with the first step"]
    assert len(begun.losses) == NUM_STEPS


def run_on_disks_of_their_own(group: dist.ProcessGroup, folder: Path, host_of_checkpoints: int) -> Ran:
    """A resumed run of which one rank is where the checkpoints are, and the others on other hosts."""
    own = folder if group.rank() == host_of_checkpoints else folder / "empty"
    with mock.patch("socket.gethostname", return_value=f"node{group.rank()}"):
        return run(group, config(own, resume=True))


def test_a_run_whose_checkpoints_are_on_another_node_does_not_begin_anew(ranks: RankPool, tmp_path: Path) -> None:
    """All ranks refuse, as rank 0 has no part of the earlier run before it."""
    ranks.run(run, config(tmp_path), None, 5, num_ranks=2)
    for each in ranks.run(run_on_disks_of_their_own, tmp_path, 1, num_ranks=2):
        assert "ValueError: --resume: rank 1 on node1 sees checkpoint-4.pt in " in each.error
        assert "rank 0 on node0 sees no checkpoint there; give an --output on a file system" in each.error


def begin_unseen(group: dist.ProcessGroup, folder: Path) -> Ran:
    """A resumed run of which rank 1 may not look into the directory."""
    denied = mock.patch.object(CheckpointFolder, "newest_first", side_effect=PermissionError(13, "denied"))
    with denied if group.rank() == 1 else nullcontext():
        return run(group, config(folder, resume=True))


def test_ranks_need_not_see_the_directory(ranks: RankPool, tmp_path: Path) -> None:
    """But rank 0, which alone reads and writes there."""
    for each in ranks.run(begin_unseen, tmp_path, num_ranks=2):
        assert not each.error
        assert len(each.losses) == NUM_STEPS


def begin_again(group: dist.ProcessGroup, folder: Path) -> Ran:
    """A run that Slurm has started for the third time."""
    with (
        mock.patch.dict(os.environ, {"SLURM_RESTART_COUNT": "2"}),
        mock.patch("socket.gethostname", return_value="node7"),
    ):
        return run(group, config(folder, resume=True))


def test_a_restarted_run_without_checkpoints_says_so(ranks: RankPool, tmp_path: Path) -> None:
    """It may have been stopped before it saved one; or nobody on these nodes sees them."""
    (said,) = ranks.run(begin_again, tmp_path, num_ranks=2)[0].said
    assert "though the job was started before (SLURM_RESTART_COUNT=2)" in said
    assert "node7 does not see them: give an --output on a file system that all nodes share" in said


def test_a_state_that_could_not_be_read_back_is_found_at_once(ranks: RankPool, tmp_path: Path) -> None:
    """A learning rate of NumPy's, say, which only code can bring back: no such checkpoint is left."""
    first, second = ranks.run(run, config(tmp_path), {"rate": np.float64(0.05)}, num_ranks=2)
    assert first.error == (
        f"StoppedError: training step 4: {tmp_path / 'checkpoint-4.pt'}: could not be read back without running code: "
        f"the states of model and optimizer must contain only tensors and Python's numbers and strings; "
        f"there is no checkpoint yet"
    )
    assert second.error == "StoppedError: training step 4: rank 0 cannot continue"
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[None]:
    """A file system of its own at `path`; skips the test where none can be mounted."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"mount: {error}")
    if done.returncode:
        pytest.skip(f"mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def checkpoint_bytes(ranks: RankPool, folder: Path) -> int:
    """How long a checkpoint of two ranks is."""
    ranks.run(run, config(folder, steps=1), num_ranks=2)
    return (folder / "checkpoint-1.pt").stat().st_size


def test_a_full_disk_stops_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    """At the same step, with one line; the last good checkpoint is still there, and nothing half-written beside it."""
    size_bytes = checkpoint_bytes(ranks, tmp_path / "measure")
    disk = tmp_path / "disk"
    with small_disk(disk, 2 * size_bytes):
        first, second = ranks.run(run, config(disk, save_every=2), num_ranks=2)
        assert first.error == (
            f"StoppedError: training step 4: {disk / 'checkpoint-4.pt'}: cannot be written: No space left on device; "
            f"--resume continues from checkpoint-2.pt"
        )
        assert second.error == "StoppedError: training step 4: rank 0 cannot continue"
        assert sorted(path.name for path in disk.iterdir()) == ["checkpoint-2.pt", "log.jsonl"]
        elsewhere = ranks.run(run, config(tmp_path / "elsewhere"), num_ranks=2)[0]
        resumed = ranks.run(run, config(disk, save_every=100, keep=1, resume=True), None, 7, num_ranks=2)[0]
        assert resumed.losses == elsewhere.losses[:6]


def test_a_disk_that_is_full_already_is_found_before_training(ranks: RankPool, tmp_path: Path) -> None:
    """Since a checkpoint is no smaller than the model."""
    disk = tmp_path / "disk"
    with small_disk(disk, 2**16):
        (disk / "other").write_bytes(bytes(2**16 - 4096))
        for each in ranks.run(run, config(disk), num_ranks=2):
            assert each.error.startswith(f"ValueError: --output {disk}: has 0 bytes free, and a checkpoint takes at")
        assert [path.name for path in disk.iterdir()] == ["other"]


def test_a_disk_that_is_full_at_the_end_is_told_too(ranks: RankPool, tmp_path: Path) -> None:
    """The last checkpoint is the one that matters."""
    size_bytes = checkpoint_bytes(ranks, tmp_path / "measure")
    with small_disk(tmp_path / "disk", size_bytes // 2):
        for each in ranks.run(run, config(tmp_path / "disk", steps=3, save_every=100), num_ranks=2):
            assert each.error.startswith("StoppedError: training step 3: ")
        assert [path.name for path in (tmp_path / "disk").iterdir()] == ["log.jsonl"]


def test_a_directory_that_cannot_be_made_is_refused_by_all(ranks: RankPool, tmp_path: Path) -> None:
    """Only rank 0 tries; the others need not even have the disk."""
    (tmp_path / "file").write_text("")
    for each in ranks.run(run, config(tmp_path / "file" / "run"), num_ranks=2):
        assert each.error == f"ValueError: {tmp_path / 'file' / 'run'}: Not a directory"


@pytest.mark.parametrize("strategy", ["ring", "bucketed/0.0001"])
def test_a_trace_has_steps_and_transfers_by_name(ranks: RankPool, tmp_path: Path, strategy: str) -> None:
    """Of three steps after the warm-up, on rank 0; also of those transfers that another thread carries out."""
    asked = config(tmp_path / "run", strategy=strategy, profile=tmp_path / "trace.json", steps=8, log_every=100)
    assert [each.error for each in ranks.run(run, asked, num_ranks=2)] == ["", ""]
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = Counter(event["name"] for event in events if event.get("cat") == "user_annotation")
    assert {name for name in names if name.startswith("training step")} == {f"training step {n}" for n in (3, 4, 5)}
    for name in ("batch", "forward", "tell the loss", "backward and synchronise", "optimizer"):
        assert names[name] == 3
    transfers = [event for event in events if event["name"] == "ring all_reduce: step 1, receive chunk 1 from rank 1"]
    (main,) = {event["tid"] for event in events if event["name"] == "training step 3"}
    of_others = {event["tid"] for event in transfers} - {main}
    assert (len(transfers), len(of_others)) == ((3, 0) if strategy == "ring" else (12, 1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "trace.json"]


def test_a_short_run_has_a_trace_too(ranks: RankPool, tmp_path: Path) -> None:
    """Of what steps there are."""
    asked = config(tmp_path / "run", profile=tmp_path / "trace.json", steps=2)
    ranks.run(run, asked, num_ranks=1)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"training step 0", "training step 1"} <= {event["name"] for event in events}


def test_a_trace_that_cannot_be_written_stops_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    """As soon as that is known; the run can go on without it."""
    (tmp_path / "file").write_text("")
    asked = config(tmp_path / "run", profile=tmp_path / "file" / "trace.json", save_every=4)
    first, second = ranks.run(run, asked, num_ranks=2)
    assert first.error == (
        f"StoppedError: training step 6: {tmp_path / 'file'}: cannot be written: "
        f"File exists; --resume continues from checkpoint-4.pt"
    )
    assert second.error == "StoppedError: training step 6: rank 0 cannot continue"
