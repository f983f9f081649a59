"""`read_network` reads a `Network` from text, `load_network` from a file or a preset."""

import math
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any

from msgspec.structs import replace

from ringsim.files import decode, names_in, naming_place, parse_toml, parsed, read_preset, refusal
from ringsim.network import spec
from ringsim.network.fabric import neighbours, reach
from ringsim.network.file_format import HostTable, NetworkFile
from ringsim.network.network import Calibration, Network, parameter_names
from ringsim.suggestions import did_you_mean

_Raw = dict[str, Any]  # a table as TOML has it


def read_network(text: str, file: str) -> Network:
    """Return the network that the TOML text describes; error messages call it `file`.

    Raises ValueError with file, place, value and rule.
    """
    with naming_place(file):
        data = parse_toml(text)
        if "calibration" in data and "protocol" in data:  # older versions left out 2, with which they had fitted
            data["library"] = _merged({"two_host_passes": 2.0}, data.get("library", {}))
        template = data.get("host", {})
        parsed(HostTable, template, "host")  # before [[hosts]] inherits its keys
        if isinstance(hosts := data.get("hosts"), list):
            data["hosts"] = [_host(template, host) for host in hosts]
        network = decode(NetworkFile, data)
        for index, slow in enumerate(data.get("slow_link", ())):
            if len(slow) == 1:  # its link
                raise refusal(f"slow_link[{index}].link", slow["link"], "give its bandwidth, slowdown or latency")
        return _cluster(network, file)


def _merged(template: Any, given: Any) -> Any:
    """Return the table with the template's values for missing keys; other types stay, to be refused."""
    return {**template, **given} if isinstance(template, dict) and isinstance(given, dict) else given


def _host(template: _Raw, host: Any) -> Any:
    shared = {key: value for key, value in template.items() if key not in ("ranks", "count")}
    whole = _merged(shared, host)
    for key in ("link", "nic"):
        if isinstance(host, dict) and key in host and key in template:
            whole[key] = _merged(template[key], host[key])
    return whole


def _cluster(network: NetworkFile, file: str) -> Network:
    described = _spec(network)
    if network.calibration:
        _check_parameters(network.calibration, described)
    name = PurePath(file).stem if network.name is None else network.name
    return Network(name, described, network.description, network.source, file, network.calibration)


def _check_parameters(calibration: Calibration, described: spec.Spec) -> None:
    """Raise ValueError for unknown parameters, whose draws would change nothing."""
    protocols = [protocol.name for protocol in described.protocols]
    names = parameter_names(protocols) if protocols else list(spec.quantities(described))  # of a fit to logs, to probes
    for index, name in enumerate(calibration.parameters):
        if name not in names:
            rule = "this network has no such parameter: correct it, or remove parameters and draws"
            raise refusal(f"calibration.parameters[{index}]", name, f"{did_you_mean(name, names)}{rule}")


_AS_IN_THE_FILE = ("cables", "fabric", "processor", "slow_ranks", "slow_links", "failures", "jitter", "protocols")


def _spec(network: NetworkFile) -> spec.Spec:
    template = network.host or HostTable()
    if network.hosts:
        for key, value in (("ranks", template.ranks_per_host), ("count", template.num_hosts)):
            if value is not None:
                raise refusal(f"host.{key}", value, "must be left out, since [[hosts]] contains it")
    elif network.host is None:
        raise ValueError("neither [host] nor [[hosts]]: describe the hosts")
    elif template.num_hosts is not None and template.ranks_per_host is None:
        raise refusal("host.count", template.num_hosts, "also give host.ranks, the ranks of each host")
    placed = tuple(spec.PlacedHost(table.name, table.ranks, _hardware(table)) for table in network.hosts)
    host = spec.Host() if placed else _hardware(template)
    _check_names(placed)
    _check_ranks(placed)
    _check_cables(network, placed)
    _check_switch(network.switch or spec.Switch(), [one.host for one in placed] or [host])
    _check_fabric(network, [one.host for one in placed] or [host])
    _check_faults(network)
    return spec.Spec(
        host=host,
        ranks_per_host=template.ranks_per_host,
        num_hosts=template.num_hosts,
        placed_hosts=placed,
        switch=network.switch or spec.Switch(),
        library=_library(network.library),
        **{name: getattr(network, name) for name in _AS_IN_THE_FILE},
    )


