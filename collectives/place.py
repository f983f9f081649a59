"""`places_of`: which ranks of a group share a machine, and which a network interface."""

import socket
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

from collectives.exchange import Exchange

TAG = 0x55
BOOT = Path("/proc/sys/kernel/random/boot_id")  # one for each running kernel, whatever its hosts are called
NAMESPACE = Path("/proc/self/ns/net")  # containers of one machine have one each, and so interfaces of their own


class Places(NamedTuple):
    """For each rank, the number of its machine, whose cores it shares, and of its host, whose interfaces it shares."""

    machines: list[int]
    hosts: list[int]


def places_of(group: dist.ProcessGroup) -> Places:
    """Where the ranks of `group` are; collective. Machines and hosts are counted in the order of the ranks."""
    said = Exchange(group, TAG).all(f"{_machine()} {_namespace()}")
    return Places(_numbered([words.split(" ")[0] for words in said]), _numbered(said))


def _machine() -> str:
    return BOOT.read_text().strip() if BOOT.exists() else socket.gethostname()


def _namespace() -> str:
    return str(NAMESPACE.readlink()) if NAMESPACE.exists() else socket.gethostname()


def _numbered(names: list[str]) -> list[int]:
    """Equal names as equal numbers, counted as they first come."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]
