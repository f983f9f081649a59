"""`distributed_environment`: this process's rank, node and device; `init_process_group`: the group of all ranks.

One place for what torchrun, srun and a single process each say in their own way. Importing this loads no torch.
"""

import datetime
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ringsim.machine import is_loopback
from ringsim.units import whole_number
from trainers.launch import slurm
from trainers.launch.attempt import attempt_store
from trainers.launch.loopback import HOST, keep_gloo_on_loopback, loopback_store, stay_on_loopback
from trainers.launch.own_address import check_reachable

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch._C._distributed_c10d import Store

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
MEETING_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class DistributedEnvironment:
    """One rank of a launch.

    local_rank: among the ranks_per_node ranks of its own node, which other nodes need not have as many of.
    device: "cpu", or "cuda:" and the local rank.
    """

    rank: int
    num_ranks: int
    local_rank: int
    ranks_per_node: int
    node: int
    device: str = "cpu"


def distributed_environment() -> DistributedEnvironment:
    """As torchrun's variables say; else as srun's; else one process. Loads torch, to ask for GPUs.

    Raises ValueError if the variables are set in part or contradict each other, or there are more ranks than GPUs.
    """
    environment = read_environment(os.environ)
    import torch  # noqa: PLC0415

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return replace(environment, device=device(environment.local_rank, num_gpus))


def read_environment(environment: Mapping[str, str]) -> DistributedEnvironment:
    """The same without the device, and without torch."""
    started = [*RANK_VARIABLES, *(() if slurm.in_job(environment) else MEETING_VARIABLES)]
    if said := [name for name in started if environment.get(name)]:
        return _by_torchrun(environment, said[0])
    if slurm.in_step(environment):
        return _by_srun(environment)
    if slurm.in_job(environment):
        _check_alone(environment)
    return DistributedEnvironment(rank=0, num_ranks=1, local_rank=0, ranks_per_node=1, node=0)


def _check_alone(environment: Mapping[str, str]) -> None:
    """In the shell of a job: a forgotten srun would have one process train, and all other tasks stand idle."""
    for name, things in (("SLURM_NTASKS", "tasks"), ("SLURM_JOB_NUM_NODES", "nodes")):
        if (count := environment.get(name, "1")) != "1":
            raise ValueError(
                f"the job has {count} {things}, but srun has not started this process: start it with srun; "
                f"or with env -u SLURM_JOB_ID, if one process is what you want"
            )


def device(local_rank: int, num_gpus: int) -> str:
    """A GPU of its own for each rank of a node, if there are any. Raises ValueError if there are too few."""
    if not num_gpus:
        return "cpu"
    if local_rank >= num_gpus:
        raise ValueError(
            f"local rank {local_rank}: this process sees {num_gpus} {'GPU' if num_gpus == 1 else 'GPUs'}, counted from "
            f"0: start no more ranks on a node than that (Slurm: with --gpus-per-node, not --gpus-per-task), "
            f"or set CUDA_VISIBLE_DEVICES= for the CPU"
        )
    return f"cuda:{local_rank}"


def init_process_group(environment: DistributedEnvironment, timeout_s: float) -> "dist.ProcessGroup":
    """The process group of all ranks, on Gloo, and for tensors on a GPU on NCCL.

    timeout_s: how long to wait for the other ranks, now and later on.

    Under srun it sets MASTER_ADDR and MASTER_PORT, unless they are set. Raises ValueError if the environment does not
    say where to meet, and ConnectionError if the ranks do not come together.
    """
    if not timeout_s > 0:
        raise ValueError(f"a timeout of {timeout_s} s: must be greater than 0")
    alone = environment.num_ranks == 1 and "RANK" not in os.environ
    if not alone:
        _set_meeting_point(environment)
    on_one_host = environment.num_ranks == environment.ranks_per_node and stay_on_loopback(os.environ)
    if on_one_host:
        keep_gloo_on_loopback()
    elif not alone and environment.num_ranks > environment.ranks_per_node:
        check_reachable(os.environ)
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from collectives.runtime import set_gloo_thread_policy  # noqa: PLC0415  it needs torch

    if environment.device != "cpu":
        torch.cuda.set_device(environment.device)  # what NCCL and barriers take, if they are not told
    backend = "gloo" if environment.device == "cpu" else "cpu:gloo,cuda:nccl"
    timeout = datetime.timedelta(seconds=timeout_s)
    try:
        store = _store(environment, timeout, alone, on_one_host)
        dist.init_process_group(
            backend, rank=environment.rank, world_size=environment.num_ranks, store=store, timeout=timeout
        )
    except (RuntimeError, OSError) as error:
        raise ConnectionError(_not_joined(environment, timeout_s, error)) from error
    assert dist.group.WORLD is not None
    set_gloo_thread_policy()
    return dist.group.WORLD


