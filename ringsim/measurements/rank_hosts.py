"""`RankHosts`: which ranks share a host's cores, and which its network interfaces."""

from dataclasses import dataclass
from typing import Self

from ringsim.files import parsed, refusal, values
from ringsim.measurements.measurements import Measurements


@dataclass(frozen=True, slots=True)
class RankHosts:
    """The hosts of the ranks, (num_ranks,) each, numbered from 0 as they first come in the order of the ranks.

    hosts: what has network interfaces of its own: a computer, or a network namespace or container on one.
    physical_hosts: the computer whose cores and clock the rank shares; the key in files is "machines".
    """

    physical_hosts: tuple[int, ...]
    hosts: tuple[int, ...]

    @classmethod
    def from_measurements(cls, measurements: Measurements) -> Self | None:
        """Returns what the ranks noted; None if they did not. Raises ValueError for what cannot be."""
        noted = {name: measurements.provenance.get(name) for name in ("machines", "hosts")}
        if None in noted.values():
            return None
        return cls(*(_numbers(f"provenance.{name}", value, measurements.num_ranks) for name, value in noted.items()))

    def as_dict(self) -> dict[str, list[int]]:
        """Returns both for the provenance of measurements."""
        return {"machines": list(self.physical_hosts), "hosts": list(self.hosts)}

    @property
    def num_hosts(self) -> int:
        """The number of hosts, at least one."""
        return max(self.hosts) + 1

    @property
    def one_clock(self) -> bool:
        """Whether all ranks are on one physical host."""
        return not any(self.physical_hosts)

    @property
    def ranks_per_host(self) -> int:
        """The number of ranks of every host; the last may have fewer.

        Raises ValueError unless the others have as many, one host's after the other's.
        """
        num_ranks = self.hosts.count(0)
        if list(self.hosts) != [rank // num_ranks for rank in range(len(self.hosts))]:
            raise ValueError(f"hosts of the ranks: {list(self.hosts)}: only hosts with as many ranks each, in order")
        return num_ranks

    def right_of(self, rank: int) -> int:
        """Returns the neighbour to which a rank sends in a ring."""
        return (rank + 1) % len(self.hosts)


def _numbers(name: str, value: object, num_ranks: int) -> tuple[int, ...]:
    """Returns a number for each rank, counted from 0 as they first come."""
    if not isinstance(value, list | tuple) or len(value) != num_ranks:
        raise refusal(name, value, f"must be a list of {num_ranks} numbers, one for each rank")
    known = 0
    for rank, number in enumerate(value):
        known = max(known, 1 + parsed(values.whole(0, known), number, f"{name}[{rank}]"))
    return tuple(value)
