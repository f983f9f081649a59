"""NCCL's model: the time of a collective in a library that chooses the fastest of several protocols and algorithms.

For each protocol, of bandwidth b = share x B, with W the bytes that a rank sends:

    ring               start + hops within hosts x link_latency + hops across x hop_latency + W / b
    tree (all_reduce)  start + 2 ((n/h - 1) tree_link_latency + log2(h) tree_hop_latency) + 2 S / (tree_share c b)
    PAT                start + log2(n) hop_latency / 3.5 + n x 2.8 us + W / (pat_share b)
    in-network         start + 2 link_latency + (1 + 1/n) S / (switch_share b)   all_reduce on one host
    on h > 1 hosts     start + 2 link_latency + 2 log2(h) switch_hop_latency + the longer one of (1 + 1/m) S /
                       (switch_share b) and, over all NICs of a host, S with two hosts and 2 S with more

B is the bandwidth of the link on one host, and across hosts that of the NICs that the ranks of a host use (one each
while there are NICs; see `nic_share`), at most that of the link. If hosts have different numbers of ranks, the smallest
counts (NCCL has as many channels as every host can have, src/init.cc), and the largest for the chain of a tree, in
place of n/h.

The forms are those of NCCL's own model (src/graph/tuning.cc). A ring of n ranks on h hosts has n - 1 hops, h - 1 of
them across, for all_gather and reduce_scatter, and twice as many for all_reduce. A pipelined chain (broadcast, reduce)
has n - 1 hops, with W = S. A single message has one hop, and between hosts reaches `message_share` of the bandwidth. On
trees c is NCCL's correction by size (`_TREE_CORRECTION`). Over two hosts the NICs carry the bytes of both trees only
once, since each host is the root of one. NCCL's model then uses the bandwidth within the hosts, which its search raises
to twice that of the NICs if the links permit (src/graph/search.cc, "increase bwIntra for trees"); `two_host_passes`
corrects this where NCCL has fewer channels. PAT is for all_gather and reduce_scatter with the last protocol, between
hosts of one rank each.

With in-network reduction each rank's link carries S bytes to be added and receives S/n, and the same in the other
direction; `switch_latency`, if given, replaces start + 2 link_latency. Several hosts of m ranks have it only with
`switch_hop_latency`: trees connect the hosts (NCCL's NVLSTree), and a host forwards all data once and, in a tree of
more than two, half of it twice. Times change smoothly between protocols (see `_SHARPNESS`), since chunks and channels
change long before the protocol does.

A ring across hosts runs at the pace of its slowest link. If the time of a ring step was measured by its bytes
(`Tuning.ring_steps`), a ring takes the shortest start plus the measured time of each hop. Within a host, the bytes of
`Tuning.ring_fill` additional steps take time while the ring fills and drains.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringsim.libraries.call import Call, CallColumns
from ringsim.measurements import TESTS
from ringsim.network import FabricPoint, Floats, Network, Protocol, Spec, Tuning, nic_share
from ringsim.schedule import Bools

# NCCL's treeCorrectionFactor, the fraction of their bandwidth that trees reach: at 64 B, 128 B, ... 256 MiB.
_TREE_CORRECTION = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "Simple": (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8,
               0.9, 0.9),
}  # fmt: skip
_TREE_CORRECTION_FROM = 64  # bytes
_PAT_RANK_S, _PAT_HOP = 2.8e-6, 1 / 3.5  # of NCCL's formula for PAT: seconds a rank, and of a hop's latency
_SHARPNESS = 30  # the exponent of a smooth minimum: two equal candidates take 2.3 % less than each of them


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of a network in the formulas; a bandwidth is infinite if unknown.

    nic_bytes_per_s: of one NIC; less on some numbers of hosts, see `nic_share`.
    num_nics: infinite if each rank has its own.
    """

    link_bytes_per_s: float
    nic_bytes_per_s: float
    num_nics: float
    protocols: tuple[Protocol, ...]
    library: Tuning
    fabric: tuple[FabricPoint, ...] = ()


def rates_of(spec: Spec) -> Rates:
    """Return the rates of a network; without protocols it has a single one, with the costs of a message."""
    host, processor = spec.host, spec.processor
    overhead_s = processor.send_overhead_s + processor.receive_overhead_s
    plain = Protocol(
        "plain",
        link_latency_s=host.link.latency_s + overhead_s,
        hop_latency_s=2 * host.nics.latency_s + spec.switch.latency_s + overhead_s,
    )
    protocols = spec.protocols or (plain,)
    num_nics = host.nics.count or math.inf
    bandwidths = host.link.bandwidth_bytes_per_s, host.nics.bandwidth_bytes_per_s
    return Rates(*bandwidths, num_nics, protocols, spec.library, spec.fabric)


