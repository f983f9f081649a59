"""From a `Cluster` back to the text of a network file, which `read_network` reads."""

import json
import math
from collections.abc import Collection, Iterator
from dataclasses import fields
from typing import Any

from ringsim.files import Key, encode
from ringsim.network.cluster import Calibration, Cluster
from ringsim.network.file_format import keys_of
from ringsim.network.spec import Spec

_FIGURES = 6  # more than any measurement has


def network_text(cluster: Cluster) -> str:
    """Return TOML that describes the same network, with a key for each value that is not the default.

    Raises ValueError for a network with hosts by name, slow ranks, failures or jitter, which are not written.
    """
    spec = cluster.spec
    if spec.placed_hosts or spec.cables or spec.slow_ranks or spec.failures or spec.jitter:
        raise ValueError(f"{cluster.name}: only networks of hosts that are all alike can be written")
    lines = [f"{key} = {_quoted(getattr(cluster, key))}" for key in ("name", "description", "source")]
    for place, values in _tables(spec, is_fitted=bool(cluster.calibration and spec.protocols)):
        lines += ["", place, *values]
    if cluster.calibration:
        lines += ["", *_calibration(cluster.calibration)]
    return "\n".join(lines) + "\n"


def _tables(spec: Spec, *, is_fitted: bool) -> Iterator[tuple[str, list[str]]]:
    host = {"ranks": spec.ranks_per_host, "count": spec.num_hosts}
    yield "[host]", [f"{key} = {value}" for key, value in host.items() if value is not None] + _values(spec.host)
    parts = {"host.link": spec.host.link, "host.nic": spec.host.nics, "rank": spec.processor, "library": spec.library}
    for place, part in parts.items():
        if values := _values(part, ("two_host_passes",) if is_fitted else ()):
            yield f"[{place}]", values
    for step in spec.library.ring_steps:
        yield "[[library.ring_step]]", _values(step)
    shared = spec.host.shared_memory
    if shared:
        yield "[host.shared_memory]", _values(shared)
        for rate in shared.rates:
            yield "[[host.shared_memory.rate]]", _values(rate)
    for protocol in spec.protocols:
        yield "[[protocol]]", _values(protocol)
    for slow in spec.slow_links:
        yield "[[slow_link]]", _values(slow)


def _values(part: Any, always: Collection[str] = ()) -> list[str]:
    """Return a line for each key that says something else than if it were left out, and for the fields `always`."""
    defaults = {field.name: field.default for field in fields(part)}
    entries = ((name, key, getattr(part, key.field)) for name, key in keys_of(type(part)).items())
    return [
        f"{name} = {_shown(key, value)}"
        for name, key, value in entries
        if value != defaults[key.field] or key.field in always
    ]


def _shown(key: Key, value: Any) -> str:
    if key.field == "half_duplex":
        return _quoted("half")
    if key.field.endswith("_per_s"):
        return _quoted(f"{value / 1e9:.{_FIGURES}g}GB/s") if math.isfinite(value) else _quoted("1e9GB/s")
    if key.field.endswith("_s"):
        return _quoted(f"{value * 1e6:.{_FIGURES}g}us")
    if isinstance(value, str):
        return _quoted(value)
    return f"{value:.{_FIGURES}g}" if isinstance(value, float) else str(value)


def _calibration(calibration: Calibration) -> list[str]:
    about = encode(calibration)
    cells = about.pop("cells")
    lines = ["[calibration]  # what it was fitted to; `ringsim compare` marks these", *_lines(about)]
    for entry in cells:
        lines += ["", "[[calibration.cells]]", *_lines(entry)]
    return lines


def _lines(entry: dict[str, Any]) -> list[str]:
    return [f"{key} = {json.dumps(value)}" for key, value in entry.items() if value is not None and value != []]


def _quoted(text: str) -> str:
    """JSON's escapes are TOML's."""
    return json.dumps(text, ensure_ascii=False)
