"""Where the ranks of a group run: on which machines, with which versions."""

import os
from typing import Any

import torch
import torch.distributed as dist

from collectives.runtime import Tag, TextAllGather, have_gloo_threads_batch_policy, machine_name, namespace_name
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
