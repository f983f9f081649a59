"""Where the ranks of a group run: on which machines, by which clocks, with which versions.

`time.perf_counter` is CLOCK_MONOTONIC, which all processes of a running Linux kernel share, also across network
namespaces. So ranks of one machine need no correction; of every other machine one rank asks rank 0 for its time.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from collectives.runtime import (
    Tag,
    TextAllGather,
    have_gloo_threads_batch_policy,
    machine_name,
    namespace_name,
    naming_failures,
)
from ringsim import measurements
from ringsim.measurements import RankHosts


def places_of(group: dist.ProcessGroup) -> RankHosts:
    """Where the ranks of `group` are; collective."""
    names = TextAllGather(group, Tag.HOSTS).gather(f"{machine_name()} {namespace_name()}")
    return RankHosts(_numbered([name.split(" ")[0] for name in names]), _numbered(names))


def _numbered(names: list[str]) -> tuple[int, ...]:
    """Equal names as equal numbers, counted as they first come."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return tuple(numbers[name] for name in names)


ROUNDS = 50  # of which the one that came back first counts: it waited least


def read_clocks(group: dist.ProcessGroup, machines: Sequence[int]) -> torch.Tensor:
    """Compare all clocks with rank 0's; collective, and every rank gets the same.

    machines: for each rank the number of its machine, as `places_of` finds.

    Returns (num_ranks, 2), float64: the seconds by which each clock is ahead of rank 0's, and by which that may be
    wrong. Raises CollectiveError when a peer fails.
    """
    with naming_failures(f"rank {group.rank()}: comparing clocks with rank 0 failed"):
        clocks = torch.zeros(len(machines), 2, dtype=torch.float64)
        for machine in sorted(set(machines) - {machines[0]}):
            asking = machines.index(machine)
            answer = ask_time(group, asking)
            if answer is not None:
                clocks[torch.tensor(machines) == machine] = torch.tensor(answer, dtype=torch.float64)
        dist.all_reduce(clocks, group=group)  # each row is known to one rank, and 0 on all others
    return clocks


def ask_time(group: dist.ProcessGroup, asking: int) -> tuple[float, float] | None:
    """Return what `asking`'s clock is ahead of rank 0's and the error of that, on that rank; None on all others.

    The answer was given at some time between question and answer, so half of the way there and back is the error.
    """
    rank, message = group.rank(), torch.zeros(1, dtype=torch.float64)
    rounds = []
    for _ in range(ROUNDS):
        if rank == 0:
            group.recv([message], asking, Tag.CLOCK).wait()
            message[0] = time.perf_counter()
            group.send([message], asking, Tag.CLOCK).wait()
        elif rank == asking:
            asked = time.perf_counter()
            group.send([message], 0, Tag.CLOCK).wait()
            group.recv([message], 0, Tag.CLOCK).wait()
            answered = time.perf_counter()
            rounds.append((answered - asked, (asked + answered) / 2 - message.item()))
    if rank != asking:
        return None
    way, ahead = min(rounds)
    return ahead, way / 2


def provenance() -> dict[str, Any]:
    """Return what a reader must know to judge a figure, for JSON."""
    origin = measurements.provenance()
    return {
        **origin,
        "command": _torchrun() + origin["command"],
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "calm_polling": have_gloo_threads_batch_policy(),
    }


def _torchrun() -> str:
    """Return what stands in front of the command where torchrun has started it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ""
    hosts, ranks = os.environ.get("GROUP_WORLD_SIZE", "1"), os.environ.get("LOCAL_WORLD_SIZE", "1")
    return "torchrun " + (f"--nnodes {hosts} " if hosts != "1" else "") + f"--nproc-per-node {ranks} "
