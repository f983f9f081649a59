"""Programs of ranks in the tests of launching, and a search for processes that are left. It loads no torch."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from trainers.launch.environment import distributed_environment
from trainers.launch.rendezvous import init_process_group

PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]
SPAWNED = """
import sys
from tests.trainers.launches import wait_for_it
from trainers.launch.spawn import spawn
if __name__ == "__main__":
    sys.exit(spawn(2, wait_for_it, (sys.argv[1], -1, "")))
"""


def start_program(folder: Path, program: str, **options: Any) -> subprocess.Popen[str]:
    """Start a program, which is given the folder, in an environment that is no rank's. options: as Popen has them.

    variables: of the environment, besides ours.
    """
    known = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME"}
    ours = {name: value for name, value in os.environ.items() if name not in known and "SLURM" not in name}
    variables = {name: str(value) for name, value in options.pop("variables", {}).items()}
    (folder / "program.py").write_text(program)
    command = [sys.executable, str(folder / "program.py"), str(folder)]
    return subprocess.Popen(command, env={**ours, "PYTHONPATH": str(ROOT), **variables}, text=True, **options)


def add_up(folder: str) -> None:
    """Meet the others, and note what was found."""
    environment = distributed_environment()
    group = init_process_group(environment, PATIENCE_S)
    import torch
    import torch.distributed as dist

    total = torch.tensor([10.0**environment.rank])
    dist.all_reduce(total, group=group)
    threads = f"{torch.get_num_threads()} {os.environ.get('OMP_NUM_THREADS')}"
    (Path(folder) / f"rank{environment.rank}").write_text(f"{environment} {total.item():.0f} {threads}")
    dist.destroy_process_group()


def wait_for_it(folder: str, failing: int, how: str) -> int:
    """All ranks note their process; when all are there, one fails, and the others wait for it in a collective."""
    environment = distributed_environment()
    group = init_process_group(environment, PATIENCE_S)
    import torch
    import torch.distributed as dist

    note(Path(folder), environment.rank)
    while len(list(Path(folder).glob("rank?"))) < environment.num_ranks:
        time.sleep(0.02)
    if environment.rank == failing:
        fail(how, environment.rank)
    dist.all_reduce(torch.ones(1), group=group)
    time.sleep(600)
    return 0


def note(folder: Path, rank: int) -> None:
    """The process of a rank, in a file that is whole when it is there."""
    (folder / f"rank{rank}.tmp").write_text(str(os.getpid()))
    (folder / f"rank{rank}.tmp").rename(folder / f"rank{rank}")


def fail(how: str, rank: int) -> None:
    """In one of the ways that there are."""
    match how:
        case "mistake":
            raise ValueError(f"--data {rank}: no such thing")
        case "ours":
            from collectives.runtime.errors import CollectiveError

            raise CollectiveError(f"rank {rank}: nobody came")
        case "bug":
            raise ZeroDivisionError(f"by {rank}")
        case "exit":
            sys.stderr.write("rank said why\n")
            sys.exit(5)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)


def all_fail(how: str) -> None:
    """Every rank alike, without meeting."""
    fail(how, 7)


def processes_of(folder: Path, num_ranks: int) -> list[int]:
    """Of the ranks that wait, when they are there."""
    deadline = time.monotonic() + PATIENCE_S
    while len(found := [int(path.read_text()) for path in folder.glob("rank?")]) < num_ranks:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def living(processes: list[int]) -> list[int]:
    """Return the processes that still are there; one whose parent has not asked how it ended is not."""
    alive = []
    for pid in processes:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            alive.append(pid)
    return alive
