"""Rates of NICs by the number of hosts: one rule for the simulator, the formulas, and the groups of a step."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from ringsim import load_network, predict_time, ring_all_reduce
from ringsim.libraries import LIBRARIES, Call, predict
from ringsim.libraries.nccl_model import algorithm_times
from ringsim.network import Network, network_text, nic_share, read_network, slowdown
from ringsim.schedule import Collective
from ringsim.training_step import GroupCalls
from tests.ringsim.commands import run, written
from tests.ringsim.made_networks import HOSTS, choose, made_network
from tests.ringsim.traces.made_trace import call_of

CURVE = "".join(f"[[fabric]]\nhosts = {hosts}\nshare = {share}\n" for hosts, share in ((2, 0.8), (8, 0.4)))
SIZE = 64 * 2**20
P5 = load_network("p5-efa-2024")


def slower(network: Network, share: float) -> Network:
    """Return the network with such a share of the NICs' bandwidth on any number of hosts."""
    host = network.spec.host
    nics = replace(host.nics, bandwidth_bytes_per_s=share * host.nics.bandwidth_bytes_per_s)
    return network.with_spec(fabric=(), host=replace(host, nics=nics))


def test_the_share_is_linear_in_the_logarithm_of_the_hosts() -> None:
    """And constant beyond the first and the last point; without points it is all."""
    fabric = made_network(CURVE).spec.fabric
    shares = nic_share(fabric, np.array([1.0, 2.0, 4.0, 8.0, 64.0]))
    assert shares.tolist() == pytest.approx([0.8, 0.8, 0.6, 0.4, 0.4])
    assert nic_share(fabric[:1], np.array([2.0, 64.0])).tolist() == [0.8, 0.8]
    assert nic_share((), np.array([2.0])).tolist() == [1.0]


@pytest.mark.parametrize("per_host", [1, 2])
def test_nics_have_the_rate_of_all_hosts_of_a_topology(per_host: int) -> None:
    """Ports within a host do not, and a slow NIC keeps its share of the rate that the file gives it."""
    slow = '[[slow_link]]\nlink = "host0.nic0.out"\nbandwidth = "0.5GB/s"\n'
    for num_hosts, share in ((1, 0.8), (2, 0.8), (4, 0.6), (16, 0.4)):
        resources = made_network(CURVE + slow, per_host).topology(num_hosts * per_host).resources
        capacity = dict(zip(resources.names, resources.capacity.tolist(), strict=True))
        assert capacity["host0.nic0.in"] == pytest.approx(share * 1e9)
        assert capacity["host0.nic0.out"] == pytest.approx(share * 0.5e9)
        assert capacity["rank0.out"] == 10e9


def test_hosts_with_names_count_as_well() -> None:
    """Those on which there are ranks."""
    hosts = [f'[[hosts]]\nname = "h{rank}"\nranks = [{rank}]\n' for rank in range(8)]
    network = read_network('[host.nic]\nbandwidth = "1GB/s"\n' + CURVE + "".join(hosts), "named.toml")
    for num_ranks, share in ((4, 0.6), (8, 0.4)):
        assert network.topology(num_ranks).resources.capacity.max() == pytest.approx(share * 1e9)


def test_simulations_formulas_and_steps_agree() -> None:
    """With a network of hosts that have the slower NICs on any number of hosts."""
    for num_hosts, share in ((2, 0.81), (64, 0.085)):
        plain = slower(P5, share)
        ring = ring_all_reduce(8 * num_hosts)
        assert predict_time(ring, P5, SIZE) == pytest.approx(predict_time(ring, plain, SIZE))
        for name in ("all_reduce", "all_gather"):
            call = Call(name, SIZE, 8 * num_hosts, num_hosts)
            assert predict(P5, [call])[0] == pytest.approx(predict(plain, [call])[0])
        plans = [choose(network, Collective.ALL_REDUCE, 8 * num_hosts, SIZE) for network in (P5, plain)]
        assert plans[0].time_s() == pytest.approx(plans[1].time_s())
    every = [choose(network, Collective.ALL_TO_ALL, 2048, SIZE).time_s() for network in (P5, slower(P5, 0.085))]
    assert every[0] == pytest.approx(every[1])


@pytest.mark.parametrize("library", ["nccl", "ring"])
def test_a_group_of_a_step_has_the_rate_of_its_own_hosts(library: str) -> None:
    """Of two hosts in a job of 64, also if it is simulated with the groups that communicate at the same time."""
    group = range(16)
    times = []
    for network in (P5, slower(P5, 0.81), slower(P5, 0.085)):
        calls = GroupCalls(network, 512, LIBRARIES[library], group)
        times.append(calls.call_alone_s(call_of("all_gather", SIZE, 4)))
    times[0] /= slowdown(P5.spec.fabric, 2, 0.5, 32)
    assert times[0] == pytest.approx(times[1])
    assert times[0] < 0.8 * times[2]


