"""Where a rank is, by environments given as dicts; what is missing or contradictory is said in one line."""

import os

import pytest

from tests.refusals import refused
from trainers.launch.environment import DistributedEnvironment, device, distributed_environment, read_environment
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


def test_under_torchrun() -> None:
    """Nodes with different numbers of ranks are told apart by GROUP_RANK."""
    assert read_environment(TORCHRUN) == DistributedEnvironment(
        rank=5, num_ranks=7, local_rank=1, ranks_per_node=3, node=1
    )


@pytest.mark.parametrize(("rank", "local_rank", "node"), [(0, 0, 0), (2, 2, 0), (3, 0, 1), (8, 2, 2)])
def test_set_by_hand_without_group_rank(rank: int, local_rank: int, node: int) -> None:
    """If all nodes have as many ranks, the node is counted from them."""
    by_hand = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": "9", "LOCAL_WORLD_SIZE": "3"}
    found = read_environment({**without(TORCHRUN, "GROUP_RANK"), **by_hand})
    assert found == DistributedEnvironment(rank, 9, local_rank, 3, node)


def test_under_srun() -> None:
    """By what Slurm says of the step."""
    assert read_environment(SRUN) == DistributedEnvironment(rank=5, num_ranks=7, local_rank=1, ranks_per_node=3, node=2)


def test_a_step_smaller_than_its_job() -> None:
    """`srun -n 2` in a job of 7 tasks: two ranks, whatever is said of the job."""
    step = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "2"}
    assert read_environment({**SRUN, **step, "SLURM_TASKS_PER_NODE": "2(x2),3"}) == DistributedEnvironment(
        1, 2, 1, 2, 0
    )


def test_torchrun_in_a_job_comes_first() -> None:
    """A torchrun on each node is started by srun, the ranks by torchrun."""
    assert read_environment({**SRUN, **TORCHRUN}) == read_environment(TORCHRUN)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "", "SLURM_NTASKS": "4"},
        {"SLURM_JOB_ID": "71", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"},
        {"SLURM_JOB_ID": "71", "MASTER_ADDR": "node01"},
    ],
)
def test_one_process(environment: dict[str, str]) -> None:
    """Nothing is set, or a job's shell that has one task; an address that a batch script exports starts no ranks."""
    assert read_environment(environment) == DistributedEnvironment(
        rank=0, num_ranks=1, local_rank=0, ranks_per_node=1, node=0
    )


