"""Reading what other people's benchmarks print."""

import re
import time
from pathlib import Path

import pytest

from ringsim.measurements.logs.lines import LogShape, LogTable
from ringsim.measurements.logs.reader import read_logs
from tests.ringsim.made_logs import LOGS, SIZES, nccl_log, nccl_row

RANKS = "".join(f"#   Rank  {rank} Pid 7 on      a0{rank // 2} device  {rank} [0x27] V100\n" for rank in range(4))
LOG = nccl_log("all_reduce", 4)
HEADER_AND_ROWS = [line for line in LOG.splitlines(True) if " size " in line or " float " in line]


def read(tmp_path: Path, text: str, **shape: int) -> LogTable:
    """The one table in a log with this text."""
    path = tmp_path / "a.log"
    path.write_text(text)
    (table,) = read_logs([path], **shape)
    return table


@pytest.mark.parametrize("test", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_table_of_nccl_tests(tmp_path: Path, test: str) -> None:
    """The test, which is not named, follows from the columns and bandwidths; sizes are of the whole tensor."""
    table = read(tmp_path, nccl_log(test, 8, 2))
    assert (table.benchmark, table.test, table.num_ranks, table.num_nodes) == ("nccl-tests", test, 8, 2)
    assert tuple(row.size_bytes for row in table.rows) == SIZES
    assert all(
        len(row.times_s) == 2 and row.times_s[0] == pytest.approx(row.times_s[1], rel=0.01) for row in table.rows
    )
    assert table.devices == ("NVIDIA A100",)


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "[prterun-node-1-99@1,0]<stdout>: ",
        "0: ",
        "[STAT]:",
        "[default0]:",
        "2025-05-01T12:00:01.5+00:00 ",
        "Thu May  1 12:00:01 2025<stdout>:",
        "node01: ",
        "[node01] ",
        "gpu-7.cluster.org | ",
        "(Worker pid=12, ip=10.0.0.1) ",
        "\x1b[m\x1b[K",  # as grep colours
    ],
)
@pytest.mark.parametrize("is_glued", [False, True])
def test_what_launchers_put_before_a_line_is_left_out(tmp_path: Path, prefix: str, is_glued: bool) -> None:
    """Of all lines, also where it stands right before a number; nothing is said of it."""
    lines = nccl_log("all_reduce", 4).splitlines()
    if is_glued and not prefix.endswith(" "):
        lines = [line.lstrip() for line in lines]
    table = read(tmp_path, "".join(f"{prefix}{line}\n" for line in lines))
    assert (len(table.rows), table.left_out) == (len(SIZES), ())


@pytest.mark.parametrize("label", ["node01: ", "[node01] ", "0: "])
def test_labels_of_tables_of_other_benchmarks(tmp_path: Path, label: str) -> None:
    """Are what stands before their headers; the numbers in them may change from line to line."""
    osu = "# OSU MPI Allreduce Latency Test v5.7\n# Size      Avg Latency(us)\n4096      8.00\n8192     16.00\n"
    gloo = "Algorithm: allreduce_ring\nOptions: processes=4\n   elements   min (us)   p50 (us)\n  1000  200  267\n"
    for text, num_rows in ((osu, 2), (gloo, 1)):
        lines = text.splitlines()
        labelled = [label.replace("01", f"{number:02}") + line for number, line in enumerate(lines)]
        assert len(read(tmp_path, "\n".join(labelled), num_nodes=2, ranks_per_node=2).rows) == num_rows


def test_long_lines_of_blanks_take_no_longer_than_others(tmp_path: Path) -> None:
    """The search for labels looks at each of their characters a few times, not thousands."""
    times_s = []
    for blanks in (" ", "."):
        begin_s = time.process_time()
        read(tmp_path, ("x" + blanks * (2**13 - 2) + "x\n") * 20 + nccl_log("all_reduce", 4))
        times_s.append(time.process_time() - begin_s)
    assert times_s[0] < 10 * times_s[1]


def with_row(row: str) -> str:
    """A log whose last row is this one."""
    text = nccl_log("all_reduce", 4)
    return text[: text.index("# Out of bounds")] + row + "\n"


