"""Resources and paths of clusters and of `Network`, worked out by hand; and what holds for any of them."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim import Cluster, Network, load_network
from ringsim.network import AnyNetwork
from ringsim.network.file_reader import read_network
from ringsim.network.spec import Failure, Host, Link, Nics, Processor, Spec
from ringsim.network.topology import NONE, Topology
from tests.refusals import refused
from tests.ringsim.topologies import capacities, path

DOCS = Path(__file__).parents[3] / "docs"


def example(name: str) -> Cluster:
    """One of those that the documentation shows."""
    return load_network(DOCS / "networks" / f"{name}.toml")


def topology(text: str, num_ranks: int) -> Topology:
    """Of a network file with this text."""
    return read_network(text, "my.toml").topology(num_ranks)


def test_racks_have_these_resources() -> None:
    """18 ranks: 9 hosts, the last with one free place, on 3 leaves whose uplinks are half of 4 x 25 Gbit/s."""
    of = example("racks").topology(17)
    found = capacities(of)
    assert sum(name.startswith("rank") for name in found) == 2 * 17
    assert (found["rank16.out"], found["host8.nic0.in"], found["host8.memory"]) == (10e9, 3.125e9, 20e9)
    assert (found["host8.cores"], found["leaf2.up"], found["leaf0.down"]) == (16, 6.25e9, 6.25e9)
    assert len(found) == 34 + 9 * 4 + 3 * 2
    assert np.isinf(of.resources.fails_at_s).all()


CORE = pytest.approx(1e-10)  # the time of one that a byte takes


@pytest.mark.parametrize(
    ("src", "dst", "latency_s", "uses"),
    [
        (2, 3, 2e-6, {"rank2.out": 1, "rank3.in": 1, "host1.memory": 2, "host1.cores": pytest.approx(2e-10)}),
        (2, 7, 2.5e-6, {"host1.nic0.out": 1, "host3.nic0.in": 1, "host1.memory": 1, "host3.memory": 1,
                        "host1.cores": CORE, "host3.cores": CORE}),
        (16, 0, 4e-6, {"host8.nic0.out": 1, "host0.nic0.in": 1, "host8.memory": 1, "host0.memory": 1,
                       "host8.cores": CORE, "host0.cores": CORE, "leaf2.up": 1, "leaf0.down": 1}),
    ],
    ids=["within a host", "on one leaf", "from leaf to leaf"],
)  # fmt: skip
def test_paths_of_the_racks(src: int, dst: int, latency_s: float, uses: dict[str, float]) -> None:
    """Within a host in and out of the memory; across, a switch for each leaf; one core copies at each end."""
    of = example("racks").topology(17)
    assert path(of, src, dst) == (pytest.approx(latency_s), 10e9, uses)


def test_processors_of_the_racks() -> None:
    """All ranks alike, each on its host's cores."""
    of = example("racks").topology(17)
    assert set(of.processors.send_overhead_s) == {1e-6}
    assert set(of.processors.receive_overhead_s) == {2e-6}
    assert set(of.processors.reduce_bytes_per_s) == {8e9}
    assert [of.resources.names[number] for number in of.processors.cores[[0, 1, 16]]] == [
        "host0.cores",
        "host0.cores",
        "host8.cores",
    ]


def test_hosts_by_name_lay_their_keys_over_the_common_ones() -> None:
    """Two NICs for four ranks; a half-duplex NIC is one resource; a host without a limit on cores has none."""
    of = example("three-hosts").topology(6)
    assert capacities(of) == {
        "big.nic0.out": 1.25e9,
        "big.nic1.out": 1.25e9,
        "small.nic0.out": 1.25e9,
        "old.nic0": 1.25e8,
        "big.nic0.in": 1.25e9,
        "big.nic1.in": 1.25e9,
        "small.nic0.in": 1.25e9,
        "big.cores": 8,
        "small.cores": 2,
    }
    assert path(of, 1, 4) == (20e-6, math.inf, {"big.nic0.out": 1, "small.nic0.in": 1})
    assert path(of, 5, 2)[2] == {"old.nic0": 1, "big.nic1.in": 1}
    assert path(of, 4, 5)[2] == {"small.nic0.out": 1, "old.nic0": 1}
    assert of.processors.cores[5] == NONE