BY_TORCHRUN = "torchrun sets both, do not set them yourself"
WITH_TORCHRUN = "start it with torchrun, which sets both, or unset"
BY_SRUN = "start it with srun, and unset those that you have set yourself"
WITH_SRUN = (
    "but this process was not started by srun: start it with srun; or with env -u SLURM_JOB_ID, to run one process"
)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (without(TORCHRUN, "LOCAL_RANK"), f"LOCAL_RANK is not set, but RANK is: {WITH_TORCHRUN} RANK"),
        ({"MASTER_ADDR": "node01"}, f"RANK is not set, but MASTER_ADDR is: {WITH_TORCHRUN} MASTER_ADDR"),
        ({**SRUN, "WORLD_SIZE": "7"}, f"RANK is not set, but WORLD_SIZE is: {WITH_TORCHRUN} WORLD_SIZE"),
        ({**TORCHRUN, "MASTER_ADDR": ""}, f"MASTER_ADDR is not set, but RANK is: {WITH_TORCHRUN} RANK"),
        ({**TORCHRUN, "RANK": "7"}, f"RANK=7: must be less than WORLD_SIZE=7; {BY_TORCHRUN}"),
        ({**TORCHRUN, "LOCAL_RANK": "3"}, f"LOCAL_RANK=3: must be less than LOCAL_WORLD_SIZE=3; {BY_TORCHRUN}"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "8"}, f"LOCAL_WORLD_SIZE=8: must be at most WORLD_SIZE=7; {BY_TORCHRUN}"),
        ({**TORCHRUN, "RANK": "0"}, f"LOCAL_RANK=1: must be at most RANK=0; {BY_TORCHRUN}"),
        ({**TORCHRUN, "GROUP_RANK": "5"}, "GROUP_RANK=5: no more than 4 nodes can come before this rank's"),
        (
            without(TORCHRUN, "GROUP_RANK"),
            "RANK=5, LOCAL_RANK=1: on nodes with 3 ranks each these contradict each other; "
            "if nodes differ, set GROUP_RANK to the node's number",
        ),
        (
            {**TORCHRUN, "RANK": "-1"},
            "RANK=-1: must be a whole number; torchrun or srun sets it, do not set it yourself",
        ),
        ({**TORCHRUN, "MASTER_PORT": "65536"}, "MASTER_PORT=65536: must be a port, from 1 to 65535"),
        ({**TORCHRUN, "MASTER_PORT": "0"}, "MASTER_PORT=0: must be a port, from 1 to 65535"),
        (without(SRUN, "SLURM_LOCALID"), "SLURM_LOCALID is not set: start it with srun, which sets it"),
        (
            {**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2(x3)"},
            "SLURM_PROCID=5, SLURM_STEP_NUM_TASKS=7, SLURM_LOCALID=1, SLURM_NODEID=2 and tasks per node 2(x3) "
            f"contradict each other: {BY_SRUN}",
        ),
        (
            {**SRUN, "SLURM_NODEID": "3"},
            "SLURM_PROCID=5, SLURM_STEP_NUM_TASKS=7, SLURM_LOCALID=1, SLURM_NODEID=3 and tasks per node 2(x2),3 "
            f"contradict each other: {BY_SRUN}",
        ),
        (without(SRUN, "SLURM_STEP_ID"), f"the job has 7 tasks, {WITH_SRUN}"),
        # the shell that salloc opens on the first node
        ({**SRUN, "SLURM_STEP_ID": "4294967290"}, f"the job has 7 tasks, {WITH_SRUN}"),
        # sbatch --nodes 3 says no more
        ({"SLURM_JOB_ID": "71", "SLURM_JOB_NUM_NODES": "3", "SLURM_PROCID": "0"}, f"the job has 3 nodes, {WITH_SRUN}"),
    ],
)
def test_what_is_missing_or_contradictory_is_refused(environment: dict[str, str], message: str) -> None:
    """In one line that says what to do."""
    with refused(message):
        read_environment(environment)


def test_a_gpu_for_each_rank_of_a_node() -> None:
    """The one with its local rank; without GPUs the CPU."""
    assert [device(local_rank, 3) for local_rank in range(3)] == ["cuda:0", "cuda:1", "cuda:2"]
    assert device(5, 0) == "cpu"


@pytest.mark.parametrize(("num_gpus", "sees"), [(1, "1 GPU"), (2, "2 GPUs")])
def test_more_ranks_than_gpus_are_refused(num_gpus: int, sees: str) -> None:
    """And what to do, with torchrun and with Slurm."""
    with refused(
        f"local rank {num_gpus}: this process sees {sees}, counted from 0: start at most one rank per GPU "
        "(Slurm: with --gpus-per-node, not --gpus-per-task), or set CUDA_VISIBLE_DEVICES= for the CPU"
    ):
        device(num_gpus, num_gpus)


def test_where_asks_torch_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """And for nothing else: all other fields are those of the environment."""
    import torch

    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert distributed_environment() == DistributedEnvironment(5, 7, 1, 3, 1, "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert distributed_environment() == DistributedEnvironment(5, 7, 1, 3, 1, "cuda:1")


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


def test_a_timeout_of_nothing_is_refused() -> None:
    """Before anything is joined."""
    with pytest.raises(ValueError, match=r"^a timeout of 0 s: must be greater than 0$"):
        init_process_group(DistributedEnvironment(0, 1, 0, 1, 0), 0)
