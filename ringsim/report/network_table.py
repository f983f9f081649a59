"""The list of networks, and the resources and paths of one of them, as tables for people and as JSON."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ringsim.files import finite_or_none
from ringsim.network import NONE, Network, Topology
from ringsim.text_table import WIDTH, align_columns, wrap_text
from ringsim.units import format_rate, format_size, format_time, plural

ONE_PORT = "each rank has one full-duplex port"  # on a uniform network


def network_summary(cluster: Network) -> dict[str, Any]:
    """Return an entry of the list of networks, for JSON; without a limit None stands for any number."""
    spec = cluster.spec
    return {
        "name": cluster.name,
        "num_hosts": len(spec.placed_hosts) or spec.num_hosts or (1 if spec.ranks_per_host is None else None),
        "max_ranks": spec.max_ranks,
        "description": cluster.description,
        "source": cluster.source,
    }


def format_networks(clusters: Iterable[Network], wide: bool = False) -> str:
    """Return a row for each network; wide: in one line each, below which stands the source of its numbers."""
    rows = [("network", "hosts", "ranks", "description")]
    for summary in map(network_summary, clusters):
        hosts, ranks = summary["num_hosts"] or "any", summary["max_ranks"] or "any"
        rows.append((summary["name"], str(hosts), str(ranks), summary["description"]))
        rows += [("", "", "", summary["source"])] if wide else []
    return "\n".join(align_columns(rows, "lrrl", width=None if wide else WIDTH))


def network_details(cluster: Network, num_ranks: int) -> dict[str, Any]:
    """Return a network with its resources and its kinds of paths from rank 0, for JSON; infinity becomes None."""
    topology = cluster.topology(num_ranks)
    resources = topology.resources
    limits = resources.capacity.tolist(), resources.burst_bytes.tolist(), resources.fails_at_s.tolist()
    return {
        **cluster.as_dict(),
        "num_ranks": num_ranks,
        "resources": [
            finite_or_none({"name": name, "capacity": capacity, "burst_bytes": int(burst), "fails_at_s": fails_at_s})
            for name, capacity, burst, fails_at_s in zip(resources.names, *limits, strict=True)
        ],
        "paths": _kinds_of_paths(topology),
    }


def _kinds_of_paths(topology: Topology) -> list[dict[str, Any]]:
    """Return the first path from rank 0 of every latency, bandwidth and number of resources."""
    dst = np.arange(1, topology.num_ranks)
    paths = topology.paths(np.zeros_like(dst), dst)
    alone = paths.alone_bytes_per_s(topology.resources)
    num_used = (paths.resource != NONE).sum(axis=1)
    _, first = np.unique(np.column_stack([paths.latency_s, alone, num_used]), axis=0, return_index=True)
    return [
        {
            "src": 0,
            "dst": int(dst[row]),
            "latency_s": float(paths.latency_s[row]),
            "alone_bytes_per_s": finite_or_none(float(alone[row])),
            "uses_per_byte": {
                topology.resources.names[resource]: float(use)
                for resource, use in zip(paths.resource[row], paths.use_per_byte[row], strict=True)
                if resource != NONE
            },
        }
        for row in sorted(first)
    ]


def format_network_details(details: dict[str, Any], wide: bool = False) -> str:
    """Return what `network_details` tells, as tables for people."""
    width = None if wide else WIDTH
    paths = [_path(path) for path in details["paths"]]
    about = f": {details['description']}" if details["description"] else ""
    parts = [wrap_text(f"{details['name']}, {plural(details['num_ranks'], 'rank')}{about}", width)]
    parts += [wrap_text(details["source"], width), ""] if details["source"] else [""]
    parts += align_columns([("resource", "number", "capacity", ""), *_alike(details["resources"])], width=width)
    parts += ["", *align_columns([("path", "latency", "alone", "uses for a byte"), *paths], width=width)]
    return "\n".join(parts)


def _alike(resources: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for all that differ in nothing but the numbers in their names, called by the first and the last."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for resource in resources:
        notes = [f"burst {format_size(resource['burst_bytes'])}"] if resource["burst_bytes"] else []
        notes += [] if resource["fails_at_s"] is None else [f"fails at {format_time(resource['fails_at_s'])}"]
        kind = (re.sub(r"\d+", "", resource["name"]), _capacity(resource), ", ".join(notes))
        groups.setdefault(kind, []).append(resource["name"])
    return [
        (" .. ".join(dict.fromkeys((names[0], names[-1]))), str(len(names)), *kind[1:])
        for kind, names in groups.items()
    ]


def _path(path: dict[str, Any]) -> tuple[str, ...]:
    uses = [name if use == 1 else f"{use:.3g} {name}" for name, use in path["uses_per_byte"].items()]
    rate = "any" if path["alone_bytes_per_s"] is None else format_rate(path["alone_bytes_per_s"])
    return f"{path['src']} to {path['dst']}", format_time(path["latency_s"]), rate, ", ".join(uses)


def _capacity(resource: dict[str, Any]) -> str:
    capacity = resource["capacity"]
    if capacity is None:
        return "no limit"
    return f"{capacity:g} cores" if resource["name"].endswith(".cores") else format_rate(capacity)


def network_facts(network: Mapping[str, Any]) -> list[str]:
    """Return a network's `as_dict` in few words: its description, or the costs of a uniform one, and its ports."""
    if not _is_uniform(network):
        return [network["description"]] if network.get("description") else []
    formats = {"_bytes_per_s": format_rate, "_s": format_time}
    parts = []
    for name, value in network.items():
        ending = next((ending for ending in formats if name.endswith(ending)), None)
        if ending and isinstance(value, int | float) and value > 0:
            parts.append(f"{name.removesuffix(ending).replace('_', ' ')} {formats[ending](value)}")
    return [*parts, ONE_PORT]


def named_network(network: Mapping[str, Any]) -> list[str]:
    """Return the same after the name of the network, if it has one."""
    return [*([f"network {network['name']}"] if "name" in network else []), *network_facts(network)]


def uniform_note(network: Mapping[str, Any]) -> str:
    """Return what to know of results on a uniform network, of its `as_dict`; "" for a network of hosts."""
    return ", ".join(network_facts(network)) if _is_uniform(network) else ""


def _is_uniform(network: Mapping[str, Any]) -> bool:
    return "latency_s" in network and "spec" not in network
