"""As which collective each table of a log is read, on which ranks and hosts, and from which lines."""

import re
from pathlib import Path

import pytest

from ringsim.calibration.cases import cases_of_tables
from ringsim.calibration.questions import QuestionColumns
from ringsim.measurements.logs.lines import LogShape
from ringsim.measurements.logs.reader import read_logs
from tests.ringsim.made_logs import bare, nccl_log

OSU = "# OSU MPI Allreduce Latency Test v7.5\n# Size       Avg Latency(us)\n1048576    500.0\n"
BANDWIDTH = "# OSU MPI Bandwidth Test v7.5\n# Size      Bandwidth (MB/s)\n1048576   10000.0\n"
GLOO = (
    "Algorithm:   new_allreduce_ring\nOptions:     processes=4\n   elements   min (us)   p50 (us)\n  1000   200   267\n"
)
JOB = "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n"
HEADER = "#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
MPI = "were nccl-tests built without MPI=1?"


def read(tmp_path: Path, text: str, own: LogShape = LogShape(), **of_all: int) -> list[tuple[object, ...]]:  # noqa: B008
    """What the tables are, on which ranks and hosts, and where each of these was told."""
    path = tmp_path / "a.log"
    path.write_text(text)
    tables = read_logs([path], shapes={path: own}, **of_all)
    return [(table.test, table.num_ranks, table.num_nodes, *table.read_from) for table in tables]


@pytest.mark.parametrize(
    ("command", "shape"),
    [
        ("$ prun -n 16 --npernode 8 -x A=b ./osu_allreduce -i 100 -n 3", (16, 2)),
        ("mpirun -np 16 \\\n  --map-by ppr:8:node \\\n  ./osu_allreduce", (16, 2)),
        ("mpiexec.hydra -n 16 -ppn 8 /opt/osu_allreduce", (16, 2)),
        ("jsrun -n 2 -a 6 -r 1 ./osu_allreduce", (12, 2)),
        ("torchrun --nnodes 2 --nproc_per_node=8 ./osu_allreduce", (16, 2)),
        ("/usr/bin/srun -l -N2 -n16 ./osu_allreduce", (16, 2)),
        ("srun --nodes=2 --ntasks-per-node 8 ./osu_allreduce -n 100", (16, 2)),
        (JOB + "srun ./osu_allreduce", (32, 4)),
        (JOB + "srun -N 1 -n 4 ./osu_allreduce", (4, 1)),
        (JOB + "srun -n 16 ./osu_allreduce", (16, 4)),
        (JOB + "mpirun ./osu_allreduce", (32, 4)),
        ("salloc -N 2 -n 16\n$ mpirun ./osu_allreduce", (16, 2)),
        ("# nThread 1 nGpus 8\n# 8 processes per node on 2 nodes", (16, 2)),
        (JOB + "mpirun -np 8 ./osu_allreduce", "the number of hosts of its 8 ranks"),  # of 8 slots on the first host
        (JOB + "srun -N 1 ./osu_allreduce", "the number of ranks"),
        ("mpirun -np 16 --map-by ppr:4:socket ./osu_allreduce", "the number of hosts of its 16 ranks"),
        ("mpirun -np 1 ./osu_allreduce : -np 1 ./osu_allreduce", "the number of ranks"),
        ("srun -n $N -N 2 ./osu_allreduce", "the number of ranks"),
        ("mpirun -n 4 -N 2 ./osu_bw\n$ mpirun ./osu_allreduce", "the number of ranks"),
        ("mpirun -n 2 hostname\n$ mpirun -n 2 -N 1 ./osu_bw\n$ mpirun -n 16 -N 8 ./osu_allreduce", (16, 2)),
        ("mpirun -n 4 -N 2 ./osu_allreduce\n$ mpirun -n 64 -N 8 ./osu_allreduce", "the number of ranks"),
        ("srun -N 2 --ntasks-per-node=8 nice -n 5 ./osu_allreduce", (16, 2)),
        ("mpirun -np 16 numactl -N 1 ./osu_allreduce", "the number of hosts of its 16 ranks"),
        ("mpirun -np 16 -N 8 ./osu_allreduce\n# on 3 hosts", (16, 2)),
    ],
)
def test_the_options_of_each_launcher(tmp_path: Path, command: str, shape: tuple[int, int] | str) -> None:
    """They have the meaning that they have for it; what it leaves open is asked for."""
    if isinstance(shape, str):
        with pytest.raises(ValueError, match=f"does not contain {re.escape(shape)}: give --nodes and"):
            read(tmp_path, f"{command}\n{OSU}")
    else:
        ((_, *told),) = read(tmp_path, f"{command}\n{OSU}")
        assert tuple(told[:2]) == shape


