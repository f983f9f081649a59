"""`read_network`: from the text of a network file to a `Cluster`, and `load_network`: from a file or a preset.

docs/reference/files.md describes the format.
"""

import math
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any

from ringsim.files import naming_place, parse_toml, read_text, refusal
from ringsim.network import spec
from ringsim.network.cluster import Calibration, Cluster, parameter_names
from ringsim.network.fabric import neighbours, reach
from ringsim.network.file_format import NETWORK, quantities
from ringsim.network.topology import Jitter
from ringsim.suggestions import did_you_mean

Fields = dict[str, Any]


def read_network(text: str, file: str) -> Cluster:
    """Return the cluster that the TOML text describes; `file` is what error messages call it.

    Raises ValueError with file, place, value and rule for anything that is wrong with it.
    """
    with naming_place(file):
        return _cluster(NETWORK.read(parse_toml(text), ""), file)


def _cluster(fields: Fields, file: str) -> Cluster:
    about = {key: fields.pop(key) for key in ("name", "description", "source") if key in fields}
    calibration = fields.pop("calibration", None)
    if calibration and "protocols" in fields:  # older versions left out 2, with which they had fitted
        fields["library"] = {"two_host_passes": 2.0} | fields.get("library", {})
    described = _spec(fields)
    if calibration:
        _check_parameters(calibration, described)
    return Cluster(**{"name": PurePath(file).stem, **about}, spec=described, file=file, calibration=calibration)


def _check_parameters(calibration: Calibration, described: spec.Spec) -> None:
    """Raise ValueError for a parameter that the network does not have: its draws would change nothing."""
    protocols = [protocol.name for protocol in described.protocols]
    names = parameter_names(protocols) if protocols else list(quantities(described))  # of a fit to logs, to probes
    for index, name in enumerate(calibration.parameters):
        if name not in names:
            rule = "this network has no such parameter: correct it, or remove parameters and draws"
            raise refusal(f"calibration.parameters[{index}]", name, f"{did_you_mean(name, names)}{rule}")


_LISTS: dict[str, Callable[..., Any]] = {
    "slow_ranks": spec.SlowRank, "slow_links": spec.SlowLink, "failures": spec.Failure, "protocols": spec.Protocol,
}  # fmt: skip


def _spec(fields: Fields) -> spec.Spec:
    placed, template = fields.get("placed_hosts", []), fields.get("host", {})
    sections: Fields = {"placed_hosts": _placed_hosts(placed, template)} if placed else _all_alike(fields)
    sections["cables"] = _cables(fields, sections.get("placed_hosts", ()))
    sections["switch"] = _switch(fields, sections)
    sections["processor"] = spec.Processor(**fields.get("processor", {}))
    _check_faults(fields)
    sections["jitter"] = Jitter(**fields["jitter"]) if "jitter" in fields else None
    for field, kind in _LISTS.items():
        sections[field] = tuple(kind(**table) for table in fields.get(field, []))
    sections["library"] = _library(fields.get("library", {}))
    return spec.Spec(**sections)


def _all_alike(fields: Fields) -> Fields:
    if "host" not in fields:
        raise ValueError("neither [host] nor [[hosts]]: describe the hosts")
    template = fields["host"]
    count = template.get("num_hosts")
    if count is not None and "ranks_per_host" not in template:
        raise refusal("host.count", count, "also give host.ranks, the ranks of each host")
    placing = {key: template[key] for key in ("ranks_per_host", "num_hosts") if key in template}
    return {"host": _host(template), **placing}


def _host(*layers: Mapping[str, Any]) -> spec.Host:
    """Return the host of these layers: a later one wins over an earlier one, key by key."""
    merged = ChainMap[str, Any](*reversed(layers))
    link, nics = (ChainMap(*(layer.get(key, {}) for layer in reversed(layers))) for key in ("link", "nics"))
    host = spec.Host(
        **{key: merged[key] for key in ("cores", "memory_bytes_per_s", "copies") if key in merged},
        link=spec.Link(**link),
        nics=spec.Nics(**nics),
        shared_memory=_shared_memory(merged.get("shared_memory", {})),
    )
    _require_bandwidth("host.link", host.link)
    _require_bandwidth("host.nic", host.nics)
    return host


def _require_bandwidth(place: str, link: spec.Link) -> None:
    if link.burst_bytes and math.isinf(link.bandwidth_bytes_per_s):
        rule = f"give {place}.bandwidth as well, without which there is no limit to exceed"
        raise refusal(f"{place}.burst", link.burst_bytes, rule)


def _shared_memory(fields: Fields) -> spec.SharedMemory | None:
    if not fields:
        return None
    rates = sorted((spec.MemoryRate(**rate) for rate in fields.get("rates", [])), key=attrgetter("published_bytes"))
    if not rates:
        raise ValueError("host.shared_memory: give at least one [[host.shared_memory.rate]]")
    return spec.SharedMemory(**{**fields, "rates": tuple(rates)})


