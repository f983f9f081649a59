"""The collective, ranks, hosts and lines of each table that is read from a log.

The snapshots hold what was read: a line for each table, and one for each row or table that is left out.
"""

import re
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from ringsim.calibration.timings import cases_of_tables
from ringsim.libraries import CallColumns
from ringsim.measurements import LogShape, read_logs
from tests.ringsim.commands import written
from tests.ringsim.made_logs import bare, nccl_log, read_text

OSU = "# OSU MPI Allreduce Latency Test v7.5\n# Size       Avg Latency(us)\n1048576    500.0\n"
GLOO = (
    "Algorithm:   new_allreduce_ring\nOptions:     processes=4\n   elements   min (us)   p50 (us)\n  1000   200   267\n"
)
JOB = "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n"
HEADER = "#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"


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
    (told,) = read_text(tmp_path, f"{command}\n{OSU}")
    if isinstance(shape, str):
        assert f"the log does not contain {shape}: give --nodes and --ranks-per-node" in told
    else:
        assert re.search(r" on (\d+) ranks of (\d+) hosts? ", told).groups() == tuple(map(str, shape))  # type: ignore[union-attr]


def commanded(program: str, num_ranks: int = 4) -> str:
    """A command that starts this program on two hosts."""
    return f"$ mpirun -n {num_ranks} -N {num_ranks // 2} ./{program}\n"


def cut_off(test: str, num_ranks: int, num_nodes: int = 1) -> str:
    """A log without its ranks that was cut off before its end."""
    return bare(nccl_log(test, num_ranks, num_nodes)).partition("# Out of")[0]


def in_place(log: str, wrong: str) -> str:
    """The log with this as #wrong in place."""
    return re.sub(r"(?m)0$", wrong, bare(log))


NODE = nccl_log("all_reduce", 8)
HOSTS = nccl_log("all_reduce", 16, 2)
ALL_GATHER = nccl_log("all_gather", 16, 2)
BROADCAST = f"{HEADER}1048576 262144 float none 0 83.69 12.53 12.53 0 83.69 12.53 12.53 0\n"
SENDRECV = f"{HEADER}1048576 262144 float sum -1 83.69 12.53 12.53 0 83.69 12.53 12.53 "
TABLES = {
    "commands": commanded("osu_allreduce") + OSU + commanded("osu_allreduce", 64) + OSU,
    "cut off": HOSTS + commanded("all_reduce_perf") + cut_off("all_reduce", 4)
    + commanded("all_gather_perf", 64) + cut_off("all_gather", 64) + commanded("osu_allreduce") + OSU,
    "GPUs": f"mpirun -np 2 -N 1 ./build/all_reduce_perf -b 1G -g 8\n{bare(HOSTS)}",
    "threads and GPUs": f"mpirun -np 4 -N 2 broadcast_perf -t 2 --ngpus 2 -n 20\n{BROADCAST}",
    "program of MPI": f"srun --nodes=2 --ntasks-per-node=8 ./all_reduce_perf_mpi -n 100\n{bare(HOSTS)}",
    "announced GPUs": f"mpirun -np 2 -N 1 broadcast_perf\n# nThread 1 nGpus 8 minBytes 8\n{BROADCAST}",
    "a note": f"{commanded('osu_allreduce')}{OSU}# on 3 hosts\n2097152  900.0\n",
    "a note on processes": NODE.replace("  16384 ", "WARNING: 3 processes killed\n  16384 ", 1),
    "a note on hosts": NODE.replace("  16384 ", "# 4 processes per node\n  16384 ", 1),
    "settings": "mpirun -x NCCL_P2P_DISABLE=1 -x NCCL_SHM_DISABLE=0 -genv NCCL_NET Socket -x NCCL_TESTS_SPLIT_MASK=0x0"
    f" ./all_reduce_perf\n{NODE.replace('validation', 'agg iters: 8 validation')}",
    # Before June 2020 algbw was of the bytes that a rank sends.
    "algbw of 2019": f"{NODE[:NODE.index('#   ')]}# size count type redop time algbw busbw error\n"
    "134217728 4194304 float sum 3848.0 30.52 30.52 0e+00\n",
    "two elements in a byte": f"{NODE[:NODE.index('#   ')]}# size count type redop time algbw busbw error\n"
    "134217728 268435456 fp4 sum 3298.6 40.69 71.21 0e+00\n",
    "columns behind #wrong": NODE[: NODE.index("#   ")] + HEADER.replace("#wrong", "#wrong i_min i_max i_p99 i_cv%")
    + "1073741824 268435456 float sum -1" + 2 * " 5252.0 204.45 357.79 0 5147.0 7352.8 6827.6 3.20" + "\n",
}  # fmt: skip