def predict(network: Network, calls: Sequence[Call]) -> list[tuple[float, str]]:
    """Return for each call the seconds, and the algorithm and protocol that the library chooses.

    Raises ValueError for a test without a formula, for more ranks than the network has, and for unknown rates.
    """
    if not calls:
        return []
    rates = rates_of(network.spec)
    for call in calls:
        _require_known(network, rates, call)
    columns = CallColumns.from_calls(calls)
    candidates, times = _candidates(rates, columns), times_s(rates, columns)
    fastest = np.argmin([times for _, times in candidates], axis=0)
    return [(float(time_s), candidates[which][0]) for time_s, which in zip(times, fastest, strict=True)]


def algorithm_times(network: Network, call: Call, algorithm: str = "") -> dict[str, float]:
    """Return the seconds of each algorithm and protocol, such as "ring LL"; the least is the time of `predict`.

    algorithm: the only one allowed, such as "ring"; no times if it does not exist.
    """
    rates, columns = rates_of(network.spec), CallColumns.from_calls([call])
    times = {
        name: time_s
        for name, time_s in _candidates(rates, columns)
        if algorithm in ("", name.partition(" ")[0]) and np.isfinite(time_s[0])
    }
    least_s = min((float(time_s[0]) for time_s in times.values()), default=0.0)
    ratio = float(_fastest_s(rates, columns, list(times.values()))[0]) / least_s if least_s > 0 else 1.0
    return {name: ratio * float(time_s[0]) for name, time_s in times.items()}


def _require_known(network: Network, rates: Rates, call: Call) -> None:
    where, most = network.place, network.spec.max_ranks
    if call.collective not in TESTS:
        raise ValueError(f"{call.collective}: there is no formula for it, only for {', '.join(TESTS)}")
    if most is not None and call.num_ranks > most:
        raise ValueError(f"{where}: its hosts have {most} ranks, but {call.num_ranks} were measured: calibrate on "
                         "more, or raise host.count")  # fmt: skip
    across = call.num_nodes > 1
    if math.isinf(rates.nic_bytes_per_s if across else rates.link_bytes_per_s):
        raise ValueError(
            f"{where}: host.{'nic' if across else 'link'}.bandwidth is missing, but {call.collective} was measured on "
            f"{'several hosts' if across else 'one host'}: calibrate with a log of {'several' if across else 'one'} too"
            + (", or give calibrate --nic, such as 4x200Gbit/s" if across else "")
        )


def times_s(rates: Rates, calls: CallColumns) -> Floats:
    """Return (num_calls,) seconds by the formulas of the module."""
    return _fastest_s(rates, calls, [times for _, times in _candidates(rates, calls)])


def _fastest_s(rates: Rates, calls: CallColumns, candidates: Sequence[Floats]) -> Floats:
    """Return (num_calls,) seconds, at least the time of the bytes on links at full bandwidth."""
    return np.maximum(_smooth_minimum(candidates), bytes_s(rates, calls))


def _smooth_minimum(candidates: Sequence[Floats]) -> Floats:
    """Return (num_calls,) values, slightly below the least if several are near it."""
    table = np.array(candidates)
    least = table.min(axis=0)
    ratios = np.divide(least, table, out=np.ones_like(table), where=table > 0)
    return np.asarray(least * (ratios**_SHARPNESS).sum(axis=0) ** (-1 / _SHARPNESS))


def _candidates(rates: Rates, calls: CallColumns) -> list[tuple[str, Floats]]:
    """Return each algorithm and protocol with its times; infinite if impossible or not allowed."""
    candidates = list(_existing(rates, calls))
    if not any(settings.algorithms or settings.protocols for settings in calls.settings):
        return candidates
    admitted = _admitted(candidates, calls)
    none = _none_admitted(admitted)
    return [
        (name, some if name == "in_switch" else np.where(none, times, some))  # NVLS has a name: it was not asked for
        for (name, times), some in zip(candidates, admitted, strict=True)
    ]


def _admitted(candidates: Sequence[tuple[str, Floats]], calls: CallColumns) -> list[Floats]:
    return [np.where(calls.admit(*_nccl_names(name)), times, np.inf) for name, times in candidates]


