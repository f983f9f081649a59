"""`read_network` reads a `Network` from text, `load_network` from a file or a preset; `network_text` writes one."""

import math
from collections.abc import Collection, Sequence
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any

import msgspec
from msgspec.structs import replace

from ringsim.files import decode, encode, names_in, naming_place, parse_toml, read_preset, refusal, toml_text, values
from ringsim.network import spec
from ringsim.network.fabric import neighbours, reach
from ringsim.network.network import Calibration, Network, parameter_names
from ringsim.network.topology import Jitter
from ringsim.suggestions import did_you_mean


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


_Raw = dict[str, Any]  # a table as TOML has it


def read_network(text: str, file: str) -> Network:
    """Return the network of the TOML text; `file` names it in the ValueError for an invalid one."""
    with naming_place(file):
        data = parse_toml(text)
        if "calibration" in data and "protocol" in data:  # older versions left out 2, with which they had fitted
            data["library"] = _merged({"two_host_passes": 2.0}, data.get("library", {}))
        template = data.get("host", {})
        decode(HostTable, template, "host")  # before [[hosts]] inherits its keys
        if isinstance(hosts := data.get("hosts"), list):
            data["hosts"] = [_host(template, host) for host in hosts]
        network = decode(NetworkFile, data)
        for index, slow in enumerate(data.get("slow_link", ())):
            if len(slow) == 1:  # its link
                raise refusal(f"slow_link[{index}].link", slow["link"], "give its bandwidth, slowdown or latency")
        return _cluster(network, file)


def _merged(template: Any, given: Any) -> Any:
    """Return the table with the template's values for missing keys; other types stay, and are refused later."""
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
        if point.low is not None and point.low > point.share:
            raise refusal(f"fabric[{place}].low", point.low, f"must be at most {point.share:g}, the share")
        if point.high is not None and not point.share <= point.high <= 1:
            raise refusal(f"fabric[{place}].high", point.high, f"must be from {point.share:g}, the share, to 1")
        fewest, most = point.hosts, point.share


def _check_faults(network: NetworkFile) -> None:
    for place, failure in enumerate(network.failures):
        if (failure.link is None) == (failure.rank is None):
            raise ValueError(f"failure[{place}]: give either link or rank")


_FOLDER = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """Return the names of the presets."""
    return names_in(_FOLDER)


def load_network(name_or_path: str | Path) -> Network:
    """Return the network of a preset, or of a file whose name ends in .toml.

    Raises ValueError for an unknown preset or an invalid file, and OSError for an unreadable one.

        >>> from ringsim import load_network
        >>> load_network("dgx-h100").name
        'dgx-h100'
    """
    return read_network(*read_preset("network", str(name_or_path), _FOLDER))