def test_the_curve_is_written_as_it_is_read() -> None:
    """To the same spec, with a spread or without."""
    for spread in ("", "low = 0.1\nhigh = 1\n"):
        network = read_network(HOSTS.format(ranks_per_host=2) + CURVE + spread, "made.toml")
        assert read_network(network_text(network), "made.toml").spec == network.spec


def test_times_spread_as_the_shares_do() -> None:
    """80 % of the times lie between those of both ends, which are interpolated as the share is; many wait for one."""
    fabric = made_network(CURVE + "low = 0.1\nhigh = 1\n").spec.fabric
    for num_hosts, ends in ((1, (1, 1)), (2, (1, 1)), (4, (0.6 / 0.9, 0.6 / 0.45)), (8, (0.4, 4)), (16, (0.4, 4))):
        assert (slowdown(fabric, num_hosts, 0.1), slowdown(fabric, num_hosts, 0.9)) == pytest.approx(ends)
        assert slowdown(fabric, num_hosts, 0.5) == pytest.approx(1.0)
    normal = np.random.default_rng(0).standard_normal((20_000, 8)).max(axis=1) / 1.2816
    draws = normal * np.log(np.where(normal > 0, 0.4 / 0.1, 1 / 0.4))
    found = [slowdown(fabric, 8, quantile, 8) for quantile in (0.1, 0.5, 0.9)]
    assert found == pytest.approx(np.exp(np.quantile(draws, (0.1, 0.5, 0.9))), rel=0.02)
    assert slowdown(made_network(CURVE).spec.fabric, 8, 0.9, 8) == slowdown((), 8, 0.9) == 1.0


def test_one_end_of_the_spread_changes_times_to_its_side_only() -> None:
    """With `high` alone, steps at the slow end are as long as usual, and none becomes longer."""
    for given, ends in (("low = 0.1", (1.0, 4.0)), ("high = 1", (0.4, 1.0))):
        fabric = made_network(CURVE + f"{given}\n").spec.fabric
        assert (slowdown(fabric, 8, 0.1), slowdown(fabric, 8, 0.9)) == pytest.approx(ends)


def test_a_step_waits_for_the_slowest_of_groups_on_other_hosts() -> None:
    """Not for groups on the same hosts, such as those of the local ranks."""
    gathered, fabric = call_of("all_gather", SIZE, 4), P5.spec.fabric
    plain = P5.with_spec(fabric=tuple(replace(point, low=None, high=None) for point in fabric))
    for group, num_ranks, num_hosts, num_places in (
        (range(16), 16, 2, 1), (range(16), 128, 2, 8), (range(0, 128, 8), 128, 16, 1), (range(8), 128, 1, 16),
    ):  # fmt: skip
        times = [
            GroupCalls(network, num_ranks, LIBRARIES["nccl"], group).call_alone_s(gathered) for network in (P5, plain)
        ]
        assert times[0] / times[1] == pytest.approx(slowdown(fabric, num_hosts, 0.5, num_places))


def test_calls_in_a_queue_wait_for_the_slowest_as_well() -> None:
    """Such as two at once on Gloo: their messages take as many times as long as those of one alone."""
    ends_s = []
    for spread in ("", "low = 0.1\n"):
        network = made_network(CURVE + spread)
        calls = GroupCalls(network, 16, LIBRARIES["gloo"], range(8))
        call = calls.call(call_of("all_reduce", SIZE, 4), ready_s=3.0).call._replace(call_s=0.25)
        spans = [span for count in (1, 2) for span in calls.queued([call] * count, calls.library.runtime)]
        assert [span.begin_s for span in spans] == pytest.approx([3.0] * 3)
        ends_s.append([span.end_s - 3.25 for span in spans])
    longer = slowdown(network.spec.fabric, 8, 0.5, 2)
    assert longer > 1.2
    assert ends_s[1] == pytest.approx([longer * end_s for end_s in ends_s[0]])


def test_a_failure_meets_slow_calls_at_its_own_time() -> None:
    """A message that would have arrived by then at the usual rate does not."""
    ends_s = []
    for trouble in ("", *(f'[[failure]]\nlink = "host1.nic0.in"\nat = "{at}s"\n' for at in (0.6, 0.4))):
        network = made_network(CURVE + "low = 0.1\nhigh = 1\n" + trouble)
        calls = GroupCalls(network, 16, LIBRARIES["gloo"], range(8))
        call = calls.call(call_of("all_reduce", SIZE, 4)).call
        ends_s.append(calls.queued([call], calls.library.runtime)[0].end_s)
    assert 0.4 < ends_s[0] < 0.6
    assert ends_s == [ends_s[0], ends_s[0], np.inf]


