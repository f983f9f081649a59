"""Logs that contradict each other, NICs measured with fewer ranks sending than use them, and implausible latencies."""

import json
import math
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from ringsim.calibration import (
    calibrate,
    calibrate_logs,
    cases_of_tables,
    contradiction_line,
    nic_line,
    one_host_line,
)
from ringsim.calibration.cases import TimedCase
from ringsim.calibration.from_logs import LogFit
from ringsim.measurements import read_logs
from ringsim.network import network_text, read_network
from ringsim.traces import Group, TracedStep
from tests.ringsim.commands import as_json, printed, run
from tests.ringsim.made_logs import LOGS, SIZES, TRUE, nccl_log
from tests.ringsim.made_probes import hosts, made_measurements
from tests.ringsim.traces.made_trace import all_reduce, call, compute, traced

TCP = TRUE.nic_bytes_per_s / 4  # bytes per second of the NIC, a quarter of that of TRUE


def log(
    path: Path,
    *,
    test: str = "all_reduce",
    ranks: int = 16,
    nodes: int = 2,
    nic: float = TRUE.nic_bytes_per_s,
    seed: int = 0,
) -> Path:
    """Of a made cluster with such a NIC."""
    rates = replace(TRUE, nic_bytes_per_s=nic)
    path.write_text(nccl_log(test, ranks, nodes, rates=rates, noise=0.05, seed=seed))
    return path


def cases(*paths: Path) -> list[TimedCase]:
    """Of all of them."""
    return cases_of_tables(read_logs(paths))


def step_file(folder: Path) -> Path:
    """A recorded step of 16 ranks with an all_reduce of all of them."""
    trace = TracedStep((compute(0.01), call(0)), (all_reduce(16),))
    traced(trace, groups=(Group(tuple(range(16)), "nccl"),), num_ranks=16).save(folder / "step.json")
    return folder / "step.json"


def nic(fit: LogFit) -> tuple[float, float, float]:
    """Low, value, high."""
    (parameter,) = (each for each in fit.parameters if each.name == "host.nic.bandwidth")
    return parameter.low, parameter.value, parameter.high


def test_logs_of_different_settings_are_named(tmp_path: Path) -> None:
    """Each with its time, by which factor they differ, and how many of their timings do."""
    paths = log(tmp_path / "rdma.log"), log(tmp_path / "tcp.log", nic=TCP, seed=1)
    slow, fast = ({case.size_bytes: case.calibrated_s for case in cases(path)} for path in reversed(paths))
    factors = [slow[size] / fast[size] for size in slow]
    line = contradiction_line(cases(*paths))
    assert line.startswith("contradictory: all_reduce ")
    assert " ms in tcp.log and " in line
    assert f" in rdma.log, {max(factors):.1f} times as long, and " in line
    num_apart = sum(factor > 1.25**2 for factor in factors)
    assert 0 < num_apart < len(factors)
    assert f" {num_apart} of {len(factors)} common timings differ by more than a factor of 1.6: " in line
    both = tmp_path / "both.log"  # to which the output of each run was appended
    both.write_text("".join(path.read_text() for path in paths))
    line = contradiction_line(cases(both))
    assert line.startswith("contradictory: all_reduce ")
    assert line.count(" in both.log") == 2
    (tmp_path / "monday").mkdir()
    of_monday = log(tmp_path / "monday" / "tcp.log")
    assert all(f" in {path}" in contradiction_line(cases(paths[1], of_monday)) for path in (paths[1], of_monday))


def test_repeated_runs_agree(tmp_path: Path) -> None:
    """Those of one setting, in several files or in one, also if a time of one of them was disturbed."""
    paths = [log(tmp_path / f"{seed}.log", seed=seed) for seed in range(3)]
    assert contradiction_line(cases(*paths)) == ""
    (tmp_path / "twice.log").write_text("".join(path.read_text() for path in paths[:2]))
    assert contradiction_line(cases(tmp_path / "twice.log")) == ""
    some = cases(*paths[:2])
    some[8] = replace(some[8], times_s=tuple(3 * time_s for time_s in some[8].times_s))
    assert contradiction_line(some) == ""
    low, value, high = nic(calibrate_logs(some, "made"))
    assert low <= value <= high < 1.5 * low
    assert low < TRUE.nic_bytes_per_s * 1.05
    assert high > TRUE.nic_bytes_per_s / 1.05


