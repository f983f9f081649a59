"""Resources and paths of clusters and of `Network`, worked out by hand; and what holds for any of them."""

import json
import math
from dataclasses import astuple, fields
from itertools import permutations
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from ringsim.network import NONE, Network, Topology, load_network, read_network
from ringsim.network.spec import Failure, Host, Link, Nics, Processor, SlowLink, SlowRank, Spec, Switch
from tests.refusals import said_by
from tests.ringsim.topologies import capacities, path

DOCS = Path(__file__).parents[3] / "docs"


def example(name: str) -> Network:
    """One of those that the documentation shows."""
    return load_network(DOCS / "networks" / f"{name}.toml")


def topology(text: str, num_ranks: int) -> Topology:
    """Of a network file with this text."""
    return read_network(text, "my.toml").topology(num_ranks)


def hosts_of_one_rank(names: str) -> str:
    """A host for each letter, with the ranks 0, 1, ..."""
    return "".join(f'[[hosts]]\nname = "{name}"\nranks = [{rank}]\n' for rank, name in enumerate(names))


def cables_between(*ends: str) -> str:
    """A cable for each pair of letters, in this order."""
    return "".join(
        f'[[links]]\nbetween = ["{one}", "{other}"]\nbandwidth = "1GB/s"\nlatency = "1us"\n' for one, other in ends
    )


LEAVES = "[switch]\nhosts = 2\noversubscription = 2\n"
SLOW_RANK = "[[slow_rank]]\nrank = 1\nslowdown = 2\n"
EXAMPLES = {"racks": 17, "three-hosts": 6, "cables": 4, "trouble": 8, "ring-of-six": 6}  # of docs/networks, and ranks
MADE = {
    "the first of two ways with as many links": (hosts_of_one_rank("ab") + cables_between("ax", "xb", "ay", "yb"), 2),
    "another first way": (hosts_of_one_rank("ab") + cables_between("ay", "yb", "ax", "xb", "ap", "pq", "qb"), 2),
    "hosts on the way": (hosts_of_one_rank("abcd") + cables_between("ab", "bc", "cd", "da"), 4),
    "a slow rank copies slowly": (
        '[host]\nranks = 2\ncores = 4\n[rank]\nsend_overhead = "1us"\ncopy_bandwidth = "2GB/s"\n' + SLOW_RANK,
        4,
    ),
    "no limit": ("[host]\nranks = 1\n", 2),
    "no limit, but it fails": ('[host]\nranks = 1\n[[failure]]\nlink = "host1.nic0.in"\n', 2),
    "no limit, but slow": ('[host]\nranks = 1\n[[slow_link]]\nlink = "host1.nic0.in"\nlatency = "3us"\n', 2),
    "ports in half duplex": ('[host]\nranks = 3\nlink = { bandwidth = "1GB/s", duplex = "half" }\n', 3),
    "all on one host": ("[host]\ncores = 2\n", 4),
    "a partly filled leaf counts as full": ('[host]\nranks = 1\nnic.bandwidth = "1GB/s"\n' + LEAVES, 3),
    "an uplink counts a NIC for each rank": (
        '[host]\nranks = 2\nnic = { bandwidth = "1GB/s", count = 0 }\n' + LEAVES,
        8,
    ),
}


def written(of: Topology) -> list[str]:
    """Return resources, what ranks cost, and the paths between some ranks, a line each."""
    lines = [f"{name}: {capacity:g}" for name, capacity in capacities(of).items()]
    fails = zip(of.resources.names, of.resources.fails_at_s, strict=True)
    lines += [f"{name} fails at {at_s:g} s" for name, at_s in fails if at_s < math.inf]
    ranks = zip(*(column.tolist() for column in astuple(of.processors)), strict=True)
    names = [field.name for field in fields(of.processors)]
    lines += [f"rank {rank}: " + ", ".join(map("{} {:g}".format, names, costs)) for rank, costs in enumerate(ranks)]
    some = sorted({0, 1, 2, 7, of.num_ranks - 1} & set(range(of.num_ranks)))
    for src, dst in permutations(some, 2):
        latency_s, bytes_per_s, uses = path(of, src, dst)
        used = ", ".join(f"{use:g} {name}" for name, use in uses.items())
        lines.append(f"{src} to {dst}: {latency_s:g} s, {bytes_per_s:g} B/s; {used}")
    return [*lines, f"jitter: {of.jitter}"]


def test_resources_and_paths(snapshot: SnapshotAssertion) -> None:
    """Of clusters that the documentation shows, of small ones, and of uniform networks, with a port each way."""
    found = {name: example(name).topology(num_ranks) for name, num_ranks in EXAMPLES.items()}
    found |= {name: topology(text, num_ranks) for name, (text, num_ranks) in MADE.items()}
    found["uniform"] = Network.uniform(latency_s=1e-5, bandwidth_bytes_per_s=1e9, gap_s=1e-6).topology(3)
    found["uniform without limit"] = Network.uniform(1e-5, math.inf).topology(3)
    assert {name: written(one) for name, one in found.items()} == snapshot


def test_cluster_and_network_stand_in_for_each_other() -> None:
    """Both give a topology, and a dict for JSON that has no infinity."""
    networks: list[Network] = [Network.uniform(1e-6, 1e9), example("racks")]
    for network in networks:
        assert network.topology(4).num_ranks == 4
        assert "Infinity" not in json.dumps(network.as_dict())
    assert networks[1].as_dict()["name"] == "racks"
    assert networks[1].as_dict()["spec"]["host"]["nics"]["bandwidth_bytes_per_s"] == 3.125e9


