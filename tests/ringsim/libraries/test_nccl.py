"""NCCL's choice, and how near the presets are to published times of the machines that they describe."""

import math
import re
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from ringsim import Collective, Network, load_network, permute_ranks, predict_time
from ringsim.libraries import Call, Plan, predict
from ringsim.libraries.library import NCCL
from ringsim.libraries.plan import _simulated_s
from ringsim.measurements import NOT_KNOWN
from ringsim.network import Calibration, Host, Jitter, Link, Nics, Processor, Protocol, Spec, network_text, read_network
from ringsim.network.spec import Failure, SlowLink, SlowRank, Switch, Tuning
from ringsim.registry import build
from ringsim.simulation import IN_ORDER, RULE
from tests.ringsim.made_networks import choose

GB = 1e9
GIB = 2**30


def time_s(preset: str, num_ranks: int, size_bytes: int, algorithm: str | None = None) -> float:
    """Return NCCL's time, by its own choice or with this algorithm, its start included."""
    cluster = load_network(preset)
    if algorithm is None:
        return choose(cluster, Collective.ALL_REDUCE, num_ranks, size_bytes).time_s()
    return NCCL.time_s(build(Collective.ALL_REDUCE, algorithm, num_ranks, size_bytes), cluster, size_bytes)


def simulated_s(choice: Plan) -> float:
    """Return the seconds of the start and of the messages, without a look at what the formula says."""
    return choice.start_s + predict_time(choice.schedule, choice.network, choice.sent_bytes)


LOGGED = load_network("docs/networks/calibrated.toml")
SPARSE = LOGGED.with_spec(ranks_per_host=1, library=replace(LOGGED.spec.library, pat_share=0.75))


CHOSEN = [
    ("all_reduce", n, size) for n in (2, 7, 8, 13, 16, 64, 2048) for size in (0, 8, 2**14, 2**20, 2**24, 2**30 + 3)
]
CHOSEN += [(call, n, size) for call in ("all_gather", "broadcast") for n in (5, 8, 16, 288) for size in (8, 2**20 + 3)]
CHOSEN += [(call, n, 2**22) for call in ("reduce_scatter", "reduce", "all_to_all", "gather") for n in (2, 8, 24)]


@pytest.mark.parametrize("preset", ["dgx-a100", "dgx-h100", "dgx-h100-cluster", "docs/networks/calibrated.toml"])
def test_what_is_chosen(preset: str, snapshot: SnapshotAssertion) -> None:
    """The algorithm and protocol with which NCCL's own formula is over first, and the time, the start included."""
    network, lines = load_network(preset), []
    for call, num_ranks, size_bytes in CHOSEN:
        if num_ranks <= (network.spec.max_ranks or num_ranks):
            choice = choose(network, Collective(call), num_ranks, size_bytes)
            taken = f"{choice.schedule.algorithm} {choice.protocol.name} {choice.time_s() * 1e6:.9g} us"
            lines.append(f"{call} of {size_bytes} bytes on {num_ranks} ranks: {taken}")
    assert lines == snapshot


FORMULAS = [
    (LOGGED, 16, "all_reduce", {"ring", "tree"}),
    (LOGGED, 16, "broadcast", {"ring"}),
    (SPARSE, 16, "all_gather", {"ring", "PAT"}),
    (load_network("dgx-h100-cluster"), 16, "all_reduce", {"tree", "in_switch"}),
    (load_network("dgx-a100"), 13, "all_gather", {"ring"}),
    (load_network("dgx-h100-cluster"), 12, "all_reduce", {"ring", "tree", "in_switch"}),
]


@pytest.mark.parametrize("size_bytes", [2**16, 2**24 + 3])
@pytest.mark.parametrize(("network", "num_ranks", "call", "algorithms"), FORMULAS)
def test_runs_as_by_formula(network: Network, num_ranks: int, call: str, algorithms: set[str], size_bytes: int) -> None:
    """For every algorithm that is chosen; segments, chunks and hops that run ahead change the picture only."""
    choice = choose(network, Collective(call), num_ranks, size_bytes)
    [(formula_s, taken)] = predict(network, [Call.on(network, Collective(call), num_ranks, size_bytes)])
    assert taken.split(" ")[0] in algorithms
    assert choice.time_s() == pytest.approx(formula_s, rel=1e-9)
    assert simulated_s(choice) == pytest.approx(formula_s, rel=1e-6)