def test_cables_are_followed_hop_by_hop() -> None:
    """Three cables from a to d, the one in the middle in half duplex; one to the switch and one back from a to b."""
    of = example("cables").topology(4)
    assert path(of, 0, 3) == (pytest.approx(60e-6), math.inf, {"a->left": 1, "left<->right": 1, "right->d": 1})
    assert path(of, 3, 0)[2] == {"d->right": 1, "left<->right": 1, "left->a": 1}
    assert path(of, 0, 1) == (pytest.approx(10e-6), math.inf, {"a->left": 1, "left->b": 1})
    assert capacities(of)["left<->right"] == 1.25e8


def test_of_ways_with_as_many_links_the_first_in_the_file_is_taken() -> None:
    """The long way is never taken, however fast."""
    hosts = "\n".join(f'[[hosts]]\nname = "{name}"\nranks = [{rank}]' for rank, name in enumerate("ab"))
    ends = [("a", "x"), ("x", "b"), ("a", "y"), ("y", "b"), ("a", "p"), ("p", "q"), ("q", "b")]
    cables = [f'[[links]]\nbetween = ["{one}", "{other}"]\nbandwidth = "1GB/s"\n' for one, other in ends]
    assert path(topology(hosts + "\n" + "".join(cables), 2), 0, 1)[2] == {"a->x": 1, "x->b": 1}
    turned = cables[2:4] + cables[:2] + cables[4:]
    assert path(topology(hosts + "\n" + "".join(turned), 2), 0, 1)[2] == {"a->y": 1, "y->b": 1}


def test_hosts_may_be_on_the_way() -> None:
    """A ring of four hosts without a switch: two hops to the one opposite."""
    hosts = "\n".join(f'[[hosts]]\nname = "h{rank}"\nranks = [{rank}]' for rank in range(4))
    cables = "\n".join(
        f'[[links]]\nbetween = ["h{rank}", "h{(rank + 1) % 4}"]\nbandwidth = "1GB/s"\nlatency = "1us"'
        for rank in range(4)
    )
    of = topology(hosts + "\n" + cables, 4)
    assert path(of, 0, 2) == (2e-6, math.inf, {"h0->h1": 1, "h1->h2": 1})
    assert path(of, 1, 0) == (1e-6, math.inf, {"h1->h0": 1})


def test_trouble() -> None:
    """A straggler, slow links, what fails and when, and jitter."""
    of = example("trouble").topology(8)
    assert of.processors.reduce_bytes_per_s.tolist() == [8e9] * 3 + [3.2e9] + [8e9] * 4
    assert capacities(of)["host2.nic0.out"] == 1.25e8
    assert capacities(of)["host5.nic0.in"] == 1.25e9 / 4
    assert path(of, 2, 3)[0] == pytest.approx(30e-6)
    assert path(of, 3, 2)[0] == pytest.approx(10e-6)
    fails = dict(zip(of.resources.names, of.resources.fails_at_s, strict=True))
    assert (fails["host6.nic0.in"], fails["rank7"], fails["host6.nic0.out"]) == (20e-3, 50e-3, math.inf)
    assert path(of, 7, 0)[2]["rank7"] == path(of, 0, 7)[2]["rank7"] == 1
    assert "rank7" not in path(of, 0, 1)[2]
    assert of.jitter is not None
    assert (of.jitter.seed, of.jitter.latency, of.jitter.compute) == (7, 0.1, 0.05)


def test_a_slow_rank_copies_slowly() -> None:
    """It takes more of the cores for a byte, and no message from or to it goes faster."""
    text = '[host]\nranks = 2\ncores = 4\n[rank]\nsend_overhead = "1us"\ncopy_bandwidth = "2GB/s"\n'
    of = topology(text + "[[slow_rank]]\nrank = 1\nslowdown = 2\n", 4)
    assert path(of, 0, 1) == (0, 1e9, {"host0.cores": pytest.approx(0.5e-9 + 1e-9)})
    assert path(of, 1, 2)[2] == {"host0.cores": pytest.approx(1e-9), "host1.cores": pytest.approx(0.5e-9)}
    assert path(of, 2, 3)[1] == 2e9
    assert of.processors.send_overhead_s.tolist() == [1e-6, 2e-6, 1e-6, 1e-6]


def test_what_has_no_limit_may_still_be_slow_or_fail() -> None:
    """It is a resource only then."""
    assert topology("[host]\nranks = 1\n", 2).resources.names == ()
    failing = topology('[host]\nranks = 1\n[[failure]]\nlink = "host1.nic0.in"\n', 2)
    assert capacities(failing) == {"host1.nic0.in": math.inf}
    assert failing.resources.fails_at_s.tolist() == [0]
    assert path(failing, 0, 1)[2] == {"host1.nic0.in": 1}
    slow = topology('[host]\nranks = 1\n[[slow_link]]\nlink = "host1.nic0.in"\nlatency = "3us"\n', 2)
    assert (path(slow, 0, 1)[0], path(slow, 1, 0)[0]) == (3e-6, 0)


