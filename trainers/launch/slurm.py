"""Slurm's environment of a task that srun started: how many there are on each node, and where to meet."""

import re
import shutil
import subprocess
from collections.abc import Mapping

from ringsim.units import whole_number

FIRST_PORT, NUM_PORTS = 10240, 20001  # below the ports that Linux hands out by itself, which begin at 32768
SPECIAL_STEPS = 4294967280  # ids from here on are not of srun's tasks: the batch script's own shell, salloc's shell


def in_job(environment: Mapping[str, str]) -> bool:
    """Return whether this runs in a job at all, under srun or not."""
    return bool(environment.get("SLURM_JOB_ID"))


def in_step(environment: Mapping[str, str]) -> bool:
    """Return whether srun started this; in the shell of a batch script, or of salloc, there is a job but no step."""
    step = whole_number(environment.get("SLURM_STEP_ID", ""))
    return step is not None and step < SPECIAL_STEPS


def tasks_by_node(text: str) -> list[int]:
    """Return how many tasks each node has: `2(x3),1` is 2, 2, 2, 1. Raises ValueError for anything else."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part)
        if match is None:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE={text}: must be in Slurm's format, such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def meeting_point(environment: Mapping[str, str], one_node: bool = False) -> tuple[str, int]:
    """Return the address and port of rank 0, alike on all ranks; MASTER_ADDR and MASTER_PORT have their way.

    one_node: whether all ranks are on one, which then need not listen where other hosts can connect.

    Raises ValueError if Slurm's variables do not say it.
    """
    address = environment.get("MASTER_ADDR") or ("127.0.0.1" if one_node else first_node(environment))
    port = environment.get("MASTER_PORT")
    return address, step_port(environment) if not port else checked_port(port)


def checked_port(text: str) -> int:
    """Return a port that one can connect to. Raises ValueError."""
    port = whole_number(text) or 0
    if not 0 < port < 65536:
        raise ValueError(f"MASTER_PORT={text}: must be a port, from 1 to 65535")
    return port


def first_node(environment: Mapping[str, str]) -> str:
    """Return the first node, where rank 0 is. Raises ValueError if it cannot be told."""
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"):
        if nodes := environment.get(name):
            break
    else:
        raise ValueError("SLURM_STEP_NODELIST is not set: start it with srun, or set MASTER_ADDR to the first node")
    if not re.search(r"[\[,]", nodes):
        return nodes
    if shutil.which("scontrol", path=environment.get("PATH")) is None:
        raise ValueError(
            f"{name}={nodes}: scontrol, which lists them, is not on the PATH: "
            f"add Slurm's commands, or set MASTER_ADDR to the first node"
        )
    return _expanded(name, nodes, environment)[0]


def _expanded(name: str, nodes: str, environment: Mapping[str, str]) -> list[str]:
    command = ["scontrol", "show", "hostnames", nodes]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(environment))
    if done.returncode or not done.stdout.split():
        said = "; ".join(done.stderr.split("\n")).strip("; ") or f"exit code {done.returncode}"
        raise ValueError(f"{name}={nodes}: {' '.join(command)}: {said}; set MASTER_ADDR to the first node")
    return done.stdout.split()


def step_port(environment: Mapping[str, str]) -> int:
    """Choose a port of the step, on which its ranks agree without a word: no two of 20,001 jobs in a row share it.

    Raises ValueError if the job has no number.
    """
    job_text, step_text = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "0")
    job, step = whole_number(job_text), whole_number(step_text)
    if job is None or step is None:
        raise ValueError(f"SLURM_JOB_ID={job_text}, SLURM_STEP_ID={step_text}: must be numbers; start it with srun")
    return FIRST_PORT + (16 * job + step) % NUM_PORTS