NAMED = [("nccl_ring@4", "ring", 4, 1.0), ("nccl_tree@4", "tree", 4, 1.0), ("nvls@4", "nvlstree", 4, 1.0)]
NAMED += [("nccl_tree@4", "tree", 2, passes) for passes in (1.0, 2.0)]


@pytest.mark.parametrize(("name", "algorithm", "num_hosts", "passes"), NAMED)
@pytest.mark.parametrize("size_bytes", [2**16, 2**26])
def test_named_as_by_formula(name: str, algorithm: str, num_hosts: int, passes: float, size_bytes: int) -> None:
    """If NCCL were told to take it, on hosts of four ranks; also where it is not what NCCL would choose.

    On two hosts a second pass of trees loads the NICs alone, not the links within the hosts.
    """
    preset = load_network("dgx-h100-cluster")
    network = preset.with_spec(ranks_per_host=4, library=replace(preset.spec.library, two_host_passes=passes))
    schedule = build(Collective.ALL_REDUCE, name, 4 * num_hosts, size_bytes)
    settings = NOT_KNOWN._replace(algorithms=algorithm)
    [(formula_s, _)] = predict(network, [Call("all_reduce", size_bytes, 4 * num_hosts, num_hosts, settings)])
    assert NCCL.time_s(schedule, network, size_bytes) == pytest.approx(formula_s, rel=1e-6)


