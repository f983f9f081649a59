"""The tables and keys of a network file; docs/reference/files.md describes each. Their fields are those of `spec`."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

from ringsim.files import Key, Parser, Table, values
from ringsim.network import spec
from ringsim.network.cluster import Calibration
from ringsim.network.topology import Jitter


def _half_duplex(value: Any) -> bool:
    if value not in ("full", "half"):
        raise ValueError('must be "full" or "half"')
    return bool(value == "half")


def _name(value: Any) -> str:
    """Return a name that resources can be named after, hence without dots, arrows and blanks."""
    if not isinstance(value, str) or not value.replace("_", "").replace("-", "").isalnum():
        raise ValueError("a name must be text of letters, digits, _ and - only")
    return value


def _two_names(value: Any) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2 or value[0] == value[1]:
        raise ValueError('must be two different names, such as ["a", "switch1"]')
    return _name(value[0]), _name(value[1])


def _ranks(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(values.is_whole(item) and 0 <= item < values.MAX_COUNT for item in value):
        raise ValueError("must be a list of ranks, such as [0, 1]")
    if not value:
        raise ValueError("a host must have ranks")
    if len(set(value)) != len(value):
        raise ValueError("no rank may be listed twice")
    return tuple(value)


# The kinds of fields that have no unit in their names.
_PARSERS: dict[str, Parser] = {
    "half_duplex": _half_duplex,
    "name": _name,
    "link": values.any_text,
    "rank": values.whole(),
    "seed": values.whole(),
    "slowdown": values.slowdown,
    **dict.fromkeys(("latency", "compute", "ring_fill"), values.fraction),
    **dict.fromkeys(("late_share", "torch_late_share", "async_late_share"), values.share),
    "count": values.whole(0, values.MAX_COUNT),
    **dict.fromkeys(("cores", "ranks_per_host", "num_hosts", "hosts_per_leaf"), values.count),
    **dict.fromkeys(("copies", "oversubscription", "share", "tree_share", "switch_share", "pat_share"), values.ratio),
    **dict.fromkeys(("message_start", "message_share", "two_host_passes"), values.ratio),
    **dict.fromkeys(("channels", "link_channels", "ring_ranks"), values.count),
}
# Keys that are not the names of their fields without units.
_NAMES = {"half_duplex": "duplex", "hosts_per_leaf": "hosts", "ranks_per_host": "ranks", "num_hosts": "count"}
_RATES = ("bandwidth", "uplink")  # others are called what they are the bandwidth of, such as copy_bandwidth


def _key(field: str) -> str:
    if field.endswith("_bytes_per_s"):
        stem = field.removesuffix("_bytes_per_s")
        return stem if stem in _RATES else f"{stem}_bandwidth"
    return _NAMES.get(field, field.removesuffix("_bytes").removesuffix("_s"))


def _parser(field: str) -> Parser | None:
    """Return the parser for a field, by the unit in its name; None for one that is a table."""
    units = {"_per_s": values.rate, "_s": values.time, "_bytes": values.size}
    return _PARSERS.get(field) or next((parse for unit, parse in units.items() if field.endswith(unit)), None)


def keys_of(kind: type[Any]) -> dict[str, Key]:
    """Return the keys of the quantities of a dataclass of `spec`, required where a field has no default."""
    own_first = sorted(fields(kind), key=lambda field: field.name not in kind.__annotations__)
    return {
        _key(field.name): Key(field.name, parse, field.default is MISSING)
        for field in own_first
        if (parse := _parser(field.name)) and not is_dataclass(field.default)
    }


_SHARED_MEMORY = Table({**keys_of(spec.SharedMemory), "rate": Key("rates", Table(keys_of(spec.MemoryRate)), many=True)})
_HARDWARE = {
    **keys_of(spec.Host),
    "link": Key("link", Table(keys_of(spec.Link))),
    "shared_memory": Key("shared_memory", _SHARED_MEMORY),
    "nic": Key("nics", Table(keys_of(spec.Nics))),
}
_LIBRARY = Table({**keys_of(spec.Tuning), "ring_step": Key("ring_steps", Table(keys_of(spec.RingStep)), many=True)})
_PLACING = {_key(field): Key(field, values.count) for field in ("ranks_per_host", "num_hosts")}
_PLACED_HOST = Table({"name": Key("name", _name, True), "ranks": Key("ranks", _ranks, True), **_HARDWARE})
_CABLE = Table({"between": Key("between", _two_names, True), **keys_of(spec.Link)})
NETWORK = Table(
    {
        "name": Key("name", values.any_text),
        "description": Key("description", values.any_text),
        "source": Key("source", values.any_text),
        "host": Key("host", Table({**_PLACING, **_HARDWARE})),
        "hosts": Key("placed_hosts", _PLACED_HOST, many=True),
        "links": Key("cables", _CABLE, many=True),
        "switch": Key("switch", Table(keys_of(spec.Switch))),
        "rank": Key("processor", Table(keys_of(spec.Processor))),
        "slow_rank": Key("slow_ranks", Table(keys_of(spec.SlowRank)), many=True),
        "slow_link": Key("slow_links", Table(keys_of(spec.SlowLink)), many=True),
        "jitter": Key("jitter", Table(keys_of(Jitter))),
        "failure": Key("failures", Table(keys_of(spec.Failure)), many=True),
        "protocol": Key("protocols", Table(keys_of(spec.Protocol)), many=True),
        "library": Key("library", _LIBRARY),
        "calibration": Key("calibration", Calibration),
    }
)


def value_of(described: spec.Spec, place: str) -> Any:
    """Return the value of a key of a network file, such as "host.nic.latency"; in a list of tables, of the last one."""
    holds: Any = NETWORK
    value: Any = described
    for name in place.split("."):
        key = holds.keys[name]
        holds, value = key.holds, getattr(value, key.field)
        value = value[-1] if key.many else value
    return value


def quantities(described: spec.Spec) -> dict[str, float]:
    """Return each number of a spec by its place, as `value_of` does; what is None or in an empty list is left out."""
    numbers = {}

    def noted(place: str, _field: str, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers[place] = value
        return value

    _changed(described, NETWORK, "", noted)
    return numbers


def scaled(described: spec.Spec, ratios: Mapping[str, float]) -> spec.Spec:
    """Return the spec with quantities multiplied by `ratios`, whose keys are places as for `value_of`.

    A place in a list of tables means every table of the list. Shares are limited to 1. Places that the spec does not
    have are ignored.
    """

    def times(place: str, field: str, value: Any) -> Any:
        if place not in ratios:
            return value
        product = value * ratios[place]
        return min(product, 1.0) if field.endswith("share") else round(product) if isinstance(value, int) else product

    larger: spec.Spec = _changed(described, NETWORK, "", times)
    return larger


def _changed(value: Any, table: Table, place: str, change: Callable[[str, str, Any], Any]) -> Any:
    """Return a dataclass of `spec` with `change(place, field, quantity)` for each quantity in it."""
    changes = {}
    for name, key in table.keys.items():
        inner, there = getattr(value, key.field, None), f"{place}.{name}".removeprefix(".")
        if inner is None or isinstance(key.holds, type):
            continue
        if not isinstance(key.holds, Table):
            changes[key.field] = change(there, key.field, inner)
        elif key.many:
            changes[key.field] = tuple(_changed(one, key.holds, there, change) for one in inner)
        else:
            changes[key.field] = _changed(inner, key.holds, there, change)
    return replace(value, **changes)
