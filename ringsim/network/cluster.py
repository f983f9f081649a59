"""`AnyNetwork`: all that programs ask of a network, and `Cluster`: hosts, and where their numbers come from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self

from ringsim.files import finite_or_none
from ringsim.network.calibration_record import Calibration
from ringsim.network.cluster_topology import ClusterTopology
from ringsim.network.spec import Spec, require_quantities
from ringsim.network.topology import Topology


class AnyNetwork(Protocol):
    """Hosts with ranks, as `spec` describes them; where all pairs of ranks are alike (`Network`) they share one host.

    Whoever wants to know whether a network has hosts, protocols of a library, or slow ranks asks its `spec`.
    """

    @property
    def name(self) -> str:
        """For titles."""

    @property
    def place(self) -> str:
        """The file that it was read from, or its name; for error messages."""

    @property
    def spec(self) -> Spec:
        """The description by which the engines go."""

    def with_spec(self, **changes: Any) -> "AnyNetwork":
        """Return the same network with other values of these fields of its spec."""

    def topology(self, num_ranks: int) -> Topology:
        """Return what the engines see of it. Raises ValueError if it has no room for so many ranks."""

    def as_dict(self) -> Mapping[str, Any]:
        """Return what identifies it, for JSON."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hosts with ranks, cores, memory and NICs, and what connects them; `load_network` reads one from a file.

    source: a label (vendor figure, NCCL's own model, measured) and a reference.
    file: what it was read from, as it is named in error messages.
    calibration: the timings it was fitted to; None if it was not.

    Raises ValueError for a spec with a time that is not finite or is negative, or a rate that is not greater than 0.

        >>> from ringsim import load_network
        >>> load_network("gbe").topology(4).num_ranks
        4
    """

    name: str
    spec: Spec
    description: str = ""
    source: str = ""
    file: str = ""
    calibration: Calibration | None = None

    def __repr__(self) -> str:
        return f"Cluster({self.name}: {self.description})" if self.description else f"Cluster({self.name})"

    def __post_init__(self) -> None:
        try:
            require_quantities(self.spec)
        except ValueError as error:
            raise ValueError(f"{self.place}: {error}") from None

    @property
    def place(self) -> str:
        """Return the file that it was read from, or its name."""
        return self.file or self.name

    def with_spec(self, **changes: Any) -> Self:
        """Return the same cluster with other values of these fields of its spec."""
        return replace(self, spec=replace(self.spec, **changes))

    def topology(self, num_ranks: int) -> Topology:
        """Return what the engines see of it.

        Raises ValueError if there is no room for so many ranks, or what is said to be slow or to fail is not there.
        """
        try:
            return ClusterTopology(self.spec, num_ranks)
        except ValueError as error:
            raise ValueError(f"{self.place}: {error}") from None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, without the calibration's; an infinite rate becomes None."""
        fields: dict[str, Any] = finite_or_none(asdict(replace(self, calibration=None)))
        del fields["calibration"]
        return fields