def test_an_interval_spans_what_the_logs_say_alone(tmp_path: Path) -> None:
    """And the residuals are those of each timing, not of a mean that nobody measured."""
    paths = log(tmp_path / "rdma.log"), log(tmp_path / "tcp.log", nic=TCP, seed=1)
    both = calibrate_logs(cases(*paths), "both")
    low, _, high = nic(both)
    for path in paths:
        alone = nic(calibrate_logs(cases(path), "alone"))[1]
        assert low <= alone * 1.001
        assert alone * 0.999 <= high
    assert len(both.cases) == sum(len(cases(path)) for path in paths)
    assert max(map(abs, both.errors)) > 0.5


def test_contradictory_logs_are_told_by_all_commands(tmp_path: Path) -> None:
    """By calibrate, in its file, and by what uses the network; those of logs that agree are not."""
    rdma, tcp, step = log(tmp_path / "rdma.log"), log(tmp_path / "tcp.log", nic=TCP, seed=1), step_file(tmp_path)
    line = contradiction_line(cases(rdma, tcp))
    assert as_json("calibrate", rdma, tcp)["contradictory"] == line
    told = "both was calibrated from logs that contradict each other (`source` in its file): its predictions lie "
    for name, paths in (("both", (rdma, tcp)), ("one", (rdma,))):
        network = tmp_path / f"{name}.toml"
        assert (line in printed("calibrate", *paths, "-o", network).splitlines()) == (name == "both")
        assert (line in read_network(network.read_text(), "net.toml").source) == (name == "both")
        for command in (("simulate", "--ranks", 16), ("compare", rdma), ("step", step)):
            assert run(*command, "--network", network).stderr.count(told) == (name == "both"), command
    text = printed("compare", rdma, tcp, "--network", tmp_path / "both.toml")
    assert [f"\nall_reduce nccl, {path.name}\n" in text for path in (rdma, tcp)] == [True, True]


def test_public_logs() -> None:
    """Settings of one cluster, and clusters, that the README of the logs tells apart; two pairs agree in most times."""
    if not LOGS.is_dir():
        pytest.skip("the public logs are not beside the repository, in ../shared/nccl-logs")
    cases_by_log = {}
    for path in sorted([*LOGS.glob("*.txt"), *LOGS.glob("raw/*.txt")]):
        with suppress(ValueError):  # of another benchmark, with wrong results, or without a shape
            cases_by_log[path.name] = cases(path)
    asked = {name: {(case.question, case.device) for case in of_log} for name, of_log in cases_by_log.items()}
    silent = [
        (one, other)
        for one, other in combinations(cases_by_log, 2)
        if asked[one] & asked[other] and not contradiction_line([*cases_by_log[one], *cases_by_log[other]])
    ]
    name = "polaris-nccl218-all_reduce-N{}-set{}.txt"
    assert silent == [(name.format(hosts, 4), name.format(hosts, 5)) for hosts in (2, 8)]


def few_senders(tmp_path: Path) -> tuple[Path, Path]:
    """A host of eight ranks, and two hosts of which one rank each sends."""
    one_host = log(tmp_path / "one_host.log", test="all_gather", ranks=8, nodes=1)
    return one_host, log(tmp_path / "one_rank.log", ranks=2)


def test_nics_that_one_rank_used_are_a_guess_for_more(tmp_path: Path) -> None:
    """Said by calibrate, in the file, and by what uses it for more ranks of several hosts."""
    network = tmp_path / "few.toml"
    told = run("calibrate", *few_senders(tmp_path), "-o", network)
    line = told.stdout.splitlines()[-1]
    assert line.startswith(
        "the logs of few send from 1 rank of a host at a time; how fast 8 ranks of a host can send is "
    )
    assert "--nic, such as 8x400Gbit/s" in line
    assert line in read_network(network.read_text(), "few.toml").source
    layers = Path(__file__).parents[3] / "docs" / "models" / "transformer.toml"
    for command in (
        ("simulate", "--ranks", 16),
        ("ddp", "--layers", layers, "--ranks", 8, "--scaling", "8,16"),
        ("compare", log(tmp_path / "eight.log", ranks=16)),
        ("step", step_file(tmp_path)),
    ):
        assert line in run(*command, "--network", network).stderr.splitlines(), command
    for command in (("simulate", "--ranks", 8), ("compare", tmp_path / "one_rank.log")):
        assert "of a host at a time" not in run(*command, "--network", network).stderr


