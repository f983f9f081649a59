"""The files of calibrate and compare: logs, with what is said of single ones, and rows that are left out."""

import json
import os
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from ringsim.measurements import Measurements
from ringsim.network.file import read_network
from tests.ringsim.commands import as_json, printed, refused, run, written
from tests.ringsim.made_logs import bare, nccl_log, nccl_row

OSU = "# OSU MPI Allreduce Latency Test v5.7\n# Size       Avg Latency(us)\n" + "".join(
    f"{4**power}  {10 + 4**power / 1000:.2f}\n" for power in range(5, 12)
)


@pytest.fixture
def logs(tmp_path: Path) -> tuple[str, str]:
    """One that tells its ranks, and one that does not."""
    return str(written(tmp_path / "told.log", nccl_log("all_reduce", 4))), str(written(tmp_path / "osu.log", OSU))


def read(*arguments: object) -> tuple[set[tuple[int, int]], str]:
    """The ranks and hosts of what was read, and stderr; `calibrate`, which reads files alike, would take seconds."""
    result = run("compare", *arguments, "--network", "dgx-h100-cluster", "--json")
    cells = json.loads(result.stdout)["cells"]
    return {(cell["num_ranks"], cell["num_nodes"]) for cell in cells}, result.stderr


def test_what_is_said_of_one_log(logs: tuple[str, str]) -> None:
    """Holds for it alone; the options hold for those that do not tell."""
    told, osu = logs
    assert read(told, f"{osu}:nodes=2,ranks-per-node=4") == ({(4, 1), (8, 2)}, "")
    assert read(told, osu, "--nodes", "2", "--ranks-per-node", "4") == ({(4, 1), (8, 2)}, "")
    assert read(told, f"{osu}:nodes=3", "--nodes", "2", "--ranks-per-node", "4") == ({(4, 1), (12, 3)}, "")


UNFIT = ("nodes=0", "nodes=2,hosts=3", "nodes=two", "nodes=", "ranks-per-node=2,", "nodes=2,nodes=3", "nodes=8")
MISTAKES = (
    *(f"calibrate told.log:{shape}" for shape in (*UNFIT, "nodes=2,ranks-per-node=3")),
    "calibrate told.log told.log:nodes=2",
    "calibrate m.json:nodes=2,ranks-per-node=4",
    "calibrate m.json --nodes 2",
    "compare m.json:ranks-per-node=4 --network gbe",
    "compare m.json --ranks-per-node 4 --network gbe",
)


@pytest.mark.usefixtures("logs")
def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    """One line: for a shape that cannot be read, how to write it; where one of two was believed, both are refused.

    The shape of a measurements file is its own: nothing would follow from another one.
    """
    monkeypatch.chdir(tmp_path)
    Measurements(2, provenance={}).save(Path("m.json"))
    assert "".join(f"{command}\n{refused(*command.split())}" for command in MISTAKES) == snapshot


def test_two_ranks_of_one_host(tmp_path: Path) -> None:
    """Messages of OSU are between two hosts, unless it is said that they are not; a name may look like a shape."""
    path = written(tmp_path / "osu.log", OSU.replace("Allreduce Latency", "Latency"))
    named = written(tmp_path / "a.log:nodes=2", nccl_log("all_reduce", 4))
    for argument, shape in ((path, (2, 2)), (f"{path}:nodes=1", (2, 1)), (named, (4, 1))):
        assert read(argument) == ({shape}, "")


def test_rows_that_are_left_out(tmp_path: Path) -> None:
    """A line each on stderr, and one for those of which there are too many to name."""
    wrong = nccl_row("all_reduce", 2**20, 4, [1e-4], "12") + "\n"
    text = nccl_log("all_reduce", 4).replace("# Out of bounds values : 0 OK", wrong * 10)
    path = written(tmp_path / "a.log", text)
    lines = read(path)[1].splitlines()
    assert lines[0] == (
        f"left out: {path}: line 20: #wrong 12: its results were wrong, so the times are not valid: "
        "run the benchmark again"
    )
    assert (len(lines), lines[-1]) == (9, "left out: 2 more rows")
    assert len(as_json("calibrate", path)["left_out"]) == 10


def test_how_each_table_was_read(tmp_path: Path) -> None:
    """A line on stdout for each, or in the JSON, also of a collective that there is no formula for."""
    text, network = nccl_log("all_reduce", 16, 2), ("--network", "ib-100g")
    both = f"{text}# Collective test starting: alltoall_perf\n{nccl_log('all_gather', 16, 2)}"
    path = written(tmp_path / "a.log", both)
    lines = [
        f"read {path}: line 21: all_reduce (by its columns and rates) on 16 ranks of 2 hosts (lines 2 to 17)",
        f"read {path}: line 56: alltoall (line 35) is left out: there is no formula for it, only for all_reduce, "
        "all_gather, reduce_scatter, broadcast, reduce, sendrecv, pt2pt_latency, pt2pt_bandwidth",
    ]
    for command in (("calibrate", path), ("compare", path, *network)):
        assert printed(*command).splitlines()[:2] == lines
        assert [f"read {line}" for line in as_json(*command)["read"]] == lines
    done = run("calibrate", path, "-o", "-")
    assert done.stderr.splitlines()[:2] == lines
    assert read_network(done.stdout, "calibrated.toml").name == "calibrated"
    assert "is a pipe, which cannot be read twice" in refused("calibrate", f"/dev/fd/{os.pipe()[0]}")
    assert "alltoall (line 1)" in refused("compare", written(path, "$ ./alltoall_perf\n" + bare(text)), *network)


def test_runs_of_one_log_that_contradict_each_other(tmp_path: Path) -> None:
    """A median of both would be neither."""
    slow = "".join(f"{line.replace('  ', '  1')}\n" for line in OSU.splitlines())
    gloo = "Algorithm: allreduce_ring\nOptions: processes=8\n   elements   min (us)   p50 (us)\n{}  {}  {}\n".format
    both = "".join(gloo(size, time, time) for size in (1000, 4000, 16000) for time in (size, 3 * size))
    shape = ("--nodes", "2", "--ranks-per-node", "4")
    for text in (OSU + slow, both):
        path = written(tmp_path / "a.log", text)
        assert "contradictory: all_reduce" in run("compare", path, "--network", "ib-100g", *shape).stderr
    assert "contradictory: all_reduce" in printed("calibrate", path, *shape)


def test_small_messages_of_a_stream(tmp_path: Path) -> None:
    """Their number takes time, which there is no formula for."""
    text = OSU.replace("Allreduce Latency", "Bandwidth")
    data = as_json("compare", written(tmp_path / "a.log", text), "--network", "ib-100g")
    assert {cell["size_bytes"] for cell in data["cells"] if cell["predicted_s"]} == {4**10, 4**11}