def _library(fields: Fields) -> spec.Tuning:
    steps: dict[int, spec.RingStep] = {}
    for index, step in enumerate(spec.RingStep(**step) for step in fields.get("ring_steps", [])):
        place = f"library.ring_step[{index}]"
        if step.time_s <= 0:
            raise ValueError(f"{place}.time: must be greater than 0")
        if step.message_bytes in steps:
            raise ValueError(f"{place}.message = {step.message_bytes}: another ring step has this message size already")
        steps[step.message_bytes] = step
    return spec.Tuning(**{**fields, "ring_steps": tuple(step for _, step in sorted(steps.items()))})


def _placed_hosts(placed: Sequence[Fields], template: Fields) -> tuple[spec.PlacedHost, ...]:
    for key, field in (("ranks", "ranks_per_host"), ("count", "num_hosts")):
        if field in template:
            raise refusal(f"host.{key}", template[field], "must be left out, since [[hosts]] contains it")
    hosts = tuple(spec.PlacedHost(host["name"], host["ranks"], _host(template, host)) for host in placed)
    _check_names(hosts)
    _check_ranks(hosts)
    return hosts


def _check_names(hosts: Sequence[spec.PlacedHost]) -> None:
    first: dict[str, int] = {}
    for place, host in enumerate(hosts):
        if first.setdefault(host.name, place) != place:
            raise refusal(f"hosts[{place}].name", host.name, f"hosts[{first[host.name]}] has that name already")


def _check_ranks(hosts: Sequence[spec.PlacedHost]) -> None:
    host_of: dict[int, str] = {}
    for place, host in enumerate(hosts):
        for rank in host.ranks:
            if rank in host_of:
                raise refusal(f"hosts[{place}].ranks", list(host.ranks), f"rank {rank} is on {host_of[rank]} already")
            host_of[rank] = host.name
    missing = next((rank for rank in range(len(host_of)) if rank not in host_of), None)
    if missing is not None:
        raise ValueError(f"hosts: rank {missing} is on none; the ranks of all hosts must be 0, 1, 2 and so on")


def _cables(fields: Fields, hosts: Sequence[spec.PlacedHost]) -> tuple[spec.Cable, ...]:
    cables = tuple(spec.Cable(**cable) for cable in fields.get("cables", []))
    if cables and not hosts:
        raise ValueError("links: need [[hosts]], so that they can name them")
    if cables and "switch" in fields:
        raise ValueError("switch: must be left out, since [[links]] describes how the hosts are connected")
    ends: set[frozenset[str]] = set()
    for place, cable in enumerate(cables):
        _require_bandwidth(f"links[{place}]", cable)
        if frozenset(cable.between) in ends:
            raise refusal(f"links[{place}].between", list(cable.between), "there is a link between them already")
        ends.add(frozenset(cable.between))
    if cables:
        _check_reach(cables, hosts)
    return cables


def _check_reach(cables: Sequence[spec.Cable], hosts: Sequence[spec.PlacedHost]) -> None:
    first = hosts[0]  # cables go both ways, so it is enough that one reaches all
    reached = reach(first.name, neighbours(cables))
    for host in hosts[1:]:
        if host.name not in reached:
            ranks = f"(rank {first.ranks[0]}) to {host.name} (rank {host.ranks[0]})"
            raise ValueError(f"links: there is no path from {first.name} {ranks}")


def _switch(fields: Fields, sections: Fields) -> spec.Switch:
    switch = fields.get("switch", {})
    for key, field in (("uplink", "uplink_bytes_per_s"), ("oversubscription", "oversubscription")):
        if field in switch and "hosts_per_leaf" not in switch:
            raise ValueError(f"switch.{key}: also give switch.hosts, the hosts of each leaf switch")
    if "oversubscription" in switch:
        if "uplink_bytes_per_s" in switch:
            raise ValueError("switch.oversubscription: give this or switch.uplink, not both")
        hosts = [placed.host for placed in sections.get("placed_hosts", ())] or [sections["host"]]
        if any(math.isinf(host.nics.bandwidth_bytes_per_s) for host in hosts):
            raise ValueError("switch.oversubscription: needs a bandwidth of every NIC")
    return spec.Switch(**switch)


def _check_faults(fields: Fields) -> None:
    for place, slow in enumerate(fields.get("slow_links", [])):
        if len(slow) == 1:
            raise refusal(f"slow_link[{place}].link", slow["link"], "give its bandwidth, slowdown or latency")
    for place, failure in enumerate(fields.get("failures", [])):
        if ("link" in failure) == ("rank" in failure):
            raise ValueError(f"failure[{place}]: give either link or rank")


_FOLDER = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """Return the names of the presets, in the order of the alphabet."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_network(name_or_path: str | Path) -> Cluster:
    """Return a preset by its name, or the network that a file describes, if the text ends in .toml.

    Raises ValueError for a name that no preset has, and for whatever is wrong with the file; OSError if it cannot
    be read.

        >>> from ringsim import load_network
        >>> load_network("dgx-h100").name
        'dgx-h100'
    """
    name = str(name_or_path)
    if name.endswith(".toml"):
        return read_network(read_text(Path(name)), name)
    if name not in (names := preset_names()):
        presets = f"{did_you_mean(name, names)}presets are {', '.join(names)}"
        raise ValueError(f"network {name!r}: {presets}; or give a file that ends in .toml")
    return read_network(read_text(_FOLDER / f"{name}.toml"), f"ringsim/network/presets/{name}.toml")