def test_each_table_has_the_ranks_of_its_own_command(tmp_path: Path) -> None:
    """Also where the command of the next one stands before its title, and a run was cut off."""
    small, large = "$ mpirun -n 4 -N 2 ./{}\n".format, "$ mpirun -n 64 -N 32 ./{}\n".format
    assert read(tmp_path, small("osu_allreduce") + OSU + large("osu_allreduce") + OSU) == [
        ("all_reduce", 4, 2, "line 2", "line 1", "line 1"),
        ("all_reduce", 64, 2, "line 6", "line 5", "line 5"),
    ]
    first, second = (bare(nccl_log(*run)).partition("# Out of")[0] for run in (("all_reduce", 4), ("all_gather", 64)))
    text = small("all_reduce_perf") + first + large("all_gather_perf") + second + small("osu_allreduce") + OSU
    assert [told[:3] for told in read(tmp_path, nccl_log("all_reduce", 16, 2) + text)] == [
        ("all_reduce", 16, 2), ("all_reduce", 4, 2), ("all_gather", 64, 2), ("all_reduce", 4, 2)
    ]  # fmt: skip
    assert [told[1] for told in read(tmp_path, GLOO + GLOO.replace("=4", "=8"), num_nodes=4)] == [4, 8]


@pytest.mark.parametrize(
    "command",
    [
        "mpirun -np 2 -N 1 ./build/{}_perf -b 1G -g 8",
        "mpirun -np 4 -N 2 {}_perf -t 2 --ngpus 2 -n 20",
        "srun --nodes=2 --ntasks-per-node=8 ./{}_perf_mpi -n 100",
        "mpirun -np 2 -N 1 {}_perf\n# nThread 1 nGpus 8 minBytes 8",
    ],
)
@pytest.mark.parametrize("test", ["all_reduce", "broadcast"])
def test_gpus_and_threads_of_a_process(tmp_path: Path, command: str, test: str) -> None:
    """They multiply the ranks of nccl-tests, of which -n is the number of iterations; the user's word is above all."""
    rows = bare(nccl_log("all_reduce", 16, 2))
    if test == "broadcast":
        rows = f"{HEADER}1048576 262144 float none 0 83.69 12.53 12.53 0 83.69 12.53 12.53 0\n"
    text = f"{command.format(test)}\n{rows}"
    assert read(tmp_path, text) == [(test, 16, 2, "line 1", "line 1", "line 1")]
    for said in ({"own": LogShape(4, 4)}, {"num_nodes": 4, "ranks_per_node": 4}):
        assert read(tmp_path, text, **said) == [(test, 16, 4, "line 1", "given", "given")]
    if test == "all_reduce":
        with pytest.raises(ValueError, match="for the n = 8 ranks that were given: give those that ran"):
            read(tmp_path, text, LogShape(2, 4))


def in_place(log: str, wrong: str) -> str:
    """The log with this as #wrong in place."""
    return re.sub(r"(?m)0$", wrong, bare(log))


ALL_GATHER = nccl_log("all_gather", 16, 2)
SENDRECV = f"{HEADER}1048576 262144 float sum -1 83.69 12.53 12.53 0 83.69 12.53 12.53 "


