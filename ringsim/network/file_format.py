"""The remaining tables of a network file, and the conversion of a `Network` to text.

docs/reference/files.md describes each table.
"""

import math
from collections.abc import Collection
from typing import Any

import msgspec

from ringsim.files import encode, toml_text, values
from ringsim.network import spec
from ringsim.network.network import Calibration, Network
from ringsim.network.topology import Jitter


def _ranks(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(values.is_whole(item) and 0 <= item < values.MAX_COUNT for item in value):
        raise ValueError("must be a list of ranks, such as [0, 1]")
    if not value:
        raise ValueError("a host must have ranks")
    if len(set(value)) != len(value):
        raise ValueError("no rank may be listed twice")
    return tuple(value)


class HostTable(spec.Host, frozen=True):
    """The hosts if all are alike, otherwise the defaults for [[hosts]]."""

    ranks_per_host: values.Count | None = None
    num_hosts: values.Count | None = None


class PlacedTable(spec.Host, frozen=True, kw_only=True):
    """A host with a name."""

    name: spec.ResourceName
    ranks: values.By[tuple[int, ...], _ranks]


class NetworkFile(spec.Table, frozen=True):
    """The whole file."""

    name: str | None = None
    description: str = ""
    source: str = ""
    host: HostTable | None = None
    hosts: tuple[PlacedTable, ...] = ()
    cables: tuple[spec.Cable, ...] = msgspec.field(default=(), name="links")
    switch: spec.Switch | None = None
    fabric: tuple[spec.FabricPoint, ...] = ()
    processor: spec.Processor = msgspec.field(default=spec.Processor(), name="rank")
    slow_ranks: tuple[spec.SlowRank, ...] = msgspec.field(default=(), name="slow_rank")
    slow_links: tuple[spec.SlowLink, ...] = msgspec.field(default=(), name="slow_link")
    jitter: Jitter | None = None
    failures: tuple[spec.Failure, ...] = msgspec.field(default=(), name="failure")
    protocols: tuple[spec.Protocol, ...] = msgspec.field(default=(), name="protocol")
    library: spec.Tuning = spec.Tuning()
    calibration: Calibration | None = None


_FIGURES = 6  # more than any measurement has


def network_text(network: Network) -> str:
    """Return the network as TOML, without values equal to their defaults.

    Raises ValueError for hosts by name, slow ranks, failures or jitter, which cannot be written.
    """
    described, calibration = network.spec, network.calibration
    if described.placed_hosts or described.cables or described.slow_ranks or described.failures or described.jitter:
        raise ValueError(f"{network.name}: only networks of hosts that are all alike can be written")
    about = {"name": network.name, "description": network.description, "source": network.source}
    tables = _table(described, ("two_host_passes",) if calibration and described.protocols else ())
    timings = {"calibration": encode(calibration)} if calibration else {}
    placing = {key: tables.pop(key) for key in ("ranks", "count") if key in tables}
    return toml_text(about | tables | {"host": placing | tables.get("host", {})} | timings)


def _table(part: msgspec.Struct, always: Collection[str] = ()) -> dict[str, Any]:
    fields = ((field, getattr(part, field.name)) for field in msgspec.structs.fields(part))
    return {
        field.encode_name: _written(field.name, value, always)
        for field, value in fields
        if value != field.default or field.name in always
    }


def _written(field: str, value: Any, always: Collection[str]) -> Any:
    if isinstance(value, tuple):
        return [_table(one) for one in value]
    if isinstance(value, msgspec.Struct):
        return _table(value, always)
    if field == "half_duplex":
        return "half"
    if field.endswith("_per_s"):
        return f"{value / 1e9:.{_FIGURES}g}GB/s" if math.isfinite(value) else "1e9GB/s"
    if field.endswith("_s"):
        return f"{value * 1e6:.{_FIGURES}g}us"
    rounded = float(f"{value:.{_FIGURES}g}") if isinstance(value, float) else value
    return int(rounded) if isinstance(rounded, float) and rounded.is_integer() else rounded