def test_other_hosts_than_measured_are_reported(tmp_path: Path) -> None:
    """Not one host, where no NIC is used."""
    path = written(tmp_path / "made.toml", HOSTS.format(ranks_per_host=4) + CURVE.replace("hosts = 2", "hosts = 4"))
    one = written(tmp_path / "one.toml", HOSTS.format(ranks_per_host=4) + CURVE.partition("[[fabric]]\nhosts = 8")[0])
    said = {
        (file.stem, ranks): run("simulate", "--network", file, "--ranks", ranks, "--size", "1MiB").stderr
        for file, ranks in ((path, 4), (path, 8), (path, 32), (path, 64), (one, 16))
    }
    assert said == {
        ("made", 4): "",
        ("made", 8): "extrapolated: the NICs of made were measured on 4 to 8 hosts; 2 have the rate of 4\n",
        ("made", 32): "",
        ("made", 64): "extrapolated: the NICs of made were measured on 4 to 8 hosts; 16 have the rate of 8\n",
        ("one", 16): "extrapolated: the NICs of one were measured on 2 hosts; 4 have the rate of 2\n",
    }


MEASURED = {
    "all_reduce": (436.0, 361.7, 160.1, 99.6, 84.7, 64.9, 32.9),
    "all_gather": (249.8, 184.6, 119.0, 69.0, 55.0, 28.0, 11.0),
    "reduce_scatter": (249.7, 181.6, 115.8, 68.6, 54.5, 27.9, 11.1),
}


def test_p5_is_near_the_medians_that_it_was_fitted_to() -> None:
    """Of 256 MB, without the copies of torch's calls with lists."""
    errors = {}
    for name, row in MEASURED.items():
        for hosts, measured in zip((1, 2, 4, 8, 16, 32, 64), row, strict=True):
            call = Call(name, 256_000_000, 8 * hosts, hosts)
            passes = (2 if name == "all_reduce" else 1) * (1 - 1 / call.num_ranks)
            copies_s = 0 if name == "all_reduce" else 0.82e-12 * call.size_bytes
            measured_s = passes * call.size_bytes / measured / 1e9 - copies_s
            errors[name, hosts] = abs(predict(P5, [call])[0][0] / measured_s - 1)
    assert np.median(list(errors.values())) < 0.03
    assert max(errors.values()) < 0.14
    assert max(error for (_, hosts), error in errors.items() if hosts == 1) < 0.03


# busbw in GB/s of all_gathers of 32, 64, ... 2048 MiB, by hosts: github.com/crazyguitar/aws-gpu-communication-benchmark
GATHERED = {
    2: (131.3, 200.4, 234.5, 215.6, 275.5, 322.0, 328.6),
    4: (83.6, 138.9, 211.7, 253.4, 220.6, 288.5, 330.9),
    8: (46.3, 86.8, 143.7, 215.4, 261.3, 224.5, 293.7),
    16: (24.9, 47.0, 87.7, 144.1, 220.0, 261.9, 265.1),
    32: (12.4, 25.0, 45.6, 86.3, 146.4, 222.4, 262.8),
}


def test_a_quiet_p5_is_near_the_all_gathers_that_it_was_fitted_to() -> None:
    """By nccl-tests, out of place."""
    network, errors = load_network("p5-efa"), []
    for hosts, row in GATHERED.items():
        for exponent, measured in enumerate(row):
            call = Call("all_gather", 2 ** (25 + exponent), 8 * hosts, hosts)
            measured_s = (1 - 1 / call.num_ranks) * call.size_bytes / measured / 1e9
            errors.append(abs(predict(network, [call])[0][0] / measured_s - 1))
    assert np.median(errors) < 0.07
    assert max(errors) < 0.31


def test_each_step_of_a_ring_across_hosts_takes_at_least_the_overhead() -> None:
    """But hops between hosts have their own latency, and rings within a host do not need the NICs."""
    overhead_s = P5.spec.library.ring_overhead_s
    network, without = (P5.with_spec(library=replace(P5.spec.library, ring_overhead_s=least_s))
                        for least_s in (overhead_s, 0.0))  # fmt: skip
    link_s = P5.spec.protocols[-1].link_latency_s
    for num_ranks, num_hosts in ((8, 1), (16, 2), (64, 64)):
        call = Call("all_gather", SIZE, num_ranks, num_hosts)
        ring_s, quick_s = (algorithm_times(one, call)["ring Simple"] for one in (network, without))
        steps = num_ranks - num_hosts if num_hosts > 1 else 0
        assert ring_s - quick_s == pytest.approx(steps * (overhead_s - link_s), rel=0.05, abs=1e-9)
