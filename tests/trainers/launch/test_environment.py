"""Where a rank is, and where ranks meet, by environments given as dicts; what is wrong there is said in one line."""

import os
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.refusals import refused, said_by
from trainers.launch import environment as environments
from trainers.launch.environment import DistributedEnvironment, first_node, read_environment, slurm_meeting_point
from trainers.launch.rendezvous import init_process_group

# Rank 5 of 2 nodes with 4 and 3 ranks.
TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "7", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500",
}  # fmt: skip
# Rank 5 of 7 tasks on node[01-03]: 2, 2 and 3.
SRUN = {
    "SLURM_JOB_ID": "71", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_NTASKS": "7", "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_STEP_NODELIST": "node[01-03]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),3",
}  # fmt: skip


def without(environment: dict[str, str], *names: str) -> dict[str, str]:
    """A copy that lacks them."""
    return {name: value for name, value in environment.items() if name not in names}


ALONE = (0, 1, 0, 1, 0)
BY_HAND = {**without(TORCHRUN, "GROUP_RANK"), "WORLD_SIZE": "9", "LOCAL_WORLD_SIZE": "3"}
# srun -n 2 in a job of 7 tasks: two ranks, whatever is said of the job
SMALLER_STEP = {
    **SRUN, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_TASKS_PER_NODE": "2(x2),3",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, (5, 7, 1, 3, 1)),  # nodes with different numbers of ranks are told apart by GROUP_RANK
        (BY_HAND | {"RANK": "2", "LOCAL_RANK": "2"}, (2, 9, 2, 3, 0)),  # else the node is counted from the ranks
        (BY_HAND | {"RANK": "3", "LOCAL_RANK": "0"}, (3, 9, 0, 3, 1)),
        (SRUN, (5, 7, 1, 3, 2)),
        (SMALLER_STEP, (1, 2, 1, 2, 0)),
        ({**SRUN, **TORCHRUN}, (5, 7, 1, 3, 1)),  # a torchrun on each node is started by srun, the ranks by torchrun
        ({}, ALONE),
        ({"RANK": "", "SLURM_NTASKS": "4"}, ALONE),
        ({"SLURM_JOB_ID": "71", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, ALONE),  # a job's shell that has one task
        ({"SLURM_JOB_ID": "71", "MASTER_ADDR": "node01"}, ALONE),  # a batch script may export it: it starts no ranks
    ],
)
def test_a_rank_knows_its_place(environment: dict[str, str], expected: tuple[int, ...]) -> None:
    """Under torchrun, set by hand, under srun, or as one process."""
    assert read_environment(environment) == DistributedEnvironment(*expected)


REFUSED: list[dict[str, str]] = [
    without(TORCHRUN, "LOCAL_RANK"),
    {"MASTER_ADDR": "node01"},
    {**SRUN, "WORLD_SIZE": "7"},
    *({**TORCHRUN, name: value} for name, value in (("MASTER_ADDR", ""), ("RANK", "7"), ("LOCAL_RANK", "3"))),
    *({**TORCHRUN, name: value} for name, value in (("LOCAL_WORLD_SIZE", "8"), ("RANK", "0"), ("RANK", "-1"))),
    without(TORCHRUN, "GROUP_RANK"),
    {**TORCHRUN, "MASTER_PORT": "65536"},
    without(SRUN, "SLURM_LOCALID"),
    *({**SRUN, name: value} for name, value in (("SLURM_STEP_TASKS_PER_NODE", "2(x3)"), ("SLURM_NODEID", "3"))),
    {**SRUN, "SLURM_PROCID": "7"},
    without(SRUN, "SLURM_STEP_ID"),
    {**SRUN, "SLURM_STEP_ID": "4294967290"},  # the shell that salloc opens on the first node
    {"SLURM_JOB_ID": "71", "SLURM_JOB_NUM_NODES": "3", "SLURM_PROCID": "0"},  # sbatch --nodes 3 says no more
]


def test_what_is_missing_or_contradictory_is_refused(snapshot: SnapshotAssertion) -> None:
    """In one line that says what to do."""
    said = [said_by(ValueError, read_environment, environment) for environment in REFUSED]
    assert not any("\n" in message for message in said)
    assert said == snapshot