def test_each_table_has_the_ranks_of_its_own_command(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """A note between rows says nothing of them; what changes the path of the messages is told with the table."""
    assert {name: read_text(tmp_path, text) for name, text in TABLES.items()} == snapshot


COLLECTIVES = {
    "in place unchecked": in_place(ALL_GATHER, "N/A"),
    "after an all_reduce": HOSTS + in_place(ALL_GATHER, "N/A"),
    "named alltoallv": "# Collective test starting: alltoallv_perf\n" + ALL_GATHER,
    "named hypercube": "# Collective test starting: hypercube_perf\n" + ALL_GATHER.replace("none", "    "),
    "named before": "$ ./all_reduce_perf\n" + HOSTS + ALL_GATHER,
    "misnamed": "$ ./all_gather_perf\n" + in_place(ALL_GATHER, "N/A"),
    "as a file": "-o ../build/reduce_perf\n" + HOSTS,
    "sendrecv as a file": f"-o ../build/sendrecv_perf\n{SENDRECV}0\n",
    "sendrecv": SENDRECV + "N/A\n",
    "non-blocking": OSU.replace("Allreduce", "Non-blocking Allreduce"),
    "one-sided": OSU.replace("Allreduce Latency", "MPI_Put Latency"),
    "unchecked": in_place(ALL_GATHER, "N/A").replace("     0 ", "   N/A "),
    "of the root alone": GLOO.replace("new_allreduce_ring", "broadcast_one_to_all"),
    "unnamed": GLOO.partition("\n")[2],
}


def test_which_collective_it_is(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """By its name, the columns, or the results in place, which alltoall and sendrecv alone cannot check; or asked."""
    shapes = {name: {"num_nodes": 2, "ranks_per_node": 1 if "sendrecv" in name else 8} for name in COLLECTIVES}
    assert {name: read_text(tmp_path, text, **shapes[name]) for name, text in COLLECTIVES.items()} == snapshot


def test_the_word_of_the_user_is_above_all(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Of a single log, or of those that do not tell; it is refused where the rates contradict it."""
    commands = TABLES["GPUs"], TABLES["threads and GPUs"]
    assert [read_text(tmp_path, text, LogShape(4, 4)) for text in commands] == snapshot
    assert [read_text(tmp_path, text, num_nodes=4, ranks_per_node=4) for text in commands] == snapshot
    told = [read_text(tmp_path, TABLES["GPUs"], LogShape(2, 4)), read_text(tmp_path, HOSTS, LogShape(2, 4))]
    told.append(read_text(tmp_path, HOSTS, LogShape(4, 4)))  # containers may print the same name
    assert [*told, read_text(tmp_path, GLOO + GLOO.replace("=4", "=8"), num_nodes=4)] == snapshot
    paths = [written(tmp_path / "told.log", nccl_log("all_reduce", 4)), written(tmp_path / "osu.log", OSU)]
    for shape, expected in ((LogShape(), (8, 2)), (LogShape(4), (16, 4)), (LogShape(4, 2), (8, 4))):
        tables = read_logs(paths, 2, 4, {paths[1]: shape})
        assert [(table.num_ranks, table.num_nodes) for table in tables] == [(4, 1), expected]


RANKS = "".join(f"#  Rank {r} Group {r % 4} Pid {r + 9} on node{r // 4} device {r % 4} [0x1] H100\n" for r in range(8))


@pytest.mark.parametrize("name", ["", "# Collective test starting: all_gather_perf\n"])
def test_groups_that_run_at_once(tmp_path: Path, name: str) -> None:
    """Each is a communicator, and all of them share the NICs of a host."""
    (table,) = read_logs([written(tmp_path / "a.log", name + RANKS + bare(nccl_log("all_gather", 2, 2)))])
    (case, *_) = cases_of_tables([table])
    assert (case.call.collective, case.call.num_ranks, case.call.num_nodes) == ("all_gather", 2, 2)
    assert CallColumns.from_calls([case.call]).senders == [4]
    lines = "lines 2 to 9" if name else "lines 1 to 8"
    assert table.reading.endswith(f" on 2 ranks of 2 hosts ({lines}), 4 groups at once share the NICs of a host")


TWICE = "#  Rank  0 Group  0 Pid 77 on nodeX device 0 [0x1] NVIDIA A100\n#  Rank  0"
ALONE = f"#  Rank  0 Pid 1 on a device 0 [0] V100\n{HEADER}1024 256 float sum -1 4.60 0.22 0.0 0 0.14 7.09 0.0 0\n"
DOUBTFUL = {
    "a rank twice": NODE.replace("#  Rank  0", TWICE, 1).replace("nGpus 1", "nGpus 16"),
    "processes that do not know each other": "\n".join([NODE.splitlines()[0], NODE]),
    "fewer ranks than were started": "mpirun -np 2 ./x_perf -g 8\n" + NODE.replace("nGpus 1", "nGpus 8"),
    "one rank": ALONE,
    "groups of several sizes": RANKS.replace("Group 3", "Group 2") + bare(NODE),
    "times of the CPU": NODE.replace("  time", "cputime"),
    "no header": bare(NODE).replace("size", "siz"),
    "a failure": "\n".join([*NODE.splitlines()[:9], "a: Test NCCL failure common.cu:9"]),
    "a cut list of ranks": re.sub(r"(Rank  7 .*) device.*", r"\1", NODE),
    "a device twice": nccl_log("all_reduce", 8, 2).replace("node1", "node0"),
    "split by a mask": "NCCL_TESTS_SPLIT_MASK=0x3 ./all_reduce_perf\n" + NODE,
    "split by a number": "export NCCL_TESTS_SPLIT='%4'\n" + bare(NODE),
}


def test_a_table_that_says_nothing_of_its_ranks(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """It is left out with the reason, and the other tables of the file are read."""
    assert {name: read_text(tmp_path, text) for name, text in DOUBTFUL.items()} == snapshot
    for name, text in DOUBTFUL.items():
        if "split" not in name:
            (told, *_) = read_text(tmp_path, f"{text}\n$ ./run\n{nccl_log('all_reduce', 16, 2, device='H100')}")
            assert "on 16 ranks of 2 hosts" in told, name
