"""`distributed_environment`: this process's rank, node and device, as torchrun, srun or nobody has set them.

Importing this loads no torch.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ringsim.units import whole_number
from trainers.launch import slurm

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
MEETING_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class DistributedEnvironment:
    """One rank of a launch.

    local_rank: among the ranks_per_node ranks of its node, which other nodes need not have as many of.
    device: "cpu", or "cuda:" and the local rank.
    """

    rank: int
    num_ranks: int
    local_rank: int
    ranks_per_node: int
    node: int
    device: str = "cpu"


def distributed_environment() -> DistributedEnvironment:
    """Read this rank from torchrun's variables; else from srun's; else it is one process. Loads torch, to ask for GPUs.

    Raises ValueError if the variables are set in part or contradict each other, or there are more ranks than GPUs.
    """
    environment = read_environment(os.environ)
    import torch  # noqa: PLC0415

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return replace(environment, device=device(environment.local_rank, num_gpus))


def read_environment(environment: Mapping[str, str]) -> DistributedEnvironment:
    """Read all but the device, without torch."""
    started = [*RANK_VARIABLES, *(() if slurm.in_job(environment) else MEETING_VARIABLES)]
    if said := [name for name in started if environment.get(name)]:
        return _by_torchrun(environment, said[0])
    if slurm.in_step(environment):
        return _by_srun(environment)
    if slurm.in_job(environment):
        _check_alone(environment)
    return DistributedEnvironment(rank=0, num_ranks=1, local_rank=0, ranks_per_node=1, node=0)


def _check_alone(environment: Mapping[str, str]) -> None:
    """Refuse the shell of a job with several tasks: without srun one process would train, and all others stand idle."""
    for name, things in (("SLURM_NTASKS", "tasks"), ("SLURM_JOB_NUM_NODES", "nodes")):
        if (count := environment.get(name, "1")) != "1":
            raise ValueError(
                f"the job has {count} {things}, but this process was not started by srun: start it with srun; "
                f"or with env -u SLURM_JOB_ID, to run one process"
            )


def device(local_rank: int, num_gpus: int) -> str:
    """Give each rank of a node its own GPU, if there are any. Raises ValueError if there are too few."""
    if not num_gpus:
        return "cpu"
    if local_rank >= num_gpus:
        raise ValueError(
            f"local rank {local_rank}: this process sees {num_gpus} {'GPU' if num_gpus == 1 else 'GPUs'}, counted from "
            f"0: start at most one rank per GPU (Slurm: with --gpus-per-node, not --gpus-per-task), "
            f"or set CUDA_VISIBLE_DEVICES= for the CPU"
        )
    return f"cuda:{local_rank}"


def _by_torchrun(environment: Mapping[str, str], said: str) -> DistributedEnvironment:
    for name in (*RANK_VARIABLES, *MEETING_VARIABLES):
        if not environment.get(name):
            what_to_do = f"start it with torchrun, which sets both, or unset {said}"
            raise ValueError(f"{name} is not set, but {said} is: {what_to_do}")
    rank, num_ranks, local_rank, ranks_per_node = (_number(environment, name) for name in RANK_VARIABLES)
    slurm.checked_port(environment["MASTER_PORT"])
    rules = (
        (rank < num_ranks, "RANK", "less than", "WORLD_SIZE"),
        (local_rank < ranks_per_node, "LOCAL_RANK", "less than", "LOCAL_WORLD_SIZE"),
        (ranks_per_node <= num_ranks, "LOCAL_WORLD_SIZE", "at most", "WORLD_SIZE"),
        (local_rank <= rank, "LOCAL_RANK", "at most", "RANK"),
    )
    for kept, small, rule, large in rules:
        if not kept:
            said = f"{small}={environment[small]}: must be {rule} {large}={environment[large]}"
            raise ValueError(f"{said}; torchrun sets both, do not set them yourself")
    node = _torchrun_node(environment, rank - local_rank, ranks_per_node)
    return DistributedEnvironment(rank, num_ranks, local_rank, ranks_per_node, node)


def _torchrun_node(environment: Mapping[str, str], ranks_before: int, ranks_per_node: int) -> int:
    """Read GROUP_RANK; whoever sets the rest by hand may leave it out if all nodes have as many ranks."""
    if environment.get("GROUP_RANK"):
        node = _number(environment, "GROUP_RANK")
        if node > ranks_before:
            raise ValueError(f"GROUP_RANK={node}: no more than {ranks_before} nodes can come before this rank's")
        return node
    if ranks_before % ranks_per_node:
        raise ValueError(
            f"RANK={environment['RANK']}, LOCAL_RANK={environment['LOCAL_RANK']}: on nodes with {ranks_per_node} ranks "
            f"each these contradict each other; if nodes differ, set GROUP_RANK to the node's number"
        )
    return ranks_before // ranks_per_node


def _by_srun(environment: Mapping[str, str]) -> DistributedEnvironment:
    # Those with STEP speak of what srun started, the others sometimes of the whole job.
    count = next((name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if environment.get(name)), "SLURM_NTASKS")
    names = ("SLURM_PROCID", count, "SLURM_LOCALID", "SLURM_NODEID")
    rank, num_ranks, local_rank, node = (_number(environment, name) for name in names)
    text = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE", "")
    tasks = slurm.tasks_by_node(text)
    if sum(tasks) != num_ranks or not (rank < num_ranks and node < len(tasks) and local_rank < tasks[node]):
        said = ", ".join(f"{name}={environment[name]}" for name in names)
        raise ValueError(
            f"{said} and tasks per node {text} contradict each other: start it with srun, "
            f"and unset those that you have set yourself"
        )
    return DistributedEnvironment(rank, num_ranks, local_rank, tasks[node], node)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text:
        raise ValueError(f"{name} is not set: start it with srun, which sets it")
    number = whole_number(text)
    if number is None:
        raise ValueError(f"{name}={text}: must be a whole number; torchrun or srun sets it, do not set it yourself")
    return number
