"""`Calibration`: which timings a network was fitted to, so that others can be told from them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CalibratedCells:
    """One collective on so many ranks of so many hosts, in these sizes."""

    collective: str
    algorithm: str
    num_ranks: int
    num_hosts: int
    sizes_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Calibration:
    """files: the names of the logs or measurements, without their folders."""

    files: tuple[str, ...] = ()
    cells: tuple[CalibratedCells, ...] = ()

    def used(self, collective: str, num_ranks: int, num_hosts: int, size_bytes: int) -> bool:
        """Whether a time of this collective, whatever its algorithm, was among them."""
        return any(
            (calibrated.collective, calibrated.num_ranks, calibrated.num_hosts) == (collective, num_ranks, num_hosts)
            and size_bytes in calibrated.sizes_bytes
            for calibrated in self.cells
        )
