"""The files of a run, also when the disk is full or not every rank sees them."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch.distributed as dist
from syrupy.assertion import SnapshotAssertion

from tests.trainers.points import NUM_STEPS, Ran, Training, run
from trainers.checkpoints.output import CheckpointFolder
from trainers.loop.config import TrainConfig


def run_on_separate_disks(group: dist.ProcessGroup, config: TrainConfig, *_: object) -> Ran:
    """A run whose checkpoints only rank 1 sees, as rank 0 is on another host now."""
    empty = mock.patch.object(CheckpointFolder, "newest_first", return_value=[])
    with mock.patch("socket.gethostname", return_value=f"node{group.rank()}"), nullcontext() if group.rank() else empty:
        return run(group, config)


def test_no_run_whose_checkpoints_are_on_another_node_begins_anew(train: Training, snapshot: SnapshotAssertion) -> None:
    """All ranks refuse, as rank 0 has no part of the earlier run before it."""
    train(until=5)
    assert {each.error for each in train(run=run_on_separate_disks, resume=True)} == snapshot


def run_unseen(group: dist.ProcessGroup, config: TrainConfig, *_: object) -> Ran:
    """A run that Slurm has started for the third time, of which rank 1 may not look into the directory."""
    denied = mock.patch.object(CheckpointFolder, "newest_first", side_effect=PermissionError(13, "denied"))
    with (
        mock.patch.dict(os.environ, {"SLURM_RESTART_COUNT": "2"}),
        mock.patch("socket.gethostname", return_value="node7"),
        denied if group.rank() == 1 else nullcontext(),
    ):
        return run(group, config)


def test_a_restarted_run_without_checkpoints_says_so(train: Training, snapshot: SnapshotAssertion) -> None:
    """It may have been stopped before it saved one, or nobody on these nodes sees them. Only rank 0 looks there."""
    first, second = train(run=run_unseen, resume=True)
    assert (first.error, second.error, len(first.losses)) == ("", "", NUM_STEPS)
    assert first.said == snapshot


def test_a_state_that_could_not_be_read_back_is_found_at_once(train: Training, snapshot: SnapshotAssertion) -> None:
    """A learning rate of NumPy's, say, which only code can bring back: no such checkpoint is left."""
    assert [each.error for each in train(options={"rate": np.float64(0.05)})] == snapshot
    assert [path.name for path in (train.folder / "run").iterdir()] == ["log.jsonl"]


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of its own at `path`; skips the test where none can be mounted."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mount: {error}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def left(path: Path) -> list[str]:
    """Return the names of the files there."""
    return sorted(each.name for each in path.iterdir())


def test_a_full_disk_stops_all_ranks(train: Training, snapshot: SnapshotAssertion) -> None:
    """At the same step, with one line; the last good checkpoint is still there, and nothing half-written beside it.

    The end of a run is no exception; and a disk without room for any checkpoint is found before training.
    """
    expected = train("elsewhere")[0]
    size_bytes = (train.folder / "elsewhere" / "checkpoint-12.pt").stat().st_size
    with small_disk(train.folder / "disk", 2 * size_bytes) as disk:
        assert [each.error for each in train("disk", save_every=2)] == snapshot
        assert left(disk) == ["checkpoint-2.pt", "log.jsonl"]
        resumed = train("disk", until=7, save_every=100, keep=1, resume=True)[0]
        assert resumed.losses == expected.losses[:6]
    with small_disk(train.folder / "smaller", size_bytes // 2) as disk:
        for each in train("smaller", steps=3, save_every=100):
            assert each.error.startswith("StoppedError: training step 3: ")
        assert left(disk) == ["log.jsonl"]
    with small_disk(train.folder / "full", 2**16) as disk:
        (disk / "other").write_bytes(bytes(2**16 - 4096))
        told = "ValueError: `output` FOLDER/full: has 0 bytes free, and a checkpoint takes at"
        assert all(each.error.startswith(told) for each in train("full"))
        assert left(disk) == ["other"]


def test_a_directory_that_cannot_be_made_is_refused_by_all(train: Training) -> None:
    """Only rank 0 tries; the others need not even have the disk."""
    (train.folder / "file").write_text("")
    assert [each.error for each in train("file/run")] == ["ValueError: FOLDER/file/run: Not a directory"] * 2


def events_of(path: Path) -> Any:
    """Return the events of a trace."""
    return json.loads(path.read_text())["traceEvents"]


@pytest.mark.parametrize("strategy", ["ring", "bucketed/0.0001"])
def test_a_trace_has_steps_and_transfers_by_name(train: Training, strategy: str) -> None:
    """Of three steps after the warm-up, on rank 0; also of those transfers that another thread carries out."""
    path = train.folder / "trace.json"
    assert [each.error for each in train(strategy=strategy, profile=path, steps=8, log_every=100)] == ["", ""]
    events = events_of(path)
    names = Counter(str(event["name"]) for event in events if event.get("cat") == "user_annotation")
    assert {name for name in names if name.startswith("training step")} == {f"training step {n}" for n in (3, 4, 5)}
    for name in ("batch", "forward", "tell the loss", "backward and synchronise", "optimizer"):
        assert names[name] == 3
    transfers = [event for event in events if event["name"] == "ring all_reduce: step 1, receive chunk 1 from rank 1"]
    (main,) = {event["tid"] for event in events if event["name"] == "training step 3"}
    of_others = {event["tid"] for event in transfers} - {main}
    assert (len(transfers), len(of_others)) == ((3, 0) if strategy == "ring" else (12, 1))
    assert left(train.folder) == ["run", "trace.json"]


def test_a_short_run_has_a_trace_too(train: Training) -> None:
    """Of what steps there are."""
    train(num_ranks=1, profile=train.folder / "trace.json", steps=2)
    names = {event["name"] for event in events_of(train.folder / "trace.json")}
    assert {"training step 0", "training step 1"} <= names


def test_a_trace_that_cannot_be_written_stops_all_ranks(train: Training, snapshot: SnapshotAssertion) -> None:
    """As soon as that is known; the run can go on without it."""
    (train.folder / "file").write_text("")
    assert [each.error for each in train(profile=train.folder / "file" / "trace.json")] == snapshot
