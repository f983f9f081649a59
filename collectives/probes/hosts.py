"""`places_of`: which ranks of a group share a machine, and which a network interface."""

import torch.distributed as dist

from collectives.runtime import ObjectAllGather, Tag, machine_name, namespace_name
from ringsim.measurements import RankHosts


def places_of(group: dist.ProcessGroup) -> RankHosts:
    """Where the ranks of `group` are; collective."""
    names = ObjectAllGather(group, Tag.HOSTS).gather(f"{machine_name()} {namespace_name()}")
    return RankHosts(_numbered([name.split(" ")[0] for name in names]), _numbered(names))


def _numbered(names: list[str]) -> tuple[int, ...]:
    """Equal names as equal numbers, counted as they first come."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return tuple(numbers[name] for name in names)
