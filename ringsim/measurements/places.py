"""`Places`: which ranks share a machine, and which a host's network interfaces."""

from dataclasses import dataclass
from typing import Self

from ringsim.files import as_tuple, require_whole
from ringsim.measurements.measurements import Measurements


@dataclass(frozen=True, slots=True)
class Places:
    """For each rank the number of its machine, whose cores it shares, and of its host, whose interfaces it shares.

    Both count from 0, as they first come in the order of the ranks.
    """

    machines: tuple[int, ...]
    hosts: tuple[int, ...]

    @classmethod
    def of(cls, measurements: Measurements) -> Self | None:
        """As the ranks noted; None if they did not. Raises ValueError for what cannot be."""
        noted = {name: measurements.provenance.get(name) for name in ("machines", "hosts")}
        if None in noted.values():
            return None
        return cls(*(_numbers(f"provenance.{name}", value, measurements.num_ranks) for name, value in noted.items()))

    def as_dict(self) -> dict[str, list[int]]:
        """For the provenance of measurements."""
        return {"machines": list(self.machines), "hosts": list(self.hosts)}

    @property
    def num_hosts(self) -> int:
        """At least one."""
        return max(self.hosts) + 1

    @property
    def one_clock(self) -> bool:
        """Whether all ranks are on one machine."""
        return not any(self.machines)

    @property
    def ranks_per_host(self) -> int:
        """The last may have fewer. Raises ValueError unless the others have as many, one host's after the other's."""
        each = self.hosts.count(0)
        if list(self.hosts) != [rank // each for rank in range(len(self.hosts))]:
            raise ValueError(f"hosts of the ranks: {list(self.hosts)}: only hosts with as many ranks each, in order")
        return each

    def right_of(self, rank: int) -> int:
        """Its neighbour, to which it sends in a ring."""
        return (rank + 1) % len(self.hosts)


def _numbers(name: str, value: object, num_ranks: int) -> tuple[int, ...]:
    """One for each rank, counted from 0 as they first come."""
    numbers = as_tuple(name, value)
    if len(numbers) != num_ranks:
        raise ValueError(f"{name}: {len(numbers)} numbers for {num_ranks} ranks: must be one for each")
    known = 0
    for rank, number in enumerate(numbers):
        require_whole(f"{name}[{rank}]", number, 0, known)
        known = max(known, number + 1)
    return numbers