def test_settings_that_the_network_cannot_follow_are_told(tmp_path: Path) -> None:
    """In one line, with what happens instead; where something is left, that is taken. The log itself may ask for it."""
    measured, net = log(tmp_path / "a.log", ranks=4, nodes=1), tmp_path / "net.toml"
    cluster = replace(calibrate_logs(cases(measured), "net").cluster, calibration=None)
    protocols = tuple(protocol for protocol in cluster.spec.protocols if protocol.name != "LL128")
    net.write_text(network_text(cluster.with_spec(protocols=protocols)))
    for options, told in (
        (("--nccl-proto", "ll128"), "NCCL_PROTO=ll128"),
        (("--nccl-algo", "^ring", "--nccl-proto", "ll128,simple"), "NCCL_ALGO=^ring NCCL_PROTO=ll128,simple"),
        (("--nccl-algo", "ring,nvls", "--nccl-proto", "ll128,simple"), ""),
    ):
        result = run("compare", measured, "--network", net, *options)
        assert result.stderr == (
            f"not followed: {told}: net has no formula for that with all_reduce on 1 host: {len(SIZES)} timings are "
            "predicted as if NCCL were free to choose\n"
        ) * bool(told)
        assert ("ring LL\n" in result.stdout) == bool(told)
    measured.write_text("NCCL_ALGO=Tree\n" + measured.read_text())
    line = as_json("calibrate", measured)["not_followed"]
    assert line.startswith("not followed: NCCL_ALGO=tree: calibrated has no formula for that with all_reduce on 1 host")


def test_nics_that_are_given_are_no_guess(tmp_path: Path) -> None:
    """And those that all ranks of a host used, for all of them; for one rank they are."""
    given = run("calibrate", *few_senders(tmp_path), "--nic", "8x400Gbit/s", "-o", tmp_path / "given.toml")
    assert "of a host at a time" not in given.stdout
    assert "of a host at a time" not in run("simulate", "--ranks", 16, "--network", tmp_path / "given.toml").stderr
    all_send = calibrate_logs(cases(log(tmp_path / "eight.log", ranks=16)), "all").cluster
    again = read_network(network_text(all_send), "all.toml")
    assert again.calibration == all_send.calibration
    assert nic_line(again, 8) == ""
    assert "how fast 1 rank of a host can send is not known" in nic_line(again, 1)
    assert math.isfinite(again.spec.host.nics.bandwidth_bytes_per_s)


SHAPES = (("all_gather", 8, 1), ("all_gather", 16, 2), ("all_reduce", 16, 2))


def logs(folder: Path, hop_factor: float = 1.0, link_factor: float = 1.0) -> list[Path]:
    """Of a cluster whose hops take so many times as long as those of a real one."""
    slow = tuple(
        replace(
            protocol,
            hop_latency_s=hop_factor * protocol.hop_latency_s,
            tree_hop_latency_s=hop_factor * protocol.tree_hop_latency_s,
            link_latency_s=link_factor * protocol.link_latency_s,
            tree_link_latency_s=link_factor * protocol.tree_link_latency_s,
        )
        for protocol in TRUE.protocols
    )
    paths = []
    for test, num_ranks, num_nodes in SHAPES:
        paths.append(folder / f"{test}-{num_nodes}.log")
        paths[-1].write_text(nccl_log(test, num_ranks, num_nodes, rates=replace(TRUE, protocols=slow), noise=0.02))
    return paths


@pytest.mark.parametrize(
    ("factors", "told"),
    [
        ((30, 1), ()),  # slow Ethernet
        ((400, 1), ("hop_latency is ", "from host to host takes less than 1 ms; seen in all_", "NCCL_SOCKET_IFNAME")),
        ((1, 150), ("link_latency is ", "within a host takes less than 50 us; seen in all_gather-1.log", "NCCL_DEBUG")),
    ],
)
def test_latencies_that_no_cluster_has_are_doubted(
    tmp_path: Path, factors: tuple[float, float], told: tuple[str, ...]
) -> None:
    """In one line: which parameter, in which logs, what may be wrong, and what to measure; in the JSON too."""
    done = run("calibrate", *logs(tmp_path, *factors), "--json")
    line = json.loads(done.stdout)["implausible"] or ""
    assert done.stderr.strip() == line  # as stdout is one object
    assert line.startswith("implausible: ") == bool(told)
    assert all(part in line for part in told)
    assert "\n" not in line


@pytest.mark.usefixtures("few_draws")
def test_more_ranks_than_were_probed_on_a_host(tmp_path: Path) -> None:
    """A line on stderr, from the file as well; none for as many, nor where ranks are on hosts of their own."""
    network = tmp_path / "host.toml"
    network.write_text(network_text(calibrate(made_measurements(2), "host").cluster))
    tree = "simulate", "--network", network, "--size", "1KiB", "--algorithm", "binomial_tree"
    said = run(*tree, "--ranks", 200).stderr
    assert said == (
        "extrapolated: host is one host, calibrated on 2 ranks, predicted for 200, which share its 2 cores; for "
        "several hosts calibrate with probes of several\n"
    )
    assert run(*tree, "--ranks", 2).stderr == ""
    assert one_host_line(calibrate(made_measurements(2, cluster=hosts())).cluster, 4) == ""
