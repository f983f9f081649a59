"""The benchmark as a user starts it; and its tables, from made-up times, to the letter."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch.distributed as dist
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from collectives.benchmark.command import main
from collectives.benchmark.table import format_table
from ringsim.measurements.measurements import CollectiveTimes, Measurements
from ringsim.schedule.collective import Collective
from tests.fuzz.launcher import Launcher, script
from tests.processes import ROOT, TIMEOUT_S
from tests.ranks import run_forked_programs, run_script
from tests.refusals import refusals_in
from tests.trainers.commands import launch


def run_command(_: int, arguments: list[str]) -> None:
    """Run the benchmark on a rank that torchrun has started."""
    os.environ["TORCHELASTIC_RUN_ID"] = "none"
    main(arguments, prog_name="benchmark")


def forked(folder: Path, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """The benchmark on two ranks that have loaded torch already."""
    return run_forked_programs(2, TIMEOUT_S, folder, run_command, list(arguments))


def test_two_ranks(tmp_path: Path) -> None:
    """It prints tables, writes what the options ask for, and shows no progress without a terminal."""
    output = tmp_path / "new" / "measurements.json"
    arguments = "--collective all_reduce,broadcast -b 64 -e 1KiB -n 3 -w 1 --out-of-place --wide -o"
    done, _ = forked(tmp_path, *arguments.split(), str(output))
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line and line[0] != "#" and "ratio" not in line]
    sizes = [["64", "B"], ["256", "B"], ["1", "KiB"]]
    assert [row[:2] for row in rows[::3]] == sizes * 2
    assert [row[2] for row in rows] == ["dist", "ring", "limit"] * 3 + ["dist", "binomial_tree", "limit"] * 3
    assert done.stderr.endswith(f"wrote {output}\n")
    assert "timing" not in done.stderr
    measurements = Measurements.load(output)
    assert [times.collective.value for times in measurements.collectives[::9]] == ["all_reduce", "broadcast"]
    assert all(len(times.times_s) == 3 for times in measurements.collectives)
    assert [times.wrong for times in measurements.collectives] == [0, 0, None] * 6
    assert not any(times.in_place for times in measurements.collectives)
    assert measurements.provenance["command"].startswith("torchrun --nproc-per-node 2 ")
    assert {"machine", "torch", "torch_threads", "OMP_NUM_THREADS", "date"} <= measurements.provenance.keys()


def test_polling_is_compared_with_and_without(tmp_path: Path) -> None:
    """A row for each size and implementation, with a ratio; the policy "normal" leaves Gloo's threads as they are."""
    few = ["--size", "1KiB", "--turns", "2", "--turn", "0.001"]
    first, _ = run_forked_programs(2, TIMEOUT_S, tmp_path, run_script, ROOT / "scripts" / "bench_polling.py", few)
    assert first.returncode == 0, first.stderr
    rows = [line.split(" | ") for line in first.stdout.splitlines() if line.startswith("| 1 KiB")]
    assert [row[1:3] for row in rows] == [["dist.all_reduce", "2"], ["ring", "2"]]
    assert all(float(row[-1].removesuffix(" |")) > 0 for row in rows)