@pytest.mark.parametrize(
    ("text", "test"),
    [
        (in_place(ALL_GATHER, "N/A"), "alltoall"),
        (nccl_log("all_reduce", 16, 2) + in_place(ALL_GATHER, "N/A"), "alltoall"),
        ("# Collective test starting: alltoallv_perf\n" + ALL_GATHER, "alltoallv"),
        ("# Collective test starting: hypercube_perf\n" + ALL_GATHER.replace("none", "    "), "hypercube"),
        ("$ ./all_reduce_perf\n" + nccl_log("all_reduce", 16, 2) + ALL_GATHER, "all_gather"),
        ("$ ./all_gather_perf\n" + in_place(ALL_GATHER, "N/A"), "alltoall"),
        ("-o ../build/reduce_perf\n" + nccl_log("all_reduce", 16, 2), "all_reduce"),
        ("-o ../build/sendrecv_perf\n" + SENDRECV + "0\n", "all_reduce"),
        (SENDRECV + "N/A\n", "sendrecv"),
        (OSU.replace("Allreduce", "Non-blocking Allreduce"), "Non-blocking Allreduce Latency"),
        (OSU.replace("Allreduce Latency", "MPI_Put Latency"), "MPI_Put Latency"),
        (in_place(ALL_GATHER, "N/A").replace("     0 ", "   N/A "), "cannot tell which of all_gather, alltoall"),
        (GLOO.replace("new_allreduce_ring", "broadcast_one_to_all"), "broadcast_one_to_all"),
        (GLOO.partition("\n")[2], "does not contain Gloo's algorithm"),
    ],
)
def test_which_collective_it_is(tmp_path: Path, text: str, test: str) -> None:
    """By its name, the columns, or the results in place, which alltoall and sendrecv alone cannot check; or asked."""
    shape = {"num_nodes": 2, "ranks_per_node": 1 if "sum -1" in text else 8}
    if " " in test and "Non" not in test and "Put" not in test:
        with pytest.raises(ValueError, match=test):
            read(tmp_path, text, **shape)
    else:
        assert read(tmp_path, text, **shape)[-1][0] == test


RANKS = "".join(f"#  Rank {r} Group {r % 4} Pid {r + 9} on node{r // 4} device {r % 4} [0x1] H100\n" for r in range(8))


@pytest.mark.parametrize("name", ["", "# Collective test starting: {}_perf\n"])
@pytest.mark.parametrize("test", ["all_reduce", "all_gather"])
def test_groups_that_run_at_once(tmp_path: Path, name: str, test: str) -> None:
    """Each is a communicator, and all of them share the NICs of a host."""
    path = tmp_path / "a.log"
    path.write_text(name.format(test) + RANKS + bare(nccl_log(test, 2, 2)))
    (table,) = read_logs([path])
    (case, *_) = cases_of_tables([table])
    assert (case.collective, case.num_ranks, case.num_nodes) == (test, 2, 2)
    assert QuestionColumns.from_questions([case.question]).senders == [4]
    lines = "lines 2 to 9" if name else "lines 1 to 8"
    at_once = "4 groups at once share the NICs of a host"
    assert table.reading.endswith(f" on 2 ranks of 2 hosts ({lines}), {at_once}")


