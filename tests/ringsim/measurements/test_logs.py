"""Reading what other people's benchmarks print.

The snapshots hold what was read: a line for each table, one for each row or table that is left out, or the line that
refuses the log.
"""

import re
import time
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from ringsim.measurements.log_lines import LogTable
from ringsim.measurements.log_reader import read_logs
from tests.ringsim.made_logs import LOGS, SIZES, nccl_log, nccl_row, read_text

LOG = nccl_log("all_reduce", 4)
HEAD = LOG[: LOG.index("#       size")]
HEADER, *ROWS = [line for line in LOG.splitlines(True) if " size " in line or " float " in line]


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


PREFIXES = (
    "[1,0]<stdout>:", "[prterun-node-1-99@1,0]<stdout>: ", "0: ", "[STAT]:", "[default0]:", "node01: ", "[node01] ",
    "2025-05-01T12:00:01.5+00:00 ", "Thu May  1 12:00:01 2025<stdout>:", "gpu-7.cluster.org | ",
    "(Worker pid=12, ip=10.0.0.1) ", "\x1b[m\x1b[K",  # as grep colours
)  # fmt: skip
OSU = "# OSU MPI Allreduce Latency Test v5.7\n# Size      Avg Latency(us)\n4096      8.00\n8192     16.00\n"
GLOO = "Algorithm: allreduce_ring\nOptions: processes=4\n   elements   min (us)   p50 (us)\n  1000  200  267\n"


@pytest.mark.parametrize("prefix", PREFIXES, ids=range(len(PREFIXES)))
@pytest.mark.parametrize("is_glued", [False, True])
def test_what_launchers_put_before_a_line_is_left_out(tmp_path: Path, prefix: str, is_glued: bool) -> None:
    """Of all lines, also where it stands right before a number; nothing is said of it."""
    lines = LOG.splitlines()
    if is_glued and not prefix.endswith(" "):
        lines = [line.lstrip() for line in lines]
    table = read(tmp_path, "".join(f"{prefix}{line}\n" for line in lines))
    assert (len(table.rows), table.left_out) == (len(SIZES), ())


@pytest.mark.parametrize("label", ["node01: ", "[node01] ", "0: "])
def test_labels_of_tables_of_other_benchmarks(tmp_path: Path, label: str) -> None:
    """Are what stands before their headers; the numbers in them may change from line to line."""
    for text, num_rows in ((OSU, 2), (GLOO, 1)):
        labelled = [label.replace("01", f"{number:02}") + line for number, line in enumerate(text.splitlines())]
        assert len(read(tmp_path, "\n".join(labelled), num_nodes=2, ranks_per_node=2).rows) == num_rows


def test_long_lines_of_blanks_take_no_longer_than_others(tmp_path: Path) -> None:
    """The search for labels looks at each of their characters a few times, not thousands."""
    times_s = []
    for blanks in (" ", "."):
        begin_s = time.process_time()
        read(tmp_path, ("x" + blanks * (2**13 - 2) + "x\n") * 20 + LOG)
        times_s.append(time.process_time() - begin_s)
    assert times_s[0] < 10 * times_s[1]


def with_row(row: str, log: str = LOG) -> str:
    """A log whose last row is this one."""
    return log[: log.index("# Out of bounds")] + row + "\n"


def last_row(time: str, algbw: str, busbw: str, wrong: str = "0") -> str:
    """A log whose last row, of 1 MiB, has these values."""
    return with_row(f"     1048576        262144     float     sum      -1    {time}   {algbw}   {busbw}      {wrong}")


