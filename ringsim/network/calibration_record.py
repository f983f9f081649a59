"""`Calibration`: which timings a network was fitted to, so that others can be told from them."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated

from ringsim.files import values


@dataclass(frozen=True, slots=True)
class CalibratedCells:
    """One collective on so many ranks of so many hosts, in these sizes.

    rows: a digest of each timing that was used, as `TimedCase.rows` has them; empty in files of older versions.
    """

    collective: values.Name
    algorithm: values.Name
    num_ranks: int = field(metadata={"key": "ranks"})
    num_hosts: Annotated[int, values.count] = field(metadata={"key": "hosts"})
    sizes_bytes: tuple[values.Positive, ...] = field(metadata={"key": "sizes"})
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Calibration:
    """The timings that a network was fitted to.

    files: the names of the logs or measurements, without their folders.
    senders_per_host: the most ranks of a host that sent to other hosts at once, if the bandwidth of its NICs is that of
    all of them together; None where `host.nic` says how many NICs there are, or nothing crossed hosts.
    """

    files: tuple[str, ...] = field(default=(), metadata={"key": "from"})
    cells: tuple[CalibratedCells, ...] = ()
    senders_per_host: Annotated[int, values.count] | None = None

    def used(self, collective: str, num_ranks: int, num_hosts: int, size_bytes: int, rows: Collection[str]) -> bool:
        """Return whether one of these timings of the collective, whatever its algorithm, was among them.

        rows: their digests. Where these are not known, here or in the file, a timing of the same collective, size,
        ranks and hosts is taken for the same one.
        """
        shape = collective, num_ranks, num_hosts
        alike = [
            cells
            for cells in self.cells
            if (cells.collective, cells.num_ranks, cells.num_hosts) == shape and size_bytes in cells.sizes_bytes
        ]
        return any(not (cells.rows and rows) or not set(rows).isdisjoint(cells.rows) for cells in alike)
