"""The tables and keys of a network file; docs/networks.md describes each. Their fields are those of `spec`."""

from ringsim.files import Key, Table, toml_values

_LINK = {
    "latency": Key("latency_s", toml_values.time),
    "bandwidth": Key("bandwidth_bytes_per_s", toml_values.rate),
    "duplex": Key("half_duplex", toml_values.is_half_duplex),
}
_MEMORY_RATE = Table(
    {
        "published": Key("published_bytes", toml_values.size, True),
        "copy_bandwidth": Key("copy_bytes_per_s", toml_values.rate),
        "reduce_bandwidth": Key("reduce_bytes_per_s", toml_values.rate),
        "reduce_into_bandwidth": Key("reduce_into_bytes_per_s", toml_values.rate),
        "cached_copy_bandwidth": Key("cached_copy_bytes_per_s", toml_values.rate),
        "cached_reduce_bandwidth": Key("cached_reduce_bytes_per_s", toml_values.rate),
        "cached_reduce_into_bandwidth": Key("cached_reduce_into_bytes_per_s", toml_values.rate),
    }
)
_SHARED_MEMORY = Table(
    {
        "slot": Key("slot_bytes", toml_values.size, True),
        "touched": Key("touched_bytes", toml_values.size, True),
        "send_overhead": Key("send_overhead_s", toml_values.time),
        "receive_overhead": Key("receive_overhead_s", toml_values.time),
        "latency": Key("latency_s", toml_values.time),
        "call": Key("call_s", toml_values.time),
        "cold_call": Key("cold_call_s", toml_values.time),
        "rate": Key("rates", _MEMORY_RATE, many=True),
    }
)
_HARDWARE = {
    "cores": Key("cores", toml_values.count),
    "memory_bandwidth": Key("memory_bytes_per_s", toml_values.rate),
    "copies": Key("copies", toml_values.positive),
    "link": Key("link", Table(_LINK)),
    "shared_memory": Key("shared_memory", _SHARED_MEMORY),
    "nic": Key("nics", Table({"count": Key("count", toml_values.count), **_LINK})),
}
_HOST = Table(
    {"ranks": Key("ranks_per_host", toml_values.count), "count": Key("num_hosts", toml_values.count), **_HARDWARE}
)
_PLACED_HOST = Table(
    {"name": Key("name", toml_values.name, True), "ranks": Key("ranks", toml_values.ranks, True), **_HARDWARE}
)
_CABLE = Table({"between": Key("between", toml_values.two_names, True), **_LINK})
_SWITCH = Table(
    {
        "latency": Key("latency_s", toml_values.time),
        "hosts": Key("hosts_per_leaf", toml_values.count),
        "uplink": Key("uplink_bytes_per_s", toml_values.rate),
        "oversubscription": Key("oversubscription", toml_values.positive),
        "uplink_latency": Key("uplink_latency_s", toml_values.time),
    }
)
_PROCESSOR = Table(
    {
        "send_overhead": Key("send_overhead_s", toml_values.time),
        "receive_overhead": Key("receive_overhead_s", toml_values.time),
        "reduce_bandwidth": Key("reduce_bytes_per_s", toml_values.rate),
        "copy_bandwidth": Key("copy_bytes_per_s", toml_values.rate),
        "first_touch_bandwidth": Key("first_touch_bytes_per_s", toml_values.rate),
        "call": Key("call_s", toml_values.time),
        "torch_call": Key("torch_call_s", toml_values.time),
        "cold_call": Key("cold_call_s", toml_values.time),
        "cold_torch_call": Key("cold_torch_call_s", toml_values.time),
    }
)
_SLOW_RANK = Table(
    {"rank": Key("rank", toml_values.rank, True), "slowdown": Key("slowdown", toml_values.at_least_one, required=True)}
)
_SLOW_LINK = Table(
    {
        "link": Key("link", toml_values.text, True),
        "bandwidth": Key("bandwidth_bytes_per_s", toml_values.rate),
        "slowdown": Key("slowdown", toml_values.at_least_one),
        "latency": Key("latency_s", toml_values.time),
    }
)
_FAILURE = Table(
    {"link": Key("link", toml_values.text), "rank": Key("rank", toml_values.rank), "at": Key("at_s", toml_values.time)}
)
_JITTER = Table(
    {
        "seed": Key("seed", toml_values.rank),
        "latency": Key("latency", toml_values.fraction),
        "compute": Key("compute", toml_values.fraction),
    }
)
_PROTOCOL = Table(
    {
        "name": Key("name", toml_values.name, True),
        "start": Key("start_s", toml_values.time),
        "link_latency": Key("link_latency_s", toml_values.time),
        "hop_latency": Key("hop_latency_s", toml_values.time),
        "tree_link_latency": Key("tree_link_latency_s", toml_values.time),
        "tree_hop_latency": Key("tree_hop_latency_s", toml_values.time),
        "share": Key("share", toml_values.positive),
    }
)
_LIBRARY = Table(
    {
        "tree_share": Key("tree_share", toml_values.positive),
        "switch_share": Key("switch_share", toml_values.positive),
        "switch_latency": Key("switch_latency_s", toml_values.time),
        "switch_hop_latency": Key("switch_hop_latency_s", toml_values.time),
        "message_start": Key("message_start", toml_values.positive),
    }
)
_CALIBRATED = Table(
    {
        "collective": Key("collective", toml_values.name, True),
        "algorithm": Key("algorithm", toml_values.text, True),
        "ranks": Key("num_ranks", toml_values.count, True),
        "hosts": Key("num_hosts", toml_values.count, True),
        "sizes": Key("sizes_bytes", toml_values.sizes, True),
        "rows": Key("rows", toml_values.texts),
    }
)
_CALIBRATION = Table(
    {
        "from": Key("files", toml_values.texts),
        "senders_per_host": Key("senders_per_host", toml_values.count),
        "cells": Key("cells", _CALIBRATED, many=True),
    }
)
NETWORK = Table(
    {
        "name": Key("name", toml_values.text),
        "description": Key("description", toml_values.text),
        "source": Key("source", toml_values.text),
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