UNTIMED = "     1048576        262144     float     sum      -1" + 2 * "      N/A     N/A     N/A    N/A"
EMPTY = "           0             0     float    none      -1     7.59  0.00  0.00  0  7.52  0.00  0.00  0\n"
NOISE = "node0:12:34 [0] NCCL INFO NCCL_ALGO set by environment to Ring\nnode0:12:34 [0] NCCL INFO comm rank 0 of 8\n"
LABELLED = [f"node01: {line}\n" for line in LOG.splitlines()]
NO_SIGN = HEADER.replace("#", " ").replace("type ", "type,")
BETWEEN_ROWS = [
    "\ufeff" + HEADER + "".join(ROWS),  # as an editor puts it before the first line
    with_row("a float " * 2**17),  # which patterns would search from each of its words to its end
    with_row(UNTIMED),
    LOG.replace("        1024 ", EMPTY + "        1024 ", 1),  # as all_gather prints it
    "".join([*LABELLED[:12], "step 100 200 loss 0.123 0.456 1.5 3 4.5 6.6\n", *LABELLED[12:]]),
    LOG.replace(HEADER, NO_SIGN),
    "+ mpirun -np 4 ./build/all_reduce_perf -b 8 -e 1G\n" + LOG.replace("\n", f"\n{NOISE}"),
    LOG.replace("      -1", "      -1[0]").replace("      0", "      0[1,0]<stdout>:"),  # Open MPI's, in a row
]


@pytest.mark.parametrize("text", BETWEEN_ROWS, ids=range(len(BETWEEN_ROWS)))
def test_what_stands_between_the_rows_is_no_row(tmp_path: Path, text: str) -> None:
    """Neither other programs' numbers nor rows without bytes or times; the rows count, and nothing is left out."""
    table = read(tmp_path, text, num_nodes=1)
    assert (table.test, table.num_ranks, len(table.rows), table.left_out) == ("all_reduce", 4, len(SIZES), ())
    assert table.environment.get("nccl_algo") == ("Ring" if NOISE in text else None)


ROW = nccl_row("all_reduce", 2**20, 4, [1e-4, 1e-4])
WRONG = nccl_row("all_reduce", 2**20, 4, [1e-4], "12")
LEFT_OUT = {
    "wrong results, and a mark": with_row(
        f"{WRONG}\n# Out of bounds values : 3 FAILED\n>>1048576 262144 float sum -1 100.0 10.49 15.73 0"
    ),
    # What stands before one row is no label, nor is a number, which would be one of the row's.
    "a name before a row": HEAD + HEADER + "".join([*ROWS[:4], f"node01: {ROWS[4]}", *ROWS[5:]]),
    "a number before a row": HEAD + HEADER + "".join([*ROWS[:4], f"7 {ROWS[4]}", *ROWS[5:]]),
    **{f"#wrong {wrong}": with_row(ROW.replace("      0", f"      {wrong}")) for wrong in ("N/A", "0.0", "nan")},
    "NCCL INFO": with_row(f"{ROW[:50]} node0:12:34 [0] NCCL INFO Channel 00/02 : 0"),
    "two rows in a line": with_row(f"{ROW} [1,0]<stdout>: {ROW}"),
    "a cut row": with_row(ROW[:62]),
    "a unit": with_row(ROW.replace("100.00", "100.0us")),
    "commas for points": with_row(ROW.replace(".", ",")),
    "a separated size": with_row(ROW.replace("1048576", "1,048,576")),
    "a separated count": with_row(ROW.replace("262144", "262,144")),
    "many digits": with_row(ROW.replace("1048576", "9" * 5000)),
    "a failure": with_row("node2: Test NCCL failure common.cu:961"),
    # A run of which all rows are left out is no table, and the others are, as where each size has a run of its own.
    "a wrong run first": f"{HEAD}{HEADER}{WRONG}\n{HEADER}{''.join(ROWS)}",
    "a wrong run last": f"{HEAD}{HEADER}{''.join(ROWS)}{HEADER}{WRONG}\n",
    "rows of OSU": "# OSU MPI Latency Test\n# Size  Latency (us)\n1024  8.00\n2048  9\n2048  1 9.00\n2048  9.00  Fail\n"
    "2048  9,00\n1 2\n4096  9.00\n",
}  # fmt: skip