def test_rows_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    """The others count. With wrong results in a row the last line of the log is no surprise.

    What stands before one row is no label, nor is a number, which would be one of the row's.
    """
    wrong = nccl_row("all_reduce", 2**20, 4, [1e-4], "12") + "\n# Out of bounds values : 3 FAILED"
    table = read(tmp_path, with_row(wrong + "\n>>1048576 262144 float sum -1 100.0 10.49 15.73 0"))
    assert len(table.rows) == len(SIZES)
    assert table.left_out == (
        f"{tmp_path}/a.log: line 20: #wrong 12: its results were wrong, so the times are not valid: "
        "run the benchmark again",
        f"{tmp_path}/a.log: line 22: looks like a row, but begins with '>>1048576': remove that",
    )
    lines = LOG.splitlines(keepends=True)
    for mark in ("node01: ", "7 "):
        table = read(tmp_path, "".join([*lines[:12], mark + lines[12], *lines[13:]]))
        assert len(table.rows) == len(SIZES) - 1
        (line,) = table.left_out
        assert line.endswith(f": line 13: looks like a row, but begins with '{mark.strip()}': remove that")


UNTIMED = "     1048576        262144     float     sum      -1" + 2 * "      N/A     N/A     N/A    N/A"
EMPTY = "           0             0     float    none      -1     7.59  0.00  0.00  0  7.52  0.00  0.00  0\n"
NOISE = "node0:12:34 [0] NCCL INFO NCCL_ALGO set by environment to Ring\nnode0:12:34 [0] NCCL INFO comm rank 0 of 8\n"
LABELLED = [f"node01: {line}\n" for line in LOG.splitlines()]
NO_SIGN = HEADER_AND_ROWS[0].replace("#", " ").replace("type ", "type,")


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + "".join(HEADER_AND_ROWS),  # as an editor puts it before the first line
        with_row("a float " * 2**17),  # which patterns would search from each of its words to its end
        with_row(UNTIMED),
        LOG.replace("        1024 ", EMPTY + "        1024 ", 1),  # as all_gather prints it
        "".join([*LABELLED[:12], "step 100 200 loss 0.123 0.456 1.5 3 4.5 6.6\n", *LABELLED[12:]]),
        LOG.replace(HEADER_AND_ROWS[0], NO_SIGN),
        "+ mpirun -np 4 ./build/all_reduce_perf -b 8 -e 1G\n" + LOG.replace("\n", f"\n{NOISE}"),
        LOG.replace("      -1", "      -1[0]").replace("      0", "      0[1,0]<stdout>:"),  # Open MPI's, in a row
    ],
    ids=range(8),
)
def test_what_stands_between_the_rows_is_no_row(tmp_path: Path, text: str) -> None:
    """Neither other programs' numbers nor rows without bytes or times; the rows count, and nothing is left out."""
    table = read(tmp_path, text, num_nodes=1)
    assert (table.test, table.num_ranks, len(table.rows), table.left_out) == ("all_reduce", 4, len(SIZES), ())
    assert table.environment.get("nccl_algo") == ("Ring" if NOISE in text else None)


@pytest.mark.parametrize(("wrong", "is_left_out"), [("N/A", False), ("0", False), ("0.0", False), ("nan", True)])
def test_results_that_are_not_a_number_are_wrong(tmp_path: Path, wrong: str, is_left_out: bool) -> None:
    """Those that were not looked at are not."""
    table = read(tmp_path, with_row(nccl_row("all_reduce", 2**20, 4, [1e-4, 1e-4], wrong)))
    assert len(table.rows) == len(SIZES) + (not is_left_out)
    place = f"{tmp_path}/a.log: line 20: #wrong {wrong}: its results were wrong, so the times are not valid: run the "
    assert table.left_out == ((f"{place}benchmark again",) if is_left_out else ())