HARDWARE = st.fixed_dictionaries(
    {},
    optional={
        "cores": st.integers(1, 4),
        "memory_bandwidth": st.just('"5GB/s"'),
        "copies": st.sampled_from([1, 2, 3.5]),
        "link": st.sampled_from(['{ bandwidth = "3GB/s" }', '{ bandwidth = "3GB/s", duplex = "half" }']),
        "nic": st.sampled_from(['{ bandwidth = "1GB/s", count = 2 }', '{ latency = "1us", duplex = "half" }']),
    },
)


@st.composite
def files(draw: st.DrawFn) -> str:
    """Network files for up to 6 ranks, with hosts alike or by name, with leaves, a tree of cables, or neither."""
    parts = ['[rank]\ncopy_bandwidth = "4GB/s"\n' * draw(st.booleans())]
    if draw(st.booleans()):
        parts.append(f"[host]\nranks = {draw(st.integers(1, 4))}\n" + _keys(draw(HARDWARE)))
        parts.append(f'[switch]\nhosts = {draw(st.integers(1, 3))}\nuplink = "2GB/s"\n' * draw(st.booleans()))
        return "".join(parts)
    cut = draw(st.integers(1, 5))
    order = draw(st.permutations(range(6)))
    for name, ranks in (("a", order[:cut]), ("b", order[cut:])):
        parts.append(f'[[hosts]]\nname = "{name}"\nranks = {list(ranks)}\n' + _keys(draw(HARDWARE)))
    for ends in draw(st.sampled_from([(), ("ab",), ("ax", "xb"), ("ax", "xy", "yb", "bx")])):
        duplex = draw(st.sampled_from(["full", "half"]))
        parts.append(f'[[links]]\nbetween = {list(ends)}\nbandwidth = "1GB/s"\nduplex = "{duplex}"\n'.replace("'", '"'))
    return "".join(parts)


def _keys(values: dict[str, object]) -> str:
    return "".join(f"{key} = {value}\n" for key, value in values.items())


@given(files(), st.integers(2, 6))
def test_every_pair_has_a_path(text: str, num_ranks: int) -> None:
    """Capacities and uses are positive, no row names a resource twice, and asking for one pair gives its row."""
    of = topology(text, num_ranks)
    assert (of.resources.capacity > 0).all()
    src, dst = np.divmod(np.arange(num_ranks**2), num_ranks)
    src, dst = src[src != dst], dst[src != dst]
    paths = of.paths(src, dst)
    used = paths.resource != NONE
    assert (paths.use_per_byte[used] > 0).all()
    assert (paths.use_per_byte[~used] == 0).all()
    assert (paths.alone_bytes_per_s(of.resources) > 0).all()
    for row in range(len(src)):
        numbers = paths.resource[row][used[row]].tolist()
        assert len(set(numbers)) == len(numbers)
        uses = {of.resources.names[n]: use for n, use in zip(numbers, paths.use_per_byte[row][used[row]], strict=True)}
        alone = path(of, int(src[row]), int(dst[row]))
        assert alone == (paths.latency_s[row], paths.bytes_per_s[row], uses)


def test_a_large_topology_has_no_table_of_all_pairs() -> None:
    """65,536 ranks: a ring's pairs at once, with a row each."""
    of = load_network("dgx-h100-cluster").topology(65536)
    ranks = np.arange(65536)
    paths = of.paths(ranks, np.roll(ranks, -1))
    assert paths.resource.shape == (65536, 2)
    assert np.unique(paths.latency_s).tolist() == [3.4e-6, 14e-6]
    assert (paths.latency_s == 14e-6).sum() == 65536 / 8


NOT_NUMBERS = (
    Spec(host=Host(link=Link(latency_s=math.nan))),
    Spec(host=Host(copies=-1.0)),
    Spec(host=Host(nics=Nics(0.0, math.nan))),
    Spec(processor=Processor(torch_late_share=1.5)),
    Spec(processor=Processor(call_s=math.inf)),
    Spec(processor=Processor(receive_overhead_s=-1)),
    Spec(failures=(Failure(rank=0, at_s=math.nan),)),
    Spec(slow_ranks=(SlowRank(0, 0.0),)),
    Spec(slow_links=(SlowLink("rank0.out", slowdown=math.nan),)),
    Spec(switch=Switch(oversubscription=math.inf)),
    Spec(host=Host(link=Link(np.float32("nan")))),
    Spec(host=Host(memory_bytes_per_s=np.int64(-1))),
)


def test_a_network_is_made_of_numbers(snapshot: SnapshotAssertion) -> None:
    """Also one that no file has described, such as one that was fitted."""
    assert [said_by(ValueError, Network, "mine", spec) for spec in NOT_NUMBERS] == snapshot


def test_slowdowns_that_leave_nothing(snapshot: SnapshotAssertion) -> None:
    """Each is possible; together they make a time infinite or a rate 0, and a simulation would never end."""
    ranks, links = SlowRank(1, 1e9), SlowLink("rank0.out", slowdown=1e9)
    specs = (Spec(slow_ranks=(ranks, ranks)), Spec(Host(link=Link(0.0, 1e9)), slow_links=40 * (links,)))
    assert [said_by(ValueError, Network("mine", spec).topology, 2) for spec in specs] == snapshot


def test_costs_are_no_spec() -> None:
    """Latency and bandwidth by their places are not taken for a name and a spec."""
    assert "Network.uniform(latency_s, bandwidth_bytes_per_s)" in said_by(TypeError, Network, 1e-5, 1e9)