def test_a_row_that_cannot_be_read(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """It is left out with its line and the reason, and the others count: several ranks may print to one log."""
    assert {name: read_text(tmp_path, text) for name, text in LEFT_OUT.items()} == snapshot


def test_small_sizes_of_another_collective(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Are not taken for those of the run beside them: the size is as many counts as there are ranks, or one.

    A process for each size prints a header for each; small sizes have too few digits to tell the collective.
    """
    small, scatter = nccl_log("all_reduce", 4, sizes=(64, 128, 256)), nccl_log("reduce_scatter", 8)
    alone = re.sub(r"(?m)^ +\d.*\n", "", scatter) + nccl_row("reduce_scatter", 8, 8, [1e-5])
    texts = {
        "small last": LOG + nccl_log("reduce_scatter", 4, sizes=(64, 128, 256)),
        "large last": nccl_log("reduce_scatter", 4) + small,
        "sendrecv as well": nccl_log("reduce_scatter", 4) + small.replace("      0", "    N/A"),
        "a header for each": re.sub(r"(?m)^ +\d", lambda match: HEADER + match[0], scatter),
        "alone": alone,
    }
    assert {name: read_text(tmp_path, text) for name, text in texts.items()} == snapshot


@pytest.mark.parametrize(
    ("test", "num_ranks", "sizes"),
    [("all_reduce", 3, SIZES), ("all_reduce", 32, SIZES), ("all_gather", 10, SIZES),
     ("all_gather", 100, (400, 800)), ("reduce_scatter", 100, (400, 800))],
)  # fmt: skip
def test_ranks_follow_from_the_rates(tmp_path: Path, test: str, num_ranks: int, sizes: tuple[int, ...]) -> None:
    """Where no line tells them; if the rates have too few digits, exactly from the counts."""
    text = nccl_log(test, num_ranks, sizes=sizes).replace(" Rank ", " ")
    assert read(tmp_path, text, num_nodes=1).num_ranks == num_ranks


def osu(title: str, rows: str = "8   1.0", head: str = "") -> str:
    """A log of an OSU benchmark."""
    return f"{head}# OSU {title} Test v5.7\n{rows}\n"


OLD = HEAD + "#       size         count    type  {}\n1048576 262144 float {}\n"


@pytest.mark.parametrize(
    ("text", "test", "shape", "size_bytes", "time_us"),
    [
        # The column before #wrong held the largest difference, which is not a number of elements; no root; in ms; or
        # with the size that one rank gives.
        (OLD.format("redop time algbw busbw error", "sum 100.0 10.49 15.73 5e-07"), "all_reduce", (4, 1), 2**20, 100),
        (OLD.format("redop time algbw busbw res", "sum 0.100 10.49 15.73 1e-05"), "all_reduce", (4, 1), 2**20, 100),
        (OLD.format("time algbw busbw error", "400.0 10.49 7.86 N/A"), "all_gather", (4, 1), 2**22, 400),
        (osu("MPI Latency", "# Datatype: MPI_CHAR.\n0  1.0\n4096 8.00"), "pt2pt_latency", (2, 2), 4096, 8),
        (osu("MPI-CUDA Bandwidth", "# Size  Bandwidth (MB/s)\n4096 8.0"), "pt2pt_bandwidth", (2, 2), 4096, 512),
        (osu("MPI Multi Latency", "4096 8.0", "# [ pairs: 1 ]\n"), "pt2pt_latency", (2, 2), 4096, 8),
        (osu("MPI Multi\tLatency", "4096 8.0"), "pt2pt_latency", (4, 2), 4096, 8),
        (osu("MPI Allreduce Latency", "# Size  Avg Latency(us)   Min\n1024  9.0  8.0"), "all_reduce", (4, 2), 1024, 9),
        (osu("MPI Allgather Latency", "# Size  Avg Latency(us)   Min\n1024  9.0  8.0"), "all_gather", (4, 2), 4096, 9),
    ],
    ids=range(9),
)
def test_tables_of_older_versions_and_of_osu(
    tmp_path: Path, text: str, test: str, shape: tuple[int, int], size_bytes: int, time_us: float
) -> None:
    """Sizes are of the whole tensor, or of a message; two ranks are on two hosts unless told otherwise."""
    table = read(tmp_path, text, **({} if " Rank " in text else {"num_nodes": 2, "ranks_per_node": 2}))
    assert (table.test, table.num_ranks, table.num_nodes) == (test, *shape)
    assert [(row.size_bytes, *row.times_s) for row in table.rows] == [(size_bytes, pytest.approx(time_us * 1e-6))]


def test_gloo(tmp_path: Path) -> None:
    """Elements are of 4 bytes; the spread is between the fastest and the 99th percentile."""
    text = (
        "Algorithm:   allreduce_ring_chunked\nOptions:     processes=4, inputs=1, threads=1\n\n"
        "   elements   min (us)   p50 (us)   p99 (us)   max (us)    samples\n"
        "       1000        200        267        330        380       3344\n"
    )
    (row,) = read(tmp_path, text, num_nodes=4).rows
    assert (row.size_bytes, row.low_s, *row.times_s, row.high_s) == pytest.approx((4000, 200e-6, 267e-6, 330e-6))
    assert read(tmp_path, re.sub(" +", " ", text), num_nodes=4).rows == (row,)


def without_rank(rank: int, test: str = "all_reduce") -> str:
    """A log of 4 ranks in which the line of one is missing."""
    return re.sub(rf"(?m)^.*Rank {rank:2} .*\n", "", nccl_log(test, 4))


DIGITS = "9" * 5000
REFUSED = {
    "other text": "hello\n",
    "no text": "\x89PNG\r\n\0\0",
    "wrong results alone": HEAD + HEADER + WRONG + "\n",
    "a contradiction": last_row("100.0", "20.49", "30.73"),
    "no rate": last_row("100.0", "nan", "nan"),
    "wrong results": LOG.replace("0 OK", "3 FAILED"),
    "no last rank": without_rank(3),
    "no last rank of an all_gather": without_rank(3, "all_gather"),
    "no rank in the middle": without_rank(1),
    "no rank of a process": without_rank(3).replace("nGpus 1", "nGpus 4"),
    "other machines": LOG + nccl_log("all_reduce", 4, device="NVIDIA H100"),
    "no ranks": osu("MPI Allreduce Latency", "# Size Avg\n8   1.0"),
    "no hosts": osu("MPI Allreduce Latency", "# Size Avg\n8   1.0", "mpirun -np 4 osu_allreduce\n"),
    "no pairs": osu("MPI Multi Latency"),
    "many ranks": osu("MPI Latency", head=f"mpirun -np {DIGITS} osu_latency\n"),
    "many pairs": osu("MPI Multi Latency", "# pairs: 99999999\n8   1.0"),
    "many elements": GLOO.replace("1000", DIGITS),
    "a long time": osu("MPI Latency", "8   1.0e300"),
    "a short time": osu("MPI Latency", "8   1.0e-300"),
    "a time of 0": osu("MPI Latency", "8   0.0"),
    "no number": osu("MPI Latency", "8   1.0-2"),
    "another unit of time": osu("MPI Latency", "# Size  Latency (ms)\n8   1.0"),
    "another unit of rates": osu("MPI Bandwidth", "# Size  GB/s\n8   1.0"),
}


def test_what_cannot_be_used_is_refused(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """In one line with the place, what is wrong, and what to do."""
    told = {name: read_text(tmp_path, text) for name, text in REFUSED.items()}
    assert told == snapshot
    assert all(len(lines) == 1 and "\n" not in lines[0] for lines in told.values())


def test_public_logs_as_they_are() -> None:
    """With prefixes right before numbers, headers without their sign, wrong results, and several collectives."""
    tables = {path.stem: read_logs([path]) for path in LOGS.glob("raw/*.txt") if not path.stem.startswith("polaris")}
    if not tables:
        pytest.skip("the public logs are not beside the repository, in ../shared/nccl-logs")
    for name, expected in (
        ("alps-gh200-all_reduce-N4", ("all_reduce", 16, 4, 30)),
        ("alps-gh200-all_reduce-N8", ("all_reduce", 32, 8, 29)),  # the results of one more were wrong
        ("coreweave-a100-all_gather-n5-raw", ("all_gather", 5, 1, 23)),
    ):
        (table,) = tables[name]
        assert (table.test, table.num_ranks, table.num_nodes, len(table.rows)) == expected
    several = tables["h100cluster-N10-G2"]
    assert {(table.num_ranks, table.num_nodes) for table in several} == {(20, 10)}
    assert {"all_reduce", "all_gather", "reduce_scatter", "sendrecv"} <= {table.test for table in several}


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
