"""The files of calibrate and compare: logs, with what is said of single ones, and rows that are left out."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringsim.cli import main
from ringsim.measurements import Measurements
from ringsim.network.file_reader import read_network
from tests.ringsim.commands import as_json, printed, refused, run
from tests.ringsim.made_logs import bare, nccl_log, nccl_row

OSU = "# OSU MPI Allreduce Latency Test v5.7\n# Size       Avg Latency(us)\n" + "".join(
    f"{4**power}  {10 + 4**power / 1000:.2f}\n" for power in range(5, 12)
)


@pytest.fixture
def logs(tmp_path: Path) -> tuple[str, str]:
    """One that tells its ranks, and one that does not."""
    paths = tmp_path / "told.log", tmp_path / "osu.log"
    for path, text in zip(paths, (nccl_log("all_reduce", 4), OSU), strict=True):
        path.write_text(text)
    return str(paths[0]), str(paths[1])


def calibrated(*arguments: str) -> tuple[int, set[tuple[int, int]], str]:
    """Exit code, the ranks and hosts of what was calibrated, and stderr."""
    result = CliRunner().invoke(main, ["calibrate", *arguments, "--json"])
    cells = json.loads(result.stdout)["cells"] if result.exit_code == 0 else []
    return result.exit_code, {(cell["num_ranks"], cell["num_nodes"]) for cell in cells}, result.stderr


def test_what_is_said_of_one_log(logs: tuple[str, str]) -> None:
    """Holds for it alone; the options hold for those that do not tell."""
    told, osu = logs
    assert calibrated(told, f"{osu}:nodes=2,ranks-per-node=4") == (0, {(4, 1), (8, 2)}, "")
    assert calibrated(told, osu, "--nodes", "2", "--ranks-per-node", "4") == (0, {(4, 1), (8, 2)}, "")
    assert calibrated(told, f"{osu}:nodes=3", "--nodes", "2", "--ranks-per-node", "4") == (0, {(4, 1), (12, 3)}, "")


@pytest.mark.parametrize(
    "shape", ["nodes=0", "nodes=2,hosts=3", "nodes=two", "nodes=", "ranks-per-node=2,", "nodes=2,nodes=3"]
)
def test_a_shape_that_cannot_be_read(logs: tuple[str, str], shape: str) -> None:
    """One line, which shows how to write it."""
    exit_code, _, errors = calibrated(f"{logs[0]}:{shape}")
    assert exit_code == 2
    assert errors == (
        f"ringsim calibrate: Invalid value for 'FILES...': {logs[0]}:{shape}: "
        f"write it as {logs[0]}:nodes=2,ranks-per-node=4\n"
    )


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (["", ":nodes=2"], "is given twice, with different hosts or ranks: give it once"),
        ([":nodes=8"], "4 ranks in the log, but 8 hosts were given: a host has at least one rank"),
        ([":nodes=2,ranks-per-node=3"], "4 ranks in the log, but 2 hosts of 3 were given for it: leave that out"),
    ],
)
def test_shapes_that_cannot_be(logs: tuple[str, str], shapes: list[str], message: str) -> None:
    """Are refused in one line, where one of two was believed, or more hosts than ranks."""
    exit_code, _, errors = calibrated(*(f"{logs[0]}{shape}" for shape in shapes))
    assert (exit_code, errors) == (2, f"ringsim: {logs[0]}: {message}\n")


@pytest.mark.parametrize(
    ("shape", "options"),
    [(":nodes=2,ranks-per-node=4", ()), (":ranks-per-node=4", ()), ("", ("--nodes", 2)), ("", ("--ranks-per-node", 4))],
)
@pytest.mark.parametrize("command", ["calibrate", "compare"])
def test_the_shape_of_a_measurements_file_is_its_own(
    tmp_path: Path, command: str, shape: str, options: tuple[object, ...]
) -> None:
    """To give another one is refused: nothing would follow from it."""
    path = tmp_path / "measured.json"
    Measurements(2, provenance={}).save(path)
    network = ("--network", "gbe") if command == "compare" else ()
    assert refused(command, f"{path}{shape}", *options, *network).endswith(
        f"{path}: is a measurements file, which tells its ranks and hosts: leave out nodes and ranks-per-node, which "
        "are for logs\n"
    )


def test_two_ranks_of_one_host(tmp_path: Path) -> None:
    """Messages of OSU are between two hosts, unless it is said that they are not."""
    path = tmp_path / "osu.log"
    path.write_text(OSU.replace("Allreduce Latency", "Latency"))
    assert calibrated(str(path)) == (0, {(2, 2)}, "")
    assert calibrated(f"{path}:nodes=1") == (0, {(2, 1)}, "")


def test_a_file_whose_name_looks_like_a_shape(tmp_path: Path) -> None:
    """Is that file."""
    path = tmp_path / "a.log:nodes=2"
    path.write_text(nccl_log("all_reduce", 4))
    assert calibrated(str(path)) == (0, {(4, 1)}, "")


def test_rows_that_are_left_out(tmp_path: Path) -> None:
    """A line each on stderr, and one for those of which there are too many to name."""
    path = tmp_path / "a.log"
    wrong = nccl_row("all_reduce", 2**20, 4, [1e-4], "12") + "\n"
    path.write_text(nccl_log("all_reduce", 4).replace("# Out of bounds values : 0 OK", wrong * 10))
    exit_code, cells, errors = calibrated(str(path))
    assert (exit_code, cells) == (0, {(4, 1)})
    lines = errors.splitlines()
    assert lines[0] == (
        f"left out: {path}: line 20: #wrong 12: its results were wrong, so the times are not valid: "
        "run the benchmark again"
    )
    assert (len(lines), lines[-1]) == (9, "left out: 2 more rows")
    assert len(as_json("calibrate", path)["left_out"]) == 10


def test_how_each_table_was_read(tmp_path: Path) -> None:
    """A line on stdout for each, or in the JSON, also of a collective that there is no formula for."""
    path, network = tmp_path / "a.log", ("--network", "ib-100g")
    text = nccl_log("all_reduce", 16, 2)
    path.write_text(f"{text}# Collective test starting: alltoall_perf\n{nccl_log('all_gather', 16, 2)}")
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
    assert "alltoall (line 1)" in refused("compare", with_text(path, "$ ./alltoall_perf\n" + bare(text)), *network)


def with_text(path: Path, text: str) -> Path:
    """The file, with another text."""
    path.write_text(text)
    return path


def test_runs_of_one_log_that_contradict_each_other(tmp_path: Path) -> None:
    """A median of both would be neither."""
    slow = "".join(f"{line.replace('  ', '  1')}\n" for line in OSU.splitlines())
    gloo = "Algorithm: allreduce_ring\nOptions: processes=8\n   elements   min (us)   p50 (us)\n{}  {}  {}\n".format
    both = "".join(gloo(size, time, time) for size in (1000, 4000, 16000) for time in (size, 3 * size))
    shape = ("--nodes", "2", "--ranks-per-node", "4")
    for text in (OSU + slow, both):
        path = with_text(tmp_path / "a.log", text)
        assert "contradictory: all_reduce" in run("compare", path, "--network", "ib-100g", *shape).stderr
    assert "contradictory: all_reduce" in printed("calibrate", path, *shape)


def test_small_messages_of_a_stream(tmp_path: Path) -> None:
    """Their number takes time, which there is no formula for."""
    text = OSU.replace("Allreduce Latency", "Bandwidth")
    data = as_json("compare", with_text(tmp_path / "a.log", text), "--network", "ib-100g")
    assert {cell["size_bytes"] for cell in data["cells"] if cell["predicted_s"]} == {4**10, 4**11}
