"""What `ringsim simulate`, `explain`, `ddp` and `sweep` print with --json, read back for a report."""

from dataclasses import dataclass
from typing import Any, Self

from ringsim.analysis import Sweep, SweepCell, read_sweep_cell
from ringsim.files import (
    MAX_RANKS,
    as_tuple,
    naming_place,
    require_name,
    require_object,
    require_seconds,
    require_text,
    require_whole,
)
from ringsim.schedule import Collective

UNIFORM = "uniform"  # what a network without a name is called


@dataclass(frozen=True, slots=True)
class SimulatedCollective:
    """A simulated collective. time_s: None if it never finishes.

    path_s: what the time of the critical path is spent on, such as "latency"; empty if that was not looked at.
    bottleneck: the resource that is used most; "" if it is not known.
    """

    collective: Collective
    algorithm: str
    num_ranks: int
    size_bytes: int
    num_steps: int
    num_transfers: int
    network: str
    time_s: float | None
    path_s: dict[str, float]
    bottleneck: str

    FIELDS = frozenset({"collective", "algorithm", "size_bytes", "network", "time_s", "explained"})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Returns what `ringsim simulate --json` printed. Raises ValueError for what is missing or impossible."""
        require_name("algorithm", data["algorithm"])
        require_whole("num_ranks", data.get("num_ranks"), 1, MAX_RANKS)
        for name in ("size_bytes", "num_steps", "num_transfers"):
            require_whole(name, data.get(name), 0)
        explained = {} if data["explained"] is None else data["explained"]
        require_object("explained", explained)
        return cls(
            collective=Collective(data["collective"]),
            **{name: data[name] for name in ("algorithm", "num_ranks", "size_bytes", "num_steps", "num_transfers")},
            network=_network(data["network"]),
            time_s=_time("time_s", data["time_s"]),
            path_s=_path(explained.get("critical_path")),
            bottleneck=_bottleneck(explained.get("bottleneck")),
        )


@dataclass(frozen=True, slots=True)
class PredictedDdpStep:
    """A training step with DDP. exposed_s, communication_s, step_s: None if it never ends; single_s: of one process."""

    num_ranks: int
    cap_bytes: int
    num_buckets: int
    communication_s: float | None
    exposed_s: float | None
    step_s: float | None
    single_s: float

    @property
    def efficiency(self) -> float | None:
        """The step of one process over this one."""
        return self.single_s / self.step_s if self.step_s else None

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Returns a step of `ringsim ddp --json`. Raises ValueError for what is missing or impossible."""
        require_object("step", data)
        require_whole("num_ranks", data.get("num_ranks"), 1, MAX_RANKS)
        require_whole("cap_bytes", data.get("cap_bytes"), 1)
        buckets = data.get("buckets")
        num_buckets = len(buckets) if isinstance(buckets, list) else buckets
        require_whole("buckets", num_buckets, 0)
        require_seconds("single_s", data.get("single_s"), 0)
        communication_s, exposed_s, step_s = (
            _time(name, data.get(name)) for name in ("communication_s", "exposed_s", "step_s")
        )
        single_s = float(data["single_s"])
        return cls(data["num_ranks"], data["cap_bytes"], num_buckets, communication_s, exposed_s, step_s, single_s)


@dataclass(frozen=True, slots=True)
class DdpPrediction:
    """The step that was asked for, the same with other caps, and on other numbers of ranks."""

    network: str
    step: PredictedDdpStep
    default_step_s: float | None
    sweep: tuple[PredictedDdpStep, ...]
    scaling: tuple[PredictedDdpStep, ...]

    FIELDS = frozenset({"network", "profile", "step", "default_step_s", "sweep", "scaling"})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Returns what `ringsim ddp --json` printed. Raises ValueError for what is missing or impossible."""
        return cls(
            _network(data["network"]),
            _step("step", data["step"]),
            _time("default_step_s", data["default_step_s"]),
            *(
                tuple(_step(f"{name}[{i}]", entry) for i, entry in enumerate(as_tuple(name, data[name])))
                for name in ("sweep", "scaling")
            ),
        )


def read_sweep(data: dict[str, Any]) -> Sweep:
    """Returns what `ringsim sweep --json` printed. Raises ValueError for what is missing or impossible."""
    require_whole("version", data.get("version"), 1, 1)
    networks = data.get("networks")
    for name, value in (("networks", networks), ("provenance", data.get("provenance"))):
        require_object(name, value)
    cells = tuple(_sweep_cell(f"cells[{i}]", cell) for i, cell in enumerate(as_tuple("cells", data.get("cells"))))
    if not cells or len({cell.collective for cell in cells}) > 1:
        raise ValueError("cells: there must be at least one, and all of the same collective")
    for cell in cells:
        require_object(f"networks: {cell.network}", data["networks"].get(cell.network))
    return Sweep(cells, data["networks"], data["provenance"])


def _sweep_cell(place: str, cell: Any) -> SweepCell:
    """By the reader of the lines of a CSV file, in which the same fields stand as text."""
    require_object(place, cell)
    return read_sweep_cell(place, {name: "" if value is None else str(value) for name, value in cell.items()})


def _step(place: str, data: Any) -> PredictedDdpStep:
    with naming_place(place):
        return PredictedDdpStep.from_dict(data)


def _network(data: Any) -> str:
    require_object("network", data)
    name = data.get("name", UNIFORM)
    require_text("network.name", name)
    return str(name)


def _time(name: str, value: Any) -> float | None:
    if value is not None:
        require_seconds(name, value, 0)
    return None if value is None else float(value)


def _path(data: Any) -> dict[str, float]:
    if data is None:
        return {}
    require_object("critical_path", data)
    spent = {name.removesuffix("_s"): value for name, value in data.items() if name.endswith("_s")}
    for name, value in spent.items():
        require_seconds(f"critical_path.{name}_s", value, 0)
    return {name: float(value) for name, value in spent.items()}


def _bottleneck(data: Any) -> str:
    if data is None:
        return ""
    require_object("bottleneck", data)
    require_text("bottleneck.name", data.get("name"))
    return str(data["name"])
