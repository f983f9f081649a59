"""`distributed_environment`: this process's rank, node and device, under torchrun, srun or neither; loads no torch."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ringsim.units import plural, whole_number

FIRST_PORT, NUM_PORTS = 10240, 20001  # below Linux's ephemeral ports, which begin at 32768
SPECIAL_STEPS = 4294967280  # ids from here on are the shells of a batch script and of salloc, not srun's tasks
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
MEETING_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class DistributedEnvironment:
    """One rank of a launch.

    ranks_per_node: on this node; nodes may differ. device: "cpu", or "cuda:" and the local rank.
    """

    rank: int
    num_ranks: int
    local_rank: int
    ranks_per_node: int
    node: int
    device: str = "cpu"


def distributed_environment() -> DistributedEnvironment:
    """Return this rank from the variables of torchrun or srun, or one process without them; loads torch.

    Raises ValueError for missing or contradictory variables, and for more ranks than GPUs.
    """
    environment = read_environment(os.environ)
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        return environment
    if environment.local_rank >= (num_gpus := torch.cuda.device_count()):
        raise ValueError(
            f"local rank {environment.local_rank}: this process sees {plural(num_gpus, 'GPU')}, counted from 0: start "
            f"at most one rank per GPU (Slurm: with --gpus-per-node, not --gpus-per-task), or set "
            f"CUDA_VISIBLE_DEVICES= for the CPU"
        )
    return replace(environment, device=f"cuda:{environment.local_rank}")


def read_environment(environment: Mapping[str, str]) -> DistributedEnvironment:
    """Return this rank without its device; loads no torch."""
    started = [*RANK_VARIABLES, *(() if environment.get("SLURM_JOB_ID") else MEETING_VARIABLES)]
    if said := [name for name in started if environment.get(name)]:
        return _by_torchrun(environment, said[0])
    if in_slurm_step(environment):
        return _by_srun(environment)
    if environment.get("SLURM_JOB_ID"):
        # The shell of a job with several tasks: without srun one process would train, and all others stand idle.
        for name, things in (("SLURM_NTASKS", "tasks"), ("SLURM_JOB_NUM_NODES", "nodes")):
            if (count := environment.get(name, "1")) != "1":
                raise ValueError(
                    f"the job has {count} {things}, but this process was not started by srun: start it with srun; "
                    f"or with env -u SLURM_JOB_ID, to run one process"
                )
    return DistributedEnvironment(rank=0, num_ranks=1, local_rank=0, ranks_per_node=1, node=0)


def _by_torchrun(environment: Mapping[str, str], said: str) -> DistributedEnvironment:
    for name in (*RANK_VARIABLES, *MEETING_VARIABLES):
        if not environment.get(name):
            rule = f"start it with torchrun, which sets both, or unset {said}"
            raise ValueError(f"{name} is not set, but {said} is: {rule}")
    rank, num_ranks, local_rank, ranks_per_node = (_number(environment, name) for name in RANK_VARIABLES)
    checked_port(environment["MASTER_PORT"])
    node, remainder = divmod(rank - local_rank, ranks_per_node or 1)
    if environment.get("GROUP_RANK"):  # otherwise all nodes have the same number of ranks
        node, remainder = _number(environment, "GROUP_RANK"), 0
    if remainder or not (local_rank < ranks_per_node <= num_ranks and local_rank <= rank < num_ranks):
        values = ", ".join(f"{name}={environment[name]}" for name in RANK_VARIABLES)
        raise ValueError(f"{values} contradict each other; torchrun sets them and GROUP_RANK, do not set them yourself")
    return DistributedEnvironment(rank, num_ranks, local_rank, ranks_per_node, node)


def _by_srun(environment: Mapping[str, str]) -> DistributedEnvironment:
    # Variables with STEP are those of srun's step, the others may be those of the whole job.
    count = next((name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if environment.get(name)), "SLURM_NTASKS")
    names = ("SLURM_PROCID", count, "SLURM_LOCALID", "SLURM_NODEID")
    rank, num_ranks, local_rank, node = (_number(environment, name) for name in names)
    text = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE", "")
    tasks = tasks_by_node(text)
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


def in_slurm_step(environment: Mapping[str, str]) -> bool:
    """Whether srun started this process; the shell of sbatch or salloc has a job but no step."""
    step = whole_number(environment.get("SLURM_STEP_ID", ""))
    return step is not None and step < SPECIAL_STEPS


def tasks_by_node(text: str) -> list[int]:
    """Return each node's number of tasks: `2(x3),1` is 2, 2, 2, 1. Raises ValueError for another format."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part)
        if match is None:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE={text}: must be in Slurm's format, such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def slurm_meeting_point(environment: Mapping[str, str], one_node: bool = False) -> tuple[str, int]:
    """Return rank 0's address and port, the same on all ranks; MASTER_ADDR and MASTER_PORT take precedence.

    The port follows from the job and step. one_node: whether loopback suffices. Raises ValueError.
    """
    address = environment.get("MASTER_ADDR") or ("127.0.0.1" if one_node else first_node(environment))
    if port := environment.get("MASTER_PORT"):
        return address, checked_port(port)
    job_text, step_text = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "0")
    job, step = whole_number(job_text), whole_number(step_text)
    if job is None or step is None:
        raise ValueError(f"SLURM_JOB_ID={job_text}, SLURM_STEP_ID={step_text}: must be numbers; start it with srun")
    return address, FIRST_PORT + (16 * job + step) % NUM_PORTS


def checked_port(text: str) -> int:
    """Return the text as a port. Raises ValueError."""
    port = whole_number(text) or 0
    if not 0 < port < 65536:
        raise ValueError(f"MASTER_PORT={text}: must be a port, from 1 to 65535")
    return port


def first_node(environment: Mapping[str, str]) -> str:
    """Return the first node, where rank 0 is. Raises ValueError if it is unknown."""
    name = "SLURM_STEP_NODELIST" if environment.get("SLURM_STEP_NODELIST") else "SLURM_JOB_NODELIST"
    nodes = environment.get(name)
    if not nodes:
        raise ValueError("SLURM_STEP_NODELIST is not set: start it with srun, or set MASTER_ADDR to the first node")
    if not re.search(r"[\[,]", nodes):
        return nodes
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()[0]
    except FileNotFoundError:
        reason = "scontrol, which lists them, is not on the PATH: add Slurm's commands, or"
    except subprocess.CalledProcessError as error:
        reason = f"{' '.join(command)}: {'; '.join(error.stderr.splitlines()) or f'exit code {error.returncode}'};"
    raise ValueError(f"{name}={nodes}: {reason} set MASTER_ADDR to the first node")