def _none_admitted(admitted: Sequence[Floats]) -> Bools:
    return np.asarray(np.isinf(np.min(admitted, axis=0)))


def unmet_settings(network: Network, calls: Sequence[Call]) -> list[Call]:
    """Return the calls with NCCL settings that are ignored, since the network does not describe them."""
    if not calls:
        return []
    columns = CallColumns.from_calls(calls)
    none = _none_admitted(_admitted(list(_existing(rates_of(network.spec), columns)), columns))
    return [call for call, is_unmet in zip(calls, none.tolist(), strict=True) if is_unmet]


def _nccl_names(candidate: str) -> tuple[str, str]:
    algorithm, _, protocol = candidate.partition(" ")
    return ("nvls", "simple") if algorithm == "in_switch" else (algorithm, protocol)


def _existing(rates: Rates, calls: CallColumns) -> Iterator[tuple[str, Floats]]:
    pace, library = _ring_pace(rates, calls), rates.library
    for protocol in rates.protocols:
        yield f"ring {protocol.name}", pace * _ring_s(rates, protocol, calls)
        if library.tree_share:
            yield f"tree {protocol.name}", _tree_s(rates, protocol, library.tree_share, calls)
    if library.switch_share:
        yield "in_switch", _in_switch_s(rates, library.switch_share, calls)
    if library.pat_share:
        yield f"PAT {rates.protocols[-1].name}", _pat_s(rates, library.pat_share, calls)


def _bandwidth(rates: Rates, calls: CallColumns) -> Floats:
    across = np.minimum(_nics_bytes_per_s(rates, calls), rates.link_bytes_per_s)
    return np.where(calls.nodes > 1, across, rates.link_bytes_per_s)


def _nics_bytes_per_s(rates: Rates, calls: CallColumns) -> Floats:
    """Return a group's bandwidth over a host's NICs in each direction; a rank uses one NIC."""
    nic_bytes_per_s = rates.nic_bytes_per_s * nic_share(rates.fabric, calls.nodes)
    return np.minimum(calls.senders, rates.num_nics) * nic_bytes_per_s / calls.groups


def bytes_s(rates: Rates, calls: CallColumns) -> Floats:
    """Return the time of the bytes alone, (num_calls,) seconds, on full links and NICs."""
    on_links = _sent(calls) / _bandwidth(rates, calls)
    on_trees = np.where(calls.is_all_reduce & (calls.nodes > 1), _tree_bytes_s(rates, calls), np.inf)
    on_links = np.minimum(on_links, on_trees)
    if not rates.library.switch_share:
        return on_links
    in_switch = _in_switch_bytes_s(rates, 1.0, calls)
    return np.where(_may_use_switch(rates, calls), np.minimum(on_links, in_switch), on_links)


def _may_use_switch(rates: Rates, calls: CallColumns) -> Bools:
    joined = (calls.fewest > 1) & (rates.library.switch_hop_latency_s is not None)
    return np.asarray(calls.is_all_reduce & ((calls.nodes == 1) | joined))


def _in_switch_bytes_s(rates: Rates, share: float, calls: CallColumns) -> Floats:
    moved = (1 + 1 / calls.fewest) * calls.size / (share * rates.link_bytes_per_s)
    passed_on = np.minimum(calls.nodes - 1, 2) * calls.size / _nics_bytes_per_s(rates, calls)
    return np.maximum(moved, passed_on)


def _hops(calls: CallColumns) -> Floats:
    return np.where(calls.is_message, 1, np.where(calls.is_all_reduce, 2, 1) * (calls.ranks - 1))


def _sent(calls: CallColumns) -> Floats:
    return np.where(calls.is_whole, calls.size, _hops(calls) * calls.size / calls.ranks)


def _ring_s(rates: Rates, protocol: Protocol, calls: CallColumns) -> Floats:
    rounds = np.where(calls.is_all_reduce, 2, 1)
    across = np.where(calls.is_message, calls.nodes > 1, rounds * (calls.nodes - 1))
    start = protocol.start_s * np.where(calls.is_message, rates.library.message_start, 1.0)
    least_s = np.where(calls.nodes > 1, rates.library.ring_overhead_s, 0.0)
    latency = (_hops(calls) - across) * np.maximum(protocol.link_latency_s, least_s) + across * protocol.hop_latency_s
    waited = np.where(calls.is_stream, 0.0, start + latency)
    is_between = calls.is_sendrecv & (calls.nodes > 1)
    share = protocol.share * np.where(is_between, rates.library.message_share, 1.0)
    bandwidth = share * _bandwidth(rates, calls)
    return waited + _sent(calls) * _filling(rates.library, calls) / bandwidth


