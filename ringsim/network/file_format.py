"""The tables and keys of a network file; docs/networks.md describes each. Their fields are those of `spec`."""

from typing import Any

from ringsim.files import Key, Table, values


def _half_duplex(value: Any) -> bool:
    if value not in ("full", "half"):
        raise ValueError('must be "full" or "half"')
    return bool(value == "half")


def _name(value: Any) -> str:
    """A name that resources can be named after, hence without dots, arrows and blanks."""
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


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(values.is_whole(item) and item > 0 for item in value):
        raise ValueError("must be a list of sizes in bytes, such as [1024, 4096]")
    return tuple(value)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError('must be a list of texts, such as ["a", "b"]')
    return tuple(value)


def _quantities(**fields: str) -> dict[str, Key]:
    """Keys of times and of rates, by the unit in the name of the field."""
    return {key: Key(field, values.rate if field.endswith("_per_s") else values.time) for key, field in fields.items()}


_LINK = {
    **_quantities(latency="latency_s", bandwidth="bandwidth_bytes_per_s"),
    "duplex": Key("half_duplex", _half_duplex),
}
_MEMORY_RATE = Table(
    {
        "published": Key("published_bytes", values.size, True),
        **_quantities(
            copy_bandwidth="copy_bytes_per_s",
            reduce_bandwidth="reduce_bytes_per_s",
            reduce_into_bandwidth="reduce_into_bytes_per_s",
            cached_copy_bandwidth="cached_copy_bytes_per_s",
            cached_reduce_bandwidth="cached_reduce_bytes_per_s",
            cached_reduce_into_bandwidth="cached_reduce_into_bytes_per_s",
        ),
    }
)
_OVERHEADS = _quantities(send_overhead="send_overhead_s", receive_overhead="receive_overhead_s")
_CALLS = _quantities(call="call_s", cold_call="cold_call_s")
_SHARED_MEMORY = Table(
    {
        "slot": Key("slot_bytes", values.size, True),
        "touched": Key("touched_bytes", values.size, True),
        **_OVERHEADS,
        **_quantities(latency="latency_s"),
        **_CALLS,
        "rate": Key("rates", _MEMORY_RATE, many=True),
    }
)
_HARDWARE = {
    "cores": Key("cores", values.count),
    **_quantities(memory_bandwidth="memory_bytes_per_s"),
    "copies": Key("copies", values.ratio),
    "link": Key("link", Table(_LINK)),
    "shared_memory": Key("shared_memory", _SHARED_MEMORY),
    "nic": Key("nics", Table({"count": Key("count", values.count), **_LINK})),
}
_HOST = Table({"ranks": Key("ranks_per_host", values.count), "count": Key("num_hosts", values.count), **_HARDWARE})
_PLACED_HOST = Table({"name": Key("name", _name, True), "ranks": Key("ranks", _ranks, True), **_HARDWARE})
_CABLE = Table({"between": Key("between", _two_names, True), **_LINK})
_SWITCH = Table(
    {
        **_quantities(latency="latency_s"),
        "hosts": Key("hosts_per_leaf", values.count),
        **_quantities(uplink="uplink_bytes_per_s"),
        "oversubscription": Key("oversubscription", values.ratio),
        **_quantities(uplink_latency="uplink_latency_s"),
    }
)
_PROCESSOR = Table(
    {
        **_OVERHEADS,
        **_quantities(
            reduce_bandwidth="reduce_bytes_per_s",
            copy_bandwidth="copy_bytes_per_s",
            first_touch_bandwidth="first_touch_bytes_per_s",
            call="call_s",
            torch_call="torch_call_s",
            cold_call="cold_call_s",
            cold_torch_call="cold_torch_call_s",
        ),
    }
)
_SLOW_RANK = Table({"rank": Key("rank", values.whole(), True), "slowdown": Key("slowdown", values.slowdown, True)})
_SLOW_LINK = Table(
    {
        "link": Key("link", values.any_text, True),
        **_quantities(bandwidth="bandwidth_bytes_per_s"),
        "slowdown": Key("slowdown", values.slowdown),
        **_quantities(latency="latency_s"),
    }
)
_FAILURE = Table({"link": Key("link", values.any_text), "rank": Key("rank", values.whole()), **_quantities(at="at_s")})
_JITTER = Table(
    {
        "seed": Key("seed", values.whole()),
        "latency": Key("latency", values.fraction),
        "compute": Key("compute", values.fraction),
    }
)
_PROTOCOL = Table(
    {
        "name": Key("name", _name, True),
        **_quantities(
            start="start_s",
            link_latency="link_latency_s",
            hop_latency="hop_latency_s",
            tree_link_latency="tree_link_latency_s",
            tree_hop_latency="tree_hop_latency_s",
        ),
        "share": Key("share", values.ratio),
    }
)
_LIBRARY = Table(
    {
        "tree_share": Key("tree_share", values.ratio),
        "switch_share": Key("switch_share", values.ratio),
        **_quantities(switch_latency="switch_latency_s", switch_hop_latency="switch_hop_latency_s"),
        "message_start": Key("message_start", values.ratio),
    }
)
_CALIBRATED = Table(
    {
        "collective": Key("collective", _name, True),
        "algorithm": Key("algorithm", values.any_text, True),
        "ranks": Key("num_ranks", values.count, True),
        "hosts": Key("num_hosts", values.count, True),
        "sizes": Key("sizes_bytes", _sizes, True),
        "rows": Key("rows", _texts),
    }
)
_CALIBRATION = Table(
    {
        "from": Key("files", _texts),
        "senders_per_host": Key("senders_per_host", values.count),
        "cells": Key("cells", _CALIBRATED, many=True),
    }
)
NETWORK = Table(
    {
        "name": Key("name", values.any_text),
        "description": Key("description", values.any_text),
        "source": Key("source", values.any_text),
        "host": Key("host", _HOST),
        "hosts": Key("placed_hosts", _PLACED_HOST, many=True),
        "links": Key("cables", _CABLE, many=True),
        "switch": Key("switch", _SWITCH),
        "rank": Key("processor", _PROCESSOR),
        "slow_rank": Key("slow_ranks", _SLOW_RANK, many=True),
        "slow_link": Key("slow_links", _SLOW_LINK, many=True),
        "jitter": Key("jitter", _JITTER),
        "failure": Key("failures", _FAILURE, many=True),
        "protocol": Key("protocols", _PROTOCOL, many=True),
        "library": Key("library", _LIBRARY),
        "calibration": Key("calibration", _CALIBRATION),
    }
)