def test_half_duplex_ports_are_shared_by_both_directions() -> None:
    """Messages to and from a rank use one resource."""
    of = topology('[host]\nranks = 3\nlink = { bandwidth = "1GB/s", duplex = "half" }\n', 3)
    assert path(of, 0, 1)[2] == {"rank0.port": 1, "rank1.port": 1}
    assert path(of, 2, 0)[2] == {"rank2.port": 1, "rank0.port": 1}


def test_without_host_ranks_all_are_on_one_host() -> None:
    """However many there are; NICs are dealt out to them all the same."""
    of = topology("[host]\ncores = 2\n", 100)
    assert capacities(of) == {"host0.cores": 2}
    assert set(of.processors.cores) == {0}


def test_an_oversubscribed_leaf_that_is_partly_filled_counts_as_full() -> None:
    """Of hosts like those it has."""
    text = '[host]\nranks = 1\nnic.bandwidth = "1GB/s"\n[switch]\nhosts = 4\noversubscription = 2\n'
    assert {capacities(topology(text, 5))[name] for name in ("leaf0.up", "leaf1.down")} == {2e9}


def test_an_uplink_counts_a_nic_for_each_rank_where_the_file_says_so() -> None:
    """A count of 0 gives the same uplinks as the number of ranks does."""
    uplinks = [
        capacities(
            topology(f'[host]\nranks = 2\nnic = {{bandwidth = "1GB/s", count = {count}}}\n'
                     "[switch]\nhosts = 2\noversubscription = 2\n", 8)
        )["leaf0.up"]
        for count in (0, 2)
    ]  # fmt: skip
    assert uplinks == [2e9, 2e9]


def test_cluster_and_network_stand_in_for_each_other() -> None:
    """Both give a topology, and a dict for JSON that has no infinity."""
    networks: list[AnyNetwork] = [Network(1e-6, 1e9), example("racks")]
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


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Spec(host=Host(link=Link(latency_s=math.nan))), "host.link.latency_s nan: must be finite and not negative"),
        (Spec(host=Host(copies=-1.0)), "host.copies -1.0: must be finite and not negative"),
        (Spec(host=Host(nics=Nics(0.0, math.nan))), "host.nics.bandwidth_bytes_per_s nan: must be greater than 0"),
        (Spec(processor=Processor(torch_late_share=1.5)), "processor.torch_late_share 1.5: must be from 0 to 1"),
        (Spec(processor=Processor(call_s=math.inf)), "processor.call_s inf: must be finite and not negative"),
        (Spec(failures=(Failure(rank=0, at_s=math.nan),)), "failures[0].at_s nan: must be finite and not negative"),
    ],
)
def test_a_network_is_made_of_numbers(spec: Spec, message: str) -> None:
    """Also one that no file has described, such as one that was fitted."""
    with refused(f"mine: {message}"):
        Cluster("mine", spec)


PORTS = Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9, reduce_bytes_per_s=math.inf, gap_s=1e-6)


def test_a_rank_has_one_port_each_way() -> None:
    """A message takes that of its sender and that of its receiver, byte by byte."""
    topology = PORTS.topology(3)
    assert topology.resources.names == ("rank0.out", "rank1.out", "rank2.out", "rank0.in", "rank1.in", "rank2.in")
    assert topology.resources.capacity.tolist() == [1e9] * 6
    assert path(topology, 0, 1) == (1e-5, math.inf, {"rank0.out": 1, "rank1.in": 1})
    assert path(topology, 2, 0) == (1e-5, math.inf, {"rank2.out": 1, "rank0.in": 1})


def test_ports_without_limit_are_no_resources() -> None:
    """A message takes no time, whatever else is sent."""
    topology = replace(PORTS, bandwidth_bytes_per_s=math.inf).topology(3)
    assert (topology.resources.names, path(topology, 0, 1)) == ((), (1e-5, math.inf, {}))


def test_only_a_choice_is_named() -> None:
    """The description leaves out all defaults."""
    assert repr(PORTS) == "Network(latency_s=1e-05, bandwidth_bytes_per_s=1000000000.0, gap_s=1e-06)"