ROW = nccl_row("all_reduce", 2**20, 4, [1e-4, 1e-4])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (f"{ROW[:50]} node0:12:34 [0] NCCL INFO Channel 00/02 : 0", "'NCCL INFO' is in the row: write NCCL's log to"),
        (f"{ROW} [1,0]<stdout>: {ROW}", "26 values under 13 columns: another process printed into it"),
        (ROW[:62], "6 values under 13 columns: the log is cut off"),
        (ROW.replace("100.00", "100.0us"), "'100.0us' is not a number: write it as"),
        (ROW.replace(".", ","), "'100,00' is not a number: write it as"),
        (ROW.replace("1048576", "1,048,576"), "looks like a row, but begins with '1,048,576': write it without"),
        (ROW.replace("262144", "262,144"), "looks like a row, but begins with '262,144': write it without separators"),
        (ROW.replace("1048576", "9" * 5000), "'99999999"),
        ("node2: Test NCCL failure common.cu:961", "'node2: Test NCCL failure common.cu:961': the run failed"),
    ],
)
def test_a_row_that_cannot_be_read(tmp_path: Path, row: str, why: str) -> None:
    """It is left out with its line and the reason, and the others count: several ranks may print to one log."""
    table = read(tmp_path, with_row(row))
    assert len(table.rows) == len(SIZES)
    assert [line.startswith(f"{tmp_path}/a.log: line 20: {why}") for line in table.left_out] == [True]


def test_a_run_of_which_all_rows_are_left_out(tmp_path: Path) -> None:
    """Is no table, and the others are, as where each size has a run of its own."""
    header = HEADER_AND_ROWS[0]
    wrong = nccl_row("all_reduce", 2**20, 4, [1e-4], "12") + "\n"
    head = nccl_log("all_reduce", 4)[: nccl_log("all_reduce", 4).index(header)]
    for text in (head + header + wrong + "".join(HEADER_AND_ROWS), head + "".join(HEADER_AND_ROWS) + header + wrong):
        table = read(tmp_path, text)
        assert len(table.rows) == len(SIZES)
        (line,) = table.left_out
        assert "#wrong 12: its results were wrong" in line


def test_small_sizes_of_another_collective(tmp_path: Path) -> None:
    """Are not taken for those of the run beside them: the size is as many counts as there are ranks, or one."""
    path = tmp_path / "a.log"
    path.write_text(nccl_log("all_reduce", 4) + nccl_log("reduce_scatter", 4, sizes=(64, 128, 256)))
    assert [table.test for table in read_logs([path])] == ["all_reduce", "reduce_scatter"]
    small = nccl_log("all_reduce", 4, sizes=(64, 128, 256))
    path.write_text(nccl_log("reduce_scatter", 4) + small)
    assert [table.test for table in read_logs([path])] == ["reduce_scatter", "all_reduce"]
    path.write_text(nccl_log("reduce_scatter", 4) + small.replace("      0", "    N/A"))  # sendrecv as well
    with pytest.raises(ValueError, match="cannot tell which of all_reduce"):
        read_logs([path])


def test_runs_of_one_size_vouch_for_each_other(tmp_path: Path) -> None:
    """A process for each size prints a header for each; small sizes have too few digits to tell the collective."""
    lines = nccl_log("reduce_scatter", 8).splitlines(keepends=True)
    header = next(line for line in lines if " size " in line)
    text = "".join(header + line if line.lstrip()[:1].isdigit() else line for line in lines)
    path = tmp_path / "a.log"
    path.write_text(text)
    tables = read_logs([path])
    assert [(table.test, table.num_ranks, len(table.rows)) for table in tables] == [("reduce_scatter", 8, 1)] * len(
        SIZES
    )
    assert tuple(row.size_bytes for table in tables for row in table.rows) == SIZES
    only_small = "".join(line for line in lines if not line.lstrip()[:1].isdigit()) + nccl_row(
        "reduce_scatter", 8, 8, [1e-5]
    )
    with pytest.raises(ValueError, match="cannot tell which of all_reduce, reduce_scatter, sendrecv this is: keep the"):
        read(tmp_path, only_small)