def _filling(library: Tuning, calls: CallColumns) -> Floats:
    """Return the ratio of the time of a ring's bytes to their time on full links."""
    is_within = (calls.nodes == 1) & ~calls.is_message & ~calls.is_whole
    return np.where(is_within, 1 + library.ring_fill / np.maximum(calls.ranks - 1, 1), 1.0)


def _ring_pace(rates: Rates, calls: CallColumns) -> Floats:
    """Return the ratio, (num_calls,), of the measured steps of the fastest ring to its formula.

    Smaller messages than all measured ones have the ratio of the smallest, and a host that is not full delays no step,
    only bytes. Otherwise times would jump there.
    """
    steps = rates.library.ring_steps
    if not steps:
        return np.ones(len(calls.size))
    at = np.log([step.message_bytes for step in steps])
    smallest_bytes = steps[0].message_bytes * calls.ranks
    measured = replace(calls, size=np.maximum(calls.size, smallest_bytes))
    message = np.log(measured.size / measured.ranks)
    log_step_s = np.interp(message, at, np.log([step.time_s for step in steps]))
    log_step_s += np.maximum(message - at[-1], 0.0)  # beyond the largest, bandwidth decides
    by_protocols = _smooth_minimum([_ring_s(rates, protocol, measured) for protocol in rates.protocols])
    is_ring = ~calls.is_message & ~calls.is_whole & (calls.nodes > 1)
    known = is_ring & (calls.groups * calls.most == rates.library.ring_ranks)
    by_steps = launch_s(rates.protocols) + _hops(measured) * np.exp(log_step_s)
    by_steps = np.maximum(by_steps, _sent(measured) / _bandwidth(rates, measured))  # the simulation has that bound, too
    return np.where(known, by_steps / by_protocols, 1.0)


def launch_s(protocols: Sequence[Protocol]) -> float:
    """Return the start of every collective, whatever the protocol."""
    return min(protocol.start_s for protocol in protocols)


def _tree_s(rates: Rates, protocol: Protocol, share: float, calls: CallColumns) -> Floats:
    up = (calls.most - 1) * protocol.tree_link_latency_s
    up = up + np.log2(calls.nodes) * protocol.tree_hop_latency_s
    reached = share * protocol.share * _tree_correction(protocol, calls.size)
    taken = protocol.start_s + 2 * up + _tree_bytes_s(rates, calls) / reached
    return np.where(calls.is_all_reduce & (calls.nodes > 1), taken, np.inf)


def _tree_bytes_s(rates: Rates, calls: CallColumns) -> Floats:
    passes = np.where(calls.nodes == 2, rates.library.two_host_passes, 2.0)
    on_nics = passes * calls.size / _nics_bytes_per_s(rates, calls)
    return np.maximum(on_nics, 2 * calls.size / rates.link_bytes_per_s)


def _tree_correction(protocol: Protocol, size_bytes: Floats) -> Floats:
    corrections = _TREE_CORRECTION.get(protocol.name, (1,))
    at = np.log2(np.maximum(size_bytes, _TREE_CORRECTION_FROM) / _TREE_CORRECTION_FROM)
    return np.interp(at, np.arange(len(corrections)), corrections)


def _pat_s(rates: Rates, share: float, calls: CallColumns) -> Floats:
    bulk = rates.protocols[-1]
    latency = np.log2(calls.ranks) * bulk.hop_latency_s * _PAT_HOP + calls.ranks * _PAT_RANK_S
    taken = bulk.start_s + latency + _sent(calls) / (share * bulk.share * _bandwidth(rates, calls))
    is_shared = ~(calls.is_all_reduce | calls.is_message | calls.is_whole)
    return np.where(is_shared & (calls.nodes == calls.ranks), taken, np.inf)


def _in_switch_s(rates: Rates, share: float, calls: CallColumns) -> Floats:
    bulk = rates.protocols[-1]
    latency_s = rates.library.switch_latency_s
    if latency_s is None:
        latency_s = bulk.start_s + 2 * bulk.link_latency_s
    hops_s = 2 * np.log2(calls.nodes) * (rates.library.switch_hop_latency_s or 0.0)
    taken = latency_s + hops_s + _in_switch_bytes_s(rates, share, calls)
    return np.where(_may_use_switch(rates, calls), taken, np.inf)
