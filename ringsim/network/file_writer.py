"""From a `Network` back to the text of a network file, which `read_network` reads."""

import math
from collections.abc import Collection
from typing import Any

import msgspec

from ringsim.files import encode, toml_text
from ringsim.network.network import Network

_FIGURES = 6  # more than any measurement has


def network_text(cluster: Network) -> str:
    """Return TOML that describes the same network, with a key for each value that is not the default.

    Raises ValueError for a network with hosts by name, slow ranks, failures or jitter, which are not written.
    """
    spec, calibration = cluster.spec, cluster.calibration
    if spec.placed_hosts or spec.cables or spec.slow_ranks or spec.failures or spec.jitter:
        raise ValueError(f"{cluster.name}: only networks of hosts that are all alike can be written")
    about = {"name": cluster.name, "description": cluster.description, "source": cluster.source}
    tables = _table(spec, ("two_host_passes",) if calibration and spec.protocols else ())
    timings = {"calibration": encode(calibration)} if calibration else {}
    placing = {key: tables.pop(key) for key in ("ranks", "count") if key in tables}
    return toml_text(about | tables | {"host": placing | tables.get("host", {})} | timings)


def _table(part: msgspec.Struct, always: Collection[str] = ()) -> dict[str, Any]:
    """Return what says something else than if it were left out, and the fields `always`, by their keys."""
    values = ((field, getattr(part, field.name)) for field in msgspec.structs.fields(part))
    return {
        field.encode_name: _written(field.name, value, always)
        for field, value in values
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