@pytest.mark.parametrize(
    ("test", "num_ranks", "sizes"),
    [("all_reduce", 3, SIZES), ("all_reduce", 32, SIZES), ("all_gather", 10, SIZES),
     ("all_gather", 100, (400, 800)), ("reduce_scatter", 100, (400, 800))],
)  # fmt: skip
def test_ranks_follow_from_the_rates(tmp_path: Path, test: str, num_ranks: int, sizes: tuple[int, ...]) -> None:
    """Where no line tells them; if the rates have too few digits, exactly from the counts."""
    lines = nccl_log(test, num_ranks, sizes=sizes).splitlines(keepends=True)
    text = "".join(line for line in lines if " Rank " not in line)
    assert read(tmp_path, text, num_nodes=1).num_ranks == num_ranks


@pytest.mark.parametrize(
    ("header", "row", "test", "size_bytes", "time_s"),
    [
        # The column before #wrong held the largest difference, which is not a number of elements.
        (" redop     time   algbw   busbw  error", "sum    100.0   10.49   15.73  5e-07", "all_reduce", 2**20, 1e-4),
        (" redop     time   algbw   busbw  res", "sum  0.100  10.49  15.73  1e-05", "all_reduce", 2**20, 1e-4),  # ms
        ("  time   algbw   busbw  error", " 400.0   10.49    7.86    N/A", "all_gather", 2**22, 4e-4),  # of one rank
    ],
)
def test_tables_of_older_versions(
    tmp_path: Path, header: str, row: str, test: str, size_bytes: int, time_s: float
) -> None:
    """Without a root, in milliseconds, which show in the bandwidth, or with the size that one rank gives."""
    table = read(tmp_path, f"{RANKS}#       size         count    type  {header}\n1048576 262144 float {row}\n")
    assert (table.test, table.num_ranks, table.num_nodes) == (test, 4, 2)
    assert (table.rows[0].size_bytes, table.rows[0].times_s) == (size_bytes, (pytest.approx(time_s),))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (LogShape(), (8, 2)),  # as the options say, which are for logs that do not tell
        (LogShape(4), (16, 4)),
        (LogShape(4, 2), (8, 4)),
    ],
)
def test_logs_of_different_shapes(tmp_path: Path, shape: LogShape, expected: tuple[int, int]) -> None:
    """The options say nothing of a log that tells; what is said of one log alone comes first."""
    paths = [tmp_path / "told.log", tmp_path / "osu.log"]
    paths[0].write_text(nccl_log("all_reduce", 4))
    paths[1].write_text("# OSU MPI Allreduce Latency Test v5.7\n# Size       Avg Latency(us)\n1024     9.00\n")
    tables = read_logs(paths, 2, 4, {paths[1]: shape})
    assert [(table.num_ranks, table.num_nodes) for table in tables] == [(4, 1), expected]
    (table,) = read_logs(paths[:1], shapes={paths[0]: LogShape(2, 2)})  # containers may print the same name
    assert (table.num_ranks, table.num_nodes) == (4, 2)
    with pytest.raises(ValueError, match="told.log: 4 ranks in the log, but 2 hosts of 4 were given for it: leave th"):
        read_logs(paths[:1], shapes={paths[0]: LogShape(2, 4)})


@pytest.mark.parametrize(
    ("title", "column", "test", "time_s"),
    [
        ("# OSU MPI Latency Test v5.7", "Latency (us)", "pt2pt_latency", 8e-6),
        ("# OSU MPI-CUDA Bandwidth Test v5.9", "Bandwidth (MB/s)", "pt2pt_bandwidth", 4096 / 8e6),
        ("# [ pairs: 1 ]\n# OSU MPI Multi Latency Test v7.3", "Latency (us)", "pt2pt_latency", 8e-6),
    ],
)
def test_osu_between_two_ranks(tmp_path: Path, title: str, column: str, test: str, time_s: float) -> None:
    """On two hosts, if the log does not say otherwise."""
    table = read(tmp_path, f"{title}\n# Datatype: MPI_CHAR.\n# Size      {column}\n0    1.0\n4096      8.00\n")
    assert (table.test, table.num_ranks, table.num_nodes) == (test, 2, 2)
    assert [(row.size_bytes, row.times_s) for row in table.rows] == [(4096, (pytest.approx(time_s),))]