@pytest.mark.parametrize("name", ["nccl_ring", "nccl_tree", "nvls"])
def test_schedules_of_nccl_take_the_formula(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the hosts of the network, where the name does not say how many ranks they have; a tree would take a minute.

    With its ranks in other places a schedule stays what it is, and is simulated.
    """
    network = load_network("dgx-h100-cluster").with_spec(ranks_per_host=4)
    default, named = (build(Collective.ALL_REDUCE, name + hosts, 16, 2**20) for hosts in ("", "@4"))
    moved = permute_ranks(named, [*range(0, 16, 2), *range(1, 16, 2)])
    moved_s = NCCL.time_s(moved, network, 2**20)
    assert NCCL.fastest_plan(moved, network, 2**20).schedule is moved
    monkeypatch.setattr("ringsim.libraries.plan.predict_time", None)
    assert NCCL.time_s(default, network, 2**20) == NCCL.time_s(named, network, 2**20) < moved_s
    with pytest.raises(TypeError):
        NCCL.time_s(moved, network, 2**20)


TROUBLES: list[dict[str, Any]] = [
    {"slow_links": (SlowLink("host1.nic0.out", slowdown=4.0),)},
    {"slow_links": (SlowLink("host1.nic0.out", latency_s=1e-3),)},
    {"switch": Switch(latency_s=1e-3)},
    {"jitter": Jitter(latency=0.5)},
    {"slow_ranks": (SlowRank(3, 4.0),), "processor": Processor(reduce_bytes_per_s=1e9)},
    {"failures": (Failure("host1.nic0.out"),)},
]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_troubles_are_not_paced_away(trouble: dict[str, Any]) -> None:
    """The pace is that of sound hosts, so that what the network file adds takes longer than the formula."""
    sound, troubled = (choose(net, Collective.ALL_REDUCE, 16, 2**18) for net in (LOGGED, LOGGED.with_spec(**trouble)))
    assert troubled.known_s is None
    assert troubled.start_s == sound.start_s
    assert troubled.time_s() > 1.005 * sound.time_s()
    assert math.isinf(troubled.time_s()) == ("failures" in trouble)


def test_one_nic_of_a_host() -> None:
    """A single ring, no schedule of NCCL's, keeps the pace of its rings without getting their time.

    Half the bandwidth of a NIC takes as long as a slowdown of two, as the protocol's share is of that, too.
    """
    single, rings = (build(Collective.ALL_REDUCE, name, 16) for name in ("ring", "nccl_ring"))
    assert NCCL.time_s(single, LOGGED, 2**28) > 2 * NCCL.time_s(rings, LOGGED, 2**28)
    half = LOGGED.spec.host.nics.bandwidth_bytes_per_s / 2
    slow = SlowLink("host1.nic0.out", slowdown=2.0), SlowLink("host1.nic0.out", bandwidth_bytes_per_s=half)
    by_slowdown, by_bandwidth = (NCCL.time_s(rings, LOGGED.with_spec(slow_links=(link,)), 2**20) for link in slow)
    assert by_slowdown == pytest.approx(by_bandwidth)


PUBLISHED = [
    ("dgx-h100", 8, 480.0, None),  # github.com/NVIDIA/nccl-tests/issues/212
    ("dgx-h100", 7, 460.0, None),  # and down to 5: github.com/NVIDIA/nccl/issues/1455
    ("dgx-h100", 5, 420.0, None),
    ("dgx-h100", 2, 367.5, None),
    ("dgx-h100-cluster", 16, 470.0, None),  # and 32: github.com/NVIDIA/nccl-tests/issues/309
    ("dgx-h100-cluster", 32, 365.8, None),
    ("dgx-a100", 8, 232.5, None),  # github.com/NVIDIA/nccl-tests/issues/175
    ("dgx-a100", 16, 192.0, None),  # github.com/NVIDIA/nccl/issues/812
    ("dgx-h100", 8, 370.0, "nccl_ring"),  # NCCL_ALGO=RING: github.com/NVIDIA/nccl-tests/issues/212
    ("dgx-h100-cluster", 16, 376.0, "nccl_ring"),  # 47 GB/s for each NIC: the same, issue 290
]


@pytest.mark.parametrize(("preset", "num_ranks", "published", "algorithm"), PUBLISHED)
def test_large_all_reduces_as_published(preset: str, num_ranks: int, published: float, algorithm: str | None) -> None:
    """With the algorithm that NCCL takes by itself, and where it is told to take rings; no figure is in a preset."""
    busbw = 2 * (num_ranks - 1) / num_ranks * 8 * GIB / time_s(preset, num_ranks, 8 * GIB, algorithm) / GB
    assert busbw == pytest.approx(published, rel=0.1 if algorithm else 0.12)


@pytest.mark.parametrize("preset", ["dgx-h100", "dgx-a100"])
def test_a_few_bytes_take_what_was_published(preset: str) -> None:
    """15 to 20 us on 8 GPUs; 17.0 us on A100 (github.com/aistabci/abci2.0benchmark, intra_anode, NCCL 2.8)."""
    assert 14.9e-6 < time_s(preset, 8, 8) < 20e-6
    assert time_s(preset, 8, 8, "ring") == pytest.approx(time_s(preset, 8, 8))


def test_where_nothing_is_known_nothing_is_chosen() -> None:
    """Without protocols, one rank or too many, or far too many transfers of what no formula describes."""
    plain, preset = load_network("ib-100g"), load_network("dgx-h100-cluster")
    unlike = "it does not describe hosts that are all alike, with bandwidths of links and NICs: name an algorithm"
    for cluster, num_ranks, why in (
        (plain, 8, "it does not describe NCCL: give --network with a file that does"),
        (preset, 1, "a single rank sends nothing"),
        (load_network("dgx-h100"), 16, "its hosts have 8 ranks"),
        (preset.with_spec(host=Host()), 16, unlike),
    ):
        assert NCCL.why_unknown(cluster, Call.on(cluster, Collective.ALL_REDUCE, num_ranks, 8)) == why
        with pytest.raises(ValueError, match=re.escape(f"is not known: {why}")):
            choose(cluster, Collective.ALL_REDUCE, num_ranks, 8)
    too_many = "transfers to simulate, and there is no formula of NCCL's for its network"
    for cluster, runtime in ((preset, IN_ORDER), (preset.with_spec(switch=Switch(latency_s=1e-6)), RULE)):
        with pytest.raises(ValueError, match=too_many):
            choose(cluster, Collective.ALL_GATHER, 64, 8, max_transfers=1000, runtime=runtime)
    assert NCCL.why_unknown(preset, Call.on(preset, Collective.ALL_REDUCE, 1024, 8)) == ""
    assert NCCL.fastest_plan(build(Collective.ALL_REDUCE, "ring", 8), plain, 8) is None


@pytest.mark.parametrize(("per_host", "num_nics"), [(8, 8), (8, 3), (6, 4), (4, 0)])
def test_too_large_all_to_alls(per_host: int, num_nics: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as simulated, on hosts that are not full as well; so up to 65,536 ranks nothing is refused."""
    preset = load_network("dgx-h100-cluster")
    host = replace(preset.spec.host, nics=replace(preset.spec.host.nics, count=num_nics))
    network, call = preset.with_spec(host=host, ranks_per_host=per_host), Collective.ALL_TO_ALL
    simulated = {n: choose(network, call, n, n * 2**16).time_s() for n in (2, 7, 9, 12, 17)}
    assert all(choose(network, call, n, n).known_s is None for n in simulated)
    large, twice = (choose(network, call, n, 2**30).time_s() for n in (2**15, 2**16))
    assert large < twice < 1.01 * large
    monkeypatch.setattr("ringsim.libraries.plan.CHOSEN_TRANSFERS", 0)
    for n, time_s in simulated.items():
        assert choose(network, call, n, n * 2**16).known_s == pytest.approx(time_s)
    slow = network.with_spec(slow_links=(SlowLink("rank0.in", slowdown=2.0),))
    assert Plan("NCCL", build(call, "direct", 8), 8, slow.spec.protocols[-1], slow).known_s is None


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
def test_chains_say_which_slow_links_they_leave_out(collective: Collective) -> None:
    """Only where NCCL has several NICs on every host, and something is slow."""
    preset = load_network("dgx-h100-cluster")
    slow = preset.with_spec(slow_links=(SlowLink("host0.nic2.out", slowdown=4.0),))
    few = [choose(network, collective, n, 2**20).notes for network, n in ((preset, 16), (slow, 8))]
    told, uneven = (choose(slow, collective, n, 2**20).notes for n in (16, 12))
    assert few == [[], []]
    assert told == uneven[1:]
    assert "what is slow elsewhere is left out" in told[0]


def test_a_ring_too_large_to_simulate_has_the_pace_of_fewer_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near its own, as a rank sends as many bytes in each step; where the last host is not full, that is among them."""
    preset = load_network("dgx-h100-cluster")
    for num_ranks, fewer in ((64, 32), (60, 28)):
        formula, of_fewer = (choose(preset, Collective.ALL_GATHER, n, n * 2**20).formula for n in (num_ranks, fewer))
        own, expected = formula.pace, of_fewer.pace
        with monkeypatch.context() as patched:
            patched.setattr("ringsim.libraries.plan.CHOSEN_TRANSFERS", formula.schedule.num_transfers // 2)
            _simulated_s.cache_clear()
            patched.setattr("ringsim.libraries.plan.lists_more_than", lambda most, *run: run[0].num_transfers > most)
            assert formula.pace == expected == pytest.approx(own, rel=0.1) != 1.0
        _simulated_s.cache_clear()


def test_a_ring_too_large_to_be_simulated_often_takes_a_protocol_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is over first by NCCL's formula; that of large tensors would take far longer for small ones."""
    monkeypatch.setattr("ringsim.libraries.library.CHOSEN_TRANSFERS", 1000)
    cluster = load_network("dgx-h100-cluster")
    for size_bytes, protocol in ((2**18, "LL"), (2**32, "Simple")):
        schedule = build(Collective.ALL_REDUCE, "ring", 64, size_bytes)
        choice = NCCL.fastest_plan(schedule, cluster, size_bytes)
        assert choice.protocol.name == protocol
        assert NCCL.time_s(schedule, cluster, size_bytes) == choice.time_s()


def test_network_files_keep_what_they_say_of_the_library() -> None:
    """Written and read again; a file of a fit that leaves out `two_host_passes` is older, and was fitted with 2."""
    for calibration, passes in ((None, 1.0), (Calibration(), 2.0)):
        library = Tuning(switch_share=0.85, switch_latency_s=25e-6, switch_hop_latency_s=20.9e-6, two_host_passes=1.5)
        spec = Spec(library=library, protocols=(Protocol("Simple"),))
        text = network_text(Network("mine", spec, calibration=calibration))
        assert read_network(text, "mine.toml").spec.library == library
        older = "\n".join(line for line in text.splitlines() if "two_host_passes" not in line)
        assert read_network(older, "older.toml").spec.library.two_host_passes == passes


def test_what_takes_no_time_is_chosen_without_a_warning() -> None:
    """Nothing to send, over a protocol without latencies, on a network that says how sure it is."""
    host = Host(link=Link(0.0, 100 * GB), nics=Nics(0.0, 25 * GB, count=0))
    calibration = Calibration(noise=0.1, parameters=("host.link.bandwidth",), draws=((1.1,), (0.9,)))
    spec = Spec(host, 2, protocols=(Protocol("LL"), Protocol("Simple")), library=Tuning(tree_share=0.9))
    with np.errstate(divide="raise", invalid="raise"):
        choice = choose(Network("free", spec, calibration=calibration), Collective.ALL_REDUCE, 4, 0)
    assert (choice.time_s(), choice.relative_interval) == (0.0, None)