def test_a_gpu_for_each_rank_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one with its local rank; without GPUs the CPU. All other fields are those of the environment."""
    import torch

    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for is_available, found in ((False, "cpu"), (True, "cuda:1")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_available=is_available: is_available)
        assert environments.distributed_environment() == DistributedEnvironment(5, 7, 1, 3, 1, found)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with refused(
        "local rank 1: this process sees 1 GPU, counted from 0: start at most one rank per GPU "
        "(Slurm: with --gpus-per-node, not --gpus-per-task), or set CUDA_VISIBLE_DEVICES= for the CPU"
    ):
        environments.distributed_environment()


def test_rank_0_elsewhere_than_on_the_first_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """By --distribution=arbitrary: the others would wait on the first node for nobody."""
    for name in ("RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURMD_NODENAME", "node02")
    with refused(
        "rank 0 is on node 1, but the others look for it on the first node: "
        "set MASTER_ADDR=node02, or leave out --distribution=arbitrary"
    ):
        init_process_group(DistributedEnvironment(rank=0, num_ranks=3, local_rank=0, ranks_per_node=2, node=1), 1)
    with refused("a timeout of 0 s: must be greater than 0"):
        init_process_group(DistributedEnvironment(*ALONE), 0)


SCONTROL = """#!/bin/sh
[ "$1 $2" = "show hostnames" ] || exit 9
case "$3" in
    "node[01-03,7]") printf 'node01\\nnode02\\nnode03\\nnode7\\n' ;;
    *) echo "Invalid hostlist: $3" >&2; exit 1 ;;
esac
"""


def test_tasks_by_node() -> None:
    """Runs of nodes with as many tasks are written once; other text is refused with the variable's name."""
    assert environments.tasks_by_node("4,3(x1),12(x2)") == [4, 3, 12, 12]
    for text in ("", "2(x3", "2,", "2(3)"):
        with refused(f"SLURM_STEP_TASKS_PER_NODE={text}: must be in Slurm's format, such as 2(x3),1"):
            environments.tasks_by_node(text)


NODES: list[dict[str, str]] = [
    {"SLURM_STEP_NODELIST": "node7", "PATH": "/nowhere"},  # which needs no scontrol
    {"SLURM_STEP_NODELIST": "node[01-03,7]", "SLURM_JOB_NODELIST": "x"},
    {"SLURM_JOB_NODELIST": "node[01-03,7]"},
]
NO_NODES: list[dict[str, str]] = [
    {"SLURM_STEP_NODELIST": "node3,node1", "PATH": "/nowhere"}, {"SLURM_STEP_NODELIST": "node[1-"}, {},
]  # fmt: skip


def test_the_first_node_is_what_scontrol_says(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Of several; the step's list goes before the job's."""
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert [first_node(path | environment) for environment in NODES] == ["node7", "node01", "node01"]
    assert [said_by(ValueError, first_node, path | environment) for environment in NO_NODES] == snapshot


def test_where_ranks_of_a_step_meet() -> None:
    """Address and port that are set take precedence. Steps that may run at once have different ports.

    So have jobs in a row; all ports are below those that the system hands out.
    """
    steps = [{"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)} for job in range(900, 2000) for step in (0, 7)]
    ports = [slurm_meeting_point(step, one_node=True)[1] for step in steps]
    assert len(set(ports)) == len(ports)
    assert 1024 <= min(ports) < max(ports) < 32768
    step = {"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "2", "SLURM_STEP_NODELIST": "node7"}
    assert slurm_meeting_point(step) == ("node7", 11378)
    assert slurm_meeting_point(step, one_node=True) == ("127.0.0.1", 11378)
    assert slurm_meeting_point({**step, "MASTER_ADDR": "10.0.0.1"}, one_node=True) == ("10.0.0.1", 11378)
    assert slurm_meeting_point({**step, "MASTER_PORT": "29500"}) == ("node7", 29500)
    with refused("MASTER_PORT=0: must be a port, from 1 to 65535"):
        slurm_meeting_point({**step, "MASTER_PORT": "0"})
    with refused("SLURM_JOB_ID=, SLURM_STEP_ID=0: must be numbers; start it with srun"):
        slurm_meeting_point({}, one_node=True)