@pytest.mark.parametrize("row", ["2048  9", "2048  1 9.00", "2048  9.00  Fail", "2048  9,00", "1 2"])
def test_osu_rows_that_cannot_be_read(tmp_path: Path, row: str) -> None:
    """A cut one, one that another process printed into, wrong results: left out with a line."""
    rows = f"# Size  Latency (us)\n1024  8.00\n{row}\n4096  9.00\n"
    table = read(tmp_path, f"# OSU MPI Multi\tLatency Test\n{rows}", num_nodes=2, ranks_per_node=4)
    assert ([row.size_bytes for row in table.rows], table.num_ranks) == ([1024, 4096], 8)
    assert "line 4" in table.left_out[0]


@pytest.mark.parametrize(("name", "test", "whole"), [("Allreduce", "all_reduce", 1), ("Allgather", "all_gather", 8)])
def test_osu_collectives(tmp_path: Path, name: str, test: str, whole: int) -> None:
    """Their ranks are the user's to tell; allgather prints the size of one rank's part."""
    text = f"\n# OSU MPI {name} Latency Test v5.7\n# Size       Avg Latency(us)   Min\n1024     9.00   8.00\n"
    table = read(tmp_path, text, num_nodes=2, ranks_per_node=4)
    assert (table.test, table.num_ranks, table.num_nodes) == (test, 8, 2)
    assert table.rows[0].size_bytes == 1024 * whole


def test_gloo(tmp_path: Path) -> None:
    """Elements are of 4 bytes; the spread is between the fastest and the 99th percentile."""
    text = (
        "Algorithm:   allreduce_ring_chunked\nOptions:     processes=4, inputs=1, threads=1\n\n"
        "   elements   min (us)   p50 (us)   p99 (us)   max (us)    samples\n"
        "       1000        200        267        330        380       3344\n"
    )
    table = read(tmp_path, text, num_nodes=4)
    (row,) = table.rows
    assert (table.test, table.num_ranks, row.size_bytes) == ("all_reduce", 4, 4000)
    assert (row.low_s, *row.times_s, row.high_s) == pytest.approx((200e-6, 267e-6, 330e-6))
    assert read(tmp_path, re.sub(" +", " ", text), num_nodes=4).rows == table.rows


def only_row(row: str) -> str:
    """A log with this row alone."""
    text = nccl_log("all_reduce", 4)
    return text[: text.index(f"{SIZES[0]:12} ")] + row + "\n"