def test_mistakes_are_found_without_torchrun(monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    """One line, exit code 2."""
    monkeypatch.delenv("RANK", raising=False)
    assert refusals_in(Path(__file__).with_name("mistakes.txt"), main) == snapshot


def test_help_is_printed_by_one_rank(tmp_path: Path) -> None:
    """And without an error of the others."""
    first, second = forked(tmp_path, "--help")
    assert (first.returncode, second.returncode) == (0, 0)
    assert (first.stdout.count("Usage: "), second.stdout, second.stderr) == (1, "", "")


@pytest.mark.parametrize(("options", "calm"), [(["--json"], True), (["-o", "-", "--gloo-thread-policy=normal"], False)])
def test_what_is_asked_for_is_all_that_stdout_holds(tmp_path: Path, options: list[str], calm: bool) -> None:
    """One JSON object, or with -o - the same as the file; it says whether polling was left as it is."""
    first, second = forked(tmp_path, "-b", "8K", "-e", "8K", "-n", "1", "--calls", "1", *options)
    assert (first.returncode, second.returncode, second.stdout) == (0, 0, ""), first.stderr
    data = json.loads(first.stdout, parse_constant=pytest.fail)
    assert {times["size_bytes"] for times in data["collectives"]} == {8192}
    assert data["provenance"]["calm_polling"] is calm


def leave_early(rank: int) -> None:
    """Rank 1 ends when it has met rank 0, which runs the benchmark."""
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"  # else rank 1 may have left while rank 0 still connects to it
    if rank == 0:
        main(["--timeout", "20s"], prog_name="benchmark")
    dist.init_process_group("gloo")
    os._exit(0)


def test_a_peer_that_fails_ends_the_others(tmp_path: Path) -> None:
    """With one line that says what it waited for, and exit code 1."""
    first, _ = run_forked_programs(2, TIMEOUT_S, tmp_path, leave_early)
    assert (first.returncode, first.stdout) == (1, "")
    lines = [line for line in first.stderr.splitlines() if line.startswith("rank 0: ")]
    assert len(lines) == 1
    assert " from rank 1 failed: " in lines[0]
    assert "Traceback" not in first.stderr


@pytest.mark.slow
def test_all_targets_are_measured(tmp_path: Path) -> None:
    """Quickly and on two ranks: a table for each, and a file for each."""
    options = ("--quick", "--ranks", "2", "-o", str(tmp_path))
    done = launch(Launcher(), str(ROOT / "scripts" / "bench_collectives.py"), *options, program=script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": ours over torch.distributed\n") == 4
    assert done.stdout.count(": ours over a plain ring\n") == 3
    assert len([Measurements.load(path) for path in tmp_path.iterdir()]) == 7


WHERE = {
    "command": "torchrun -m collectives.benchmark", "machine": "abacus", "cores": 2, "torch": "2.13",
    "OMP_NUM_THREADS": "1", "date": "today",
}  # fmt: skip


def times(algorithm: str, size_bytes: int, median_s: float, **more: object) -> CollectiveTimes:
    """Eleven iterations around the median."""
    times_s = tuple(median_s * (0.5 + 0.1 * step) for step in range(11))
    found = CollectiveTimes(
        Collective.ALL_REDUCE, algorithm, size_bytes, "float32", "sum", num_ranks=4, in_place=False, wrong=0, calls=1,
        times_s=times_s, arrival_skew_s=(0.0,) * 11, positions=(0,) * 11, rank_medians_s=(median_s,) * 4,
    )  # fmt: skip
    return replace(found, **more)  # type: ignore[arg-type]


MADE_UP = Measurements(
    4,
    WHERE,
    collectives=(
        times("dist", 64, 100e-6),
        times("ring", 64, 50e-6, wrong=3),
        times("dist", 64, 200e-6, in_place=True),
        times("ring", 64, 300e-6, in_place=True),
        times("dist", 67108864, 0.12),
        times("ring", 67108864, 0.09),
        times("plain_ring", 67108864, 0.06, wrong=None),
        times("limit", 67108864, 0.03, wrong=None),
        times("dist", 4096, 1e-3, collective=Collective.ALL_GATHER, op="none", dtype="bfloat16", in_place=True),
    ),
)


def test_the_table(snapshot: SnapshotAssertion) -> None:
    """It fits a terminal of 80 columns, and says what is wrong below; the wide one also says how times vary.

    A result that was not looked at has no number of wrong elements.
    """
    table = format_table(MADE_UP)
    assert all(len(line) < 80 for line in table.splitlines() if not line.startswith("#"))
    assert table == snapshot
    assert format_table(MADE_UP, wide=True) == snapshot