def _store(
    environment: DistributedEnvironment, timeout: datetime.timedelta, alone: bool, on_one_host: bool
) -> "Store | None":
    """Where the ranks meet; None for a new one, which rank 0 makes at MASTER_ADDR and MASTER_PORT."""
    import torch.distributed as dist  # noqa: PLC0415

    if alone:  # one process has no need of a port
        return dist.HashStore()  # type: ignore[attr-defined]  # torch's stubs lack it
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return _own_store(environment, port, timeout) if on_one_host and is_loopback(address) else None
    whole = dist.TCPStore(address, port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]
    return attempt_store(whole, environment.rank, environment.num_ranks, timeout.total_seconds())


def _own_store(environment: DistributedEnvironment, port: int, timeout: datetime.timedelta) -> "Store":
    """Of ranks on one host; rank 0's process has it."""
    import torch.distributed as dist  # noqa: PLC0415

    if environment.rank == 0:
        return loopback_store(port, timeout)
    return dist.TCPStore(HOST, port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]


def _set_meeting_point(environment: DistributedEnvironment) -> None:
    if "RANK" not in os.environ:
        if environment.rank == 0 and environment.node != 0 and not os.environ.get("MASTER_ADDR"):
            name = os.environ.get("SLURMD_NODENAME", "its node")
            raise ValueError(
                f"rank 0 is on node {environment.node}, not on the first, where the others look for it: "
                f"set MASTER_ADDR={name}, or leave out --distribution=arbitrary"
            )
        address, port = slurm.meeting_point(os.environ, one_node=environment.num_ranks == environment.ranks_per_node)
        os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))


def _not_joined(environment: DistributedEnvironment, timeout_s: float, error: Exception) -> str:
    address, port = (os.environ.get(name) for name in MEETING_VARIABLES)
    cause = (str(error).strip() or repr(error)).splitlines()[0]
    if "EADDRINUSE" in cause or getattr(error, "errno", None) == errno.EADDRINUSE:
        return f"MASTER_PORT={port} is in use on {address}: set another, or let torchrun --standalone choose one"
    who = f"rank {environment.rank} of {environment.num_ranks} on node {environment.node}"
    return f"{who} did not meet the others at {address}:{port} (timeout {timeout_s:g} s; docs/launching.md): {cause}"


def _by_torchrun(environment: Mapping[str, str], said: str) -> DistributedEnvironment:
    for name in (*RANK_VARIABLES, *MEETING_VARIABLES):
        if not environment.get(name):
            what_to_do = f"start it with torchrun, which sets both; or unset {said}"
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
    """In GROUP_RANK; whoever sets the rest by hand may leave it out if all nodes have as many ranks."""
    if environment.get("GROUP_RANK"):
        node = _number(environment, "GROUP_RANK")
        if node > ranks_before:
            raise ValueError(f"GROUP_RANK={node}: no more than {ranks_before} nodes can come before this rank's")
        return node
    if ranks_before % ranks_per_node:
        raise ValueError(
            f"RANK={environment['RANK']}, LOCAL_RANK={environment['LOCAL_RANK']}: on nodes with {ranks_per_node} ranks "
            f"each these do not go together; if nodes differ, set GROUP_RANK to the node's number"
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
