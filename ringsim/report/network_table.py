"""Networks and rank placements, as text and JSON."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ringsim.analysis import RankPlacement
from ringsim.files import finite_or_none, parse_json, quoted, read_text, values
from ringsim.network import NONE, Network, Topology
from ringsim.schedule import Schedule
from ringsim.text_table import WIDTH, align_columns, wrap_text
from ringsim.units import format_rate, format_size, format_time, plural, whole_number

ONE_PORT = "each rank has one full-duplex port"  # on a uniform network


def network_summary(cluster: Network) -> dict[str, Any]:
    """Return a row of the list for JSON; None: no limit."""
    spec = cluster.spec
    return {
        "name": cluster.name,
        "num_hosts": len(spec.placed_hosts) or spec.num_hosts or (1 if spec.ranks_per_host is None else None),
        "max_ranks": spec.max_ranks,
        "description": cluster.description,
        "source": cluster.source,
    }


def format_networks(clusters: Iterable[Network], wide: bool = False) -> str:
    """Return one row per network; wide: with sources."""
    rows = [("network", "hosts", "ranks", "description")]
    for summary in map(network_summary, clusters):
        hosts, ranks = summary["num_hosts"] or "any", summary["max_ranks"] or "any"
        rows.append((summary["name"], str(hosts), str(ranks), summary["description"]))
        rows += [("", "", "", summary["source"])] if wide else []
    return "\n".join(align_columns(rows, "lrrl", width=None if wide else WIDTH))


def network_details(cluster: Network, num_ranks: int) -> dict[str, Any]:
    """Return a network, its resources and the paths from rank 0, for JSON."""
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
    """Return the tables of `network_details`."""
    width = None if wide else WIDTH
    paths = [_path(path) for path in details["paths"]]
    about = f": {details['description']}" if details["description"] else ""
    parts = [wrap_text(f"{details['name']}, {plural(details['num_ranks'], 'rank')}{about}", width)]
    parts += [wrap_text(details["source"], width), ""] if details["source"] else [""]
    parts += align_columns([("resource", "number", "capacity", ""), *_alike(details["resources"])], width=width)
    parts += ["", *align_columns([("path", "latency", "alone", "uses for a byte"), *paths], width=width)]
    return "\n".join(parts)


def _alike(resources: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
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
    """Return the description, or a uniform network's costs and ports."""
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
    """Return the name, if any, and the `network_facts`."""
    return [*([f"network {network['name']}"] if "name" in network else []), *network_facts(network)]


def uniform_note(network: Mapping[str, Any]) -> str:
    """Return the costs of a uniform network's `as_dict`; "" for another."""
    return ", ".join(network_facts(network)) if _is_uniform(network) else ""


def _is_uniform(network: Mapping[str, Any]) -> bool:
    return "latency_s" in network and "spec" not in network


_MARGIN = 15  # characters before the order


def placement_dict(
    schedule: Schedule, network: Network, size_bytes: int, placement: RankPlacement, seed: int = 0
) -> dict[str, Any]:
    """Return a placement with its gain for JSON; None: an infinite time."""
    return {
        "collective": schedule.collective.value,
        "algorithm": schedule.algorithm,
        "num_ranks": schedule.num_ranks,
        "size_bytes": size_bytes,
        "network": network.as_dict(),
        "seed": seed,
        **finite_or_none({**asdict(placement), "gain": placement.gain}),
    }


def format_placement(report: Mapping[str, Any], wide: bool = False) -> str:
    """Return a `placement_dict` as text; wide: with the full order."""
    order = ",".join(map(str, report["order"]))
    if not wide and len(order) > WIDTH - _MARGIN:
        order = f"{order[: order.rfind(',', 0, 24) + 1]}... (--wide shows it, -o saves it)"
    before_s, now_s, may_help = report["time_before_s"], report["time_s"], ""
    if now_s is None:
        time = "never ends, in any simulated order: ringsim simulate reports which part fails and which ranks wait"
    elif report["order"] == list(range(report["num_ranks"])):
        time = f"{format_time(now_s)}: no faster order found"
        may_help = "a ring uses every NIC in any order; " if "ring" in report["algorithm"] else ""
        may_help += "ringsim explain simulates all other algorithms, and ringsim synthesize searches for a schedule"
    elif before_s is None:
        time = f"never ends -> {format_time(now_s)}: now it ends"
    else:
        time = f"{format_time(before_s)} -> {format_time(now_s)}, {report['gain']:.2f} times as fast"
    simulated = plural(report["evaluations"], "order")
    rows = [("order", order), ("time", time), ("may help", may_help), ("simulated", simulated)]
    schedule = f"{report['collective']} {report['algorithm']}, {plural(report['num_ranks'], 'rank')}"
    lines = align_columns([row for row in rows if row[1]], width=None if wide else WIDTH - 2)
    return "\n".join([f"{schedule}, {format_size(report['size_bytes'])}", *(f"  {line}" for line in lines)])


def parse_placement(text: str) -> tuple[int, ...]:
    """Return the ranks in the order of their places, from numbers or the name of a file.

    A file holds numbers, a JSON list, or a JSON object with an "order". Raises ValueError otherwise.
    """
    if numbers := _numbers(text):
        return numbers
    try:
        content = read_text(Path(text))
        if numbers := _numbers(content):
            return numbers
        data = parse_json(content)
    except OSError as error:
        raise ValueError(f"{quoted(text, 300)} is not an order, 0,2,1,3, and not a file: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{text}: is not an order: must be numbers such as 0,2,1,3, or JSON: {error}") from None
    ranks = data.get("order") if isinstance(data, dict) else data
    if not isinstance(ranks, list) or not all(values.is_whole(rank) for rank in ranks):
        raise ValueError(f'{text}: is not an order: JSON must be a list of ranks, or have one as "order"')
    return tuple(ranks)


def _numbers(text: str) -> tuple[int, ...] | None:
    numbers = [whole_number(part.strip()) for part in text.split(",")]
    return None if None in numbers else tuple(number for number in numbers if number is not None)