NODE = nccl_log("all_reduce", 8)
ALONE = f"#  Rank  0 Pid 1 on a device 0 [0] V100\n{HEADER}1024 256 float sum -1 4.60 0.22 0.0 0 0.14 7.09 0.0 0\n"
TWICE = NODE.replace("#  Rank  0", "#  Rank  0 Group  0 Pid 77 on nodeX device 0 [0x1] NVIDIA A100\n#  Rank  0", 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TWICE.replace("nGpus 1", "nGpus 16"), f"line 14: the table is left out: rank 0 is listed twice: {MPI}"),
        ("\n".join([NODE.splitlines()[0], NODE]), f"several processes announce themselves before one table: {MPI}"),
        (
            "mpirun -np 2 ./x_perf -g 8\n" + NODE.replace("nGpus 1", "nGpus 8"),
            "2 processes were started, but 8 ranks",
        ),
        (ALONE, "line 3: the table is left out: 1 rank sends nothing: run it with several, as with -g 8, or with"),
        (RANKS.replace("Group 3", "Group 2") + bare(NODE), "its groups of ranks differ in their ranks or hosts"),
        (
            NODE.replace("  time", "cputime"),
            "line 11: the table is left out, as it has not time, algbw and",
        ),
        (bare(NODE).replace("size", "siz"), "line 4: a row without a header: keep the line that begins with # size"),
        ("\n".join([*NODE.splitlines()[:9], "a: Test NCCL failure common.cu:9"]), "'a: Test NCCL failure common.cu:9'"),
        ("NCCL_TESTS_SPLIT_MASK=0x3 ./all_reduce_perf\n" + NODE, "NCCL_TESTS_SPLIT splits the ranks into groups"),
        ("export NCCL_TESTS_SPLIT='%4'\n" + bare(NODE), "NCCL_TESTS_SPLIT splits the ranks into groups"),
        (re.sub(r"(Rank  7 .*) device.*", r"\1", NODE), "line 9 of the list of ranks cannot be read: restore it"),
        (
            nccl_log("all_reduce", 8, 2).replace("node1", "node0"),
            "device 0 [0000:1b:00] of node0 is listed 2 times: give the number of hosts, as LOG:nodes=2",
        ),
    ],
)
def test_a_table_that_says_nothing_of_its_ranks(tmp_path: Path, text: str, why: str) -> None:
    """It is left out with the reason, and the other tables of the file are read."""
    with pytest.raises(ValueError, match=re.escape(why)):
        read(tmp_path, text)
    if "_SPLIT" not in why:
        assert [
            told[:3] for told in read(tmp_path, f"{text}\n$ ./run\n{nccl_log('all_reduce', 16, 2, device='H100')}")
        ] == [("all_reduce", 16, 2)]


def test_rows_of_other_versions(tmp_path: Path) -> None:
    """Before June 2020 algbw was of the bytes that a rank sends; with -I there are columns behind #wrong."""
    ranks = "".join(f"#  Rank {rank} Pid 1 on a device {rank} [0x0] V100\n" for rank in range(4))
    old = "# size count type redop time algbw busbw error\n134217728 8388608 float sum 3298.6 30.52 30.52 0e+00\n"
    assert read(tmp_path, ranks + old)[0][:3] == ("reduce_scatter", 4, 1)
    packed = "134217728 268435456 fp4 sum 3298.6 40.69 61.03 0e+00\n"  # two elements in a byte
    assert read(tmp_path, ranks + old.partition("\n")[0] + f"\n{packed}")[0][:2] == ("all_reduce", 4)
    more = HEADER.replace("#wrong", "#wrong i_min i_max i_p99 i_cv%")
    side = "5252.0 204.45 306.67 0 5147.0 7352.8 6827.6 3.20 "
    assert read(tmp_path, f"{ranks}{more}1073741824 268435456 float sum -1 {side}{side}\n")[0][:2] == ("all_reduce", 4)


@pytest.mark.parametrize("note", ["# on 3 hosts", "WARNING: 3 processes killed", "# 4 processes per node"])
def test_a_note_between_rows(tmp_path: Path, note: str) -> None:
    """It does not end the table, nor say anything of it."""
    path = tmp_path / "a.log"
    for text in (f"{OSU}{note}\n2097152  900.0\n", NODE.replace("  16384 ", f"{note}\n  16384 ", 1)):
        path.write_text(text)
        (table,) = read_logs([path], shapes={path: LogShape(2, 4)})
        assert (len(table.rows), table.num_ranks, table.left_out) == (2 if "OSU" in text else 11, 8, ())


def test_what_changes_the_path_is_said(tmp_path: Path) -> None:
    """By the line on the table that was measured so; a mask of 0 splits nothing."""
    path = tmp_path / "a.log"
    settings = "-x NCCL_P2P_DISABLE=1 -x NCCL_SHM_DISABLE=0 -genv NCCL_NET Socket -x NCCL_TESTS_SPLIT_MASK=0x0"
    path.write_text(f"mpirun {settings} ./all_reduce_perf\n{NODE.replace('validation', 'agg iters: 8 validation')}")
    (table,) = read_logs([path])
    assert table.reading == (
        f"{path}: line 14: all_reduce (line 1) on 8 ranks of 1 host (lines 3 to 10); measured with agg iters: 8 "
        "NCCL_NET=Socket NCCL_P2P_DISABLE=1, which a network fitted to it includes"
    )