def _hardware(table: spec.Host) -> spec.Host:
    host = spec.Host(**{name: getattr(table, name) for name in spec.Host.__struct_fields__})
    for place, link in (("host.link", host.link), ("host.nic", host.nics)):
        _require_bandwidth(place, link)
    shared = host.shared_memory
    if shared is None:
        return host
    if not shared.rates:
        raise ValueError("host.shared_memory: give at least one [[host.shared_memory.rate]]")
    rates = tuple(sorted(shared.rates, key=attrgetter("published_bytes")))
    return replace(host, shared_memory=replace(shared, rates=rates))


def _require_bandwidth(place: str, link: spec.Link) -> None:
    if link.burst_bytes and math.isinf(link.bandwidth_bytes_per_s):
        rule = f"give {place}.bandwidth as well, without which there is no limit to exceed"
        raise refusal(f"{place}.burst", link.burst_bytes, rule)


def _library(library: spec.Tuning) -> spec.Tuning:
    sizes: set[int] = set()
    for index, step in enumerate(library.ring_steps):
        place = f"library.ring_step[{index}]"
        if step.time_s <= 0:
            raise ValueError(f"{place}.time: must be greater than 0")
        if step.message_bytes in sizes:
            raise ValueError(f"{place}.message = {step.message_bytes}: another ring step has this message size already")
        sizes.add(step.message_bytes)
    return replace(library, ring_steps=tuple(sorted(library.ring_steps, key=attrgetter("message_bytes"))))


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


def _check_cables(network: NetworkFile, hosts: Sequence[spec.PlacedHost]) -> None:
    if not network.cables:
        return
    if not hosts:
        raise ValueError("links: need [[hosts]], so that they can name them")
    if network.switch:
        raise ValueError("switch: must be left out, since [[links]] describes how the hosts are connected")
    ends: set[frozenset[str]] = set()
    for place, cable in enumerate(network.cables):
        _require_bandwidth(f"links[{place}]", cable)
        if frozenset(cable.between) in ends:
            raise refusal(f"links[{place}].between", list(cable.between), "there is a link between them already")
        ends.add(frozenset(cable.between))
    first = hosts[0]  # cables go both ways, so it is enough that one reaches all
    reached = reach(first.name, neighbours(network.cables))
    for host in hosts[1:]:
        if host.name not in reached:
            ranks = f"(rank {first.ranks[0]}) to {host.name} (rank {host.ranks[0]})"
            raise ValueError(f"links: there is no path from {first.name} {ranks}")


def _check_switch(switch: spec.Switch, hosts: Sequence[spec.Host]) -> None:
    has_uplink = math.isfinite(switch.uplink_bytes_per_s)
    for key, is_given in (("uplink", has_uplink), ("oversubscription", switch.oversubscription is not None)):
        if is_given and switch.hosts_per_leaf is None:
            raise ValueError(f"switch.{key}: also give switch.hosts, the hosts of each leaf switch")
    if switch.oversubscription is not None:
        if has_uplink:
            raise ValueError("switch.oversubscription: give this or switch.uplink, not both")
        if any(math.isinf(host.nics.bandwidth_bytes_per_s) for host in hosts):
            raise ValueError("switch.oversubscription: needs a bandwidth of every NIC")


def _check_fabric(network: NetworkFile, hosts: Sequence[spec.Host]) -> None:
    if not network.fabric:
        return
    if network.cables or (network.switch and network.switch.hosts_per_leaf):
        raise ValueError("fabric: must be left out, since [[links]] or switch.hosts describes how hosts share it")
    if any(math.isinf(host.nics.bandwidth_bytes_per_s) for host in hosts):
        raise ValueError("fabric: needs a bandwidth of every NIC")
    fewest, most = 1, 1.0
    for place, point in enumerate(network.fabric):
        if point.hosts <= fewest:
            raise refusal(f"fabric[{place}].hosts", point.hosts, f"must be more than {fewest}, in ascending order")
        if point.share > most:
            raise refusal(f"fabric[{place}].share", point.share, f"must be at most {most:g}, that of fewer hosts")
        fewest, most = point.hosts, point.share


def _check_faults(network: NetworkFile) -> None:
    for place, failure in enumerate(network.failures):
        if (failure.link is None) == (failure.rank is None):
            raise ValueError(f"failure[{place}]: give either link or rank")


_FOLDER = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """Return the names of the presets in alphabetical order."""
    return names_in(_FOLDER)


def load_network(name_or_path: str | Path) -> Network:
    """Return the network of a preset, or of a file whose name ends in .toml.

    Raises ValueError for an unknown preset or an invalid file, and OSError for an unreadable one.

        >>> from ringsim import load_network
        >>> load_network("dgx-h100").name
        'dgx-h100'
    """
    return read_network(*read_preset("network", str(name_or_path), _FOLDER))
