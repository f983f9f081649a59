"""`places_of`: which ranks of a group share a machine, and which a network interface."""

import socket
from pathlib import Path

import torch.distributed as dist

from collectives.runtime import ObjectAllGather, Tag
from ringsim.measurements import RankHosts

BOOT = Path("/proc/sys/kernel/random/boot_id")  # one for each running kernel, whatever its hosts are called
NAMESPACE = Path("/proc/self/ns/net")  # containers of one machine have one each, and so interfaces of their own


def places_of(group: dist.ProcessGroup) -> RankHosts:
    """Where the ranks of `group` are; collective."""
    names = ObjectAllGather(group, Tag.HOSTS).gather(f"{_machine()} {_namespace()}")
    return RankHosts(_numbered([name.split(" ")[0] for name in names]), _numbered(names))


def _machine() -> str:
    return BOOT.read_text().strip() if BOOT.exists() else socket.gethostname()


def _namespace() -> str:
    return str(NAMESPACE.readlink()) if NAMESPACE.exists() else socket.gethostname()


def _numbered(names: list[str]) -> tuple[int, ...]:
    """Equal names as equal numbers, counted as they first come."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return tuple(numbers[name] for name in names)