def without_rank(rank: int, test: str = "all_reduce") -> str:
    """A log of 4 ranks in which the line of one is missing."""
    lines = nccl_log(test, 4).splitlines(keepends=True)
    return "".join(line for line in lines if f"Rank {rank:2} " not in line)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "line 1: no table of nccl-tests, OSU micro-benchmarks or Gloo's benchmark in it"),
        ("\x89PNG\r\n\0\0", "is not text"),
        (
            only_row(nccl_row("all_reduce", 2**20, 4, [1e-4], "12")),
            "line 9: #wrong 12: its results were wrong, so the times are not valid: run the benchmark again"
        ),
        (
            with_row("     1048576        262144     float     sum      -1    100.0   20.49   30.73      0"),
            "line 20: 1048576 bytes in 0.0001 s are 10.5 GB/s, but the row says 20.49: it contradicts itself",
        ),
        (nccl_log("all_reduce", 4).replace("0 OK", "3 FAILED"), "its results were wrong"),
        (without_rank(3), "times 1.333, which is 2(n - 1)/n for the n = 3 ranks that the log names"),
        (
            without_rank(3, "all_gather"),
            "line 18: 1073741824 bytes are 4 times the count, one for each rank, and not the 3 ranks that the log names"
        ),
        (
            with_row("     1048576        262144     float     sum      -1    100.0     nan     nan      0"),
            "line 20: 1048576 bytes in 0.0001 s are 10.5 GB/s, but the row says nan: it contradicts itself",
        ),
        (without_rank(1), "the list of ranks has no line of rank 1, but one of rank 3"),
        ("# OSU MPI Allreduce Latency Test v5.7\n# Size Avg\n8   1.0\n", "line 3: the log does not contain the"),
        (
            "mpirun -np 4 osu_allreduce\n# OSU MPI Allreduce Latency Test v5.7\n# Size Avg\n8   1.0\n",
            "line 4: the log does not contain the number of hosts of its 4 ranks: give --nodes and --ranks-per-node",
        ),
        (nccl_log("all_reduce", 4) + nccl_log("all_reduce", 4, device="NVIDIA H100"), "logs of different machines"),
        (f"mpirun -np {'9' * 5000} osu_latency\n# OSU MPI Latency Test\n8 1.0\n", "line 1: '99999999"),
        ("# OSU MPI Latency Test v5.7\n8   1.0e300\n", "line 2: time = 1e+294: must be seconds, at least 1e-12 and at"),
        ("# OSU MPI Latency Test v5.7\n8   1.0e-300\n", "line 2: time = 1e-306: must be seconds, at least 1e-12"),
        (
            f"Algorithm: allreduce_ring\n   elements   min (us)   p50 (us)\n{'9' * 500}  1  2\n",
            "line 3: '99999999"
        ),
        ("# OSU MPI Latency Test v5.7\n8   1.0-2\n", "line 2: '1.0-2' is not a number"),
        ("# OSU MPI Latency Test v5.7\n# Size  Latency (ms)\n8   1.0\n", "line 2: (ms) is no unit of OSU: convert the"),
        ("# OSU MPI Bandwidth Test v5.7\n# Size  GB/s\n8   1.0\n", "line 2: GB/s is no unit of OSU: convert the"),
        ("# OSU MPI Multi Latency Test v5.7\n8   1.0\n", "line 2: the log does not contain the number of ranks"),
        (without_rank(3).replace("nGpus 1", "nGpus 4"), "the list of ranks has no line of rank 3, but one of rank 2"),
        ("# OSU MPI Multi Latency Test\n# pairs: 99999999\n8   1.0\n", "line 3: ranks = 199999998: must be a whole"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """With file, line, what is wrong, and what to do."""
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/a.log: ")
    assert "\n" not in str(caught.value)


def public(name: str) -> tuple[LogTable, ...]:
    """The tables of a public log as its authors left it."""
    path = LOGS / "raw" / f"{name}.txt"
    if not path.exists():
        pytest.skip("the public logs are not beside the repository, in ../shared/nccl-logs")
    return read_logs([path])


def test_public_logs_as_they_are() -> None:
    """With prefixes right before numbers, headers without their sign, wrong results, and several collectives."""
    for name, expected in (
        ("alps-gh200-all_reduce-N4", ("all_reduce", 16, 4, 30)),
        ("alps-gh200-all_reduce-N8", ("all_reduce", 32, 8, 29)),  # the results of one more were wrong
        ("coreweave-a100-all_gather-n5-raw", ("all_gather", 5, 1, 23)),
    ):
        (table,) = public(name)
        assert (table.test, table.num_ranks, table.num_nodes, len(table.rows)) == expected
    tables = public("h100cluster-N10-G2")
    assert {(table.num_ranks, table.num_nodes) for table in tables} == {(20, 10)}
    assert {"all_reduce", "all_gather", "reduce_scatter", "sendrecv"} <= {table.test for table in tables}


UNUSABLE = {"abci-a100-p2pBandwidthLatency": "no table of", "coreweave-a100-sendrecv-n4": "#wrong 96"}


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.txt")) or [None], ids=lambda path: path.stem if path else "none")
def test_public_logs(path: Path | None) -> None:
    """Each is read as what its name says, or refused for what is wrong with it."""
    if path is None:
        pytest.skip("the public logs are not beside the repository, in ../shared/nccl-logs")
    if path.stem in UNUSABLE:
        with pytest.raises(ValueError, match=re.escape(UNUSABLE[path.stem])):
            read_logs([path])
        return
    (table,) = read_logs([path])
    name = path.stem.replace("osu_allreduce", "all_reduce").replace("allreduce_ring", "all_reduce")
    assert table.test.removesuffix("_bandwidth").removesuffix("_latency") in name.replace("osu_latency", "pt2pt")
    for sign, value in (("n", table.num_ranks), ("N", table.num_nodes)):
        told = re.search(rf"-{sign}(\d+)\b", path.stem)
        assert told is None or int(told[1]) == value
    assert len(table.rows) >= 3
