"""Logs that contradict each other, NICs measured with fewer ranks sending than use them, and implausible latencies."""

import json
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import structs
from syrupy.assertion import SnapshotAssertion

from ringsim import calibrate, calibrate_logs, cases_of_tables, read_logs
from ringsim.calibration import FittedParameter, Timing, contradiction_warning, nic_warning, one_host_warning
from ringsim.calibration.warnings import implausible_warning
from ringsim.libraries import Call
from ringsim.network import network_text, read_network
from ringsim.traces import Group, TracedStep
from tests.ringsim.commands import as_json, printed, run, written
from tests.ringsim.made_logs import LOGS, SIZES, TRUE, nccl_log
from tests.ringsim.made_probes import hosts, made_measurements
from tests.ringsim.traces.made_trace import all_reduce, call, compute, traced

pytestmark = pytest.mark.usefixtures("one_start")

TCP = TRUE.nic_bytes_per_s / 4  # bytes per second of the NIC, a quarter of that of TRUE


def log(path: Path, *shape: Any, nic: float = TRUE.nic_bytes_per_s, seed: int = 0) -> Path:
    """Of a made cluster with such a NIC: an all_reduce of 16 ranks on two hosts if nothing else is said."""
    rates = replace(TRUE, nic_bytes_per_s=nic)
    path.write_text(nccl_log(*(shape or ("all_reduce", 16, 2)), rates=rates, noise=0.05, seed=seed))
    return path


def cases(*paths: Path) -> list[Timing]:
    """Of all of them."""
    return cases_of_tables(read_logs(paths))


def step_file(folder: Path) -> Path:
    """A recorded step of 16 ranks with an all_reduce of all of them."""
    trace = TracedStep((compute(0.01), call(0)), (all_reduce(16),))
    traced(trace, groups=(Group(tuple(range(16)), "nccl"),), num_ranks=16).save(folder / "step.json")
    return folder / "step.json"


class Calibrated(NamedTuple):
    """Logs of RDMA, of TCP, and networks that were calibrated from RDMA alone and from both, with what was told."""

    rdma: Path
    tcp: Path
    one: Path
    both: Path
    told: Any  # of both


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    """By the command."""
    folder = tmp_path_factory.mktemp("logs")
    rdma, tcp = log(folder / "rdma.log"), log(folder / "tcp.log", nic=TCP, seed=1)
    one, both = folder / "one.toml", folder / "both.toml"
    run("calibrate", rdma, "-o", one)
    return Calibrated(rdma, tcp, one, both, as_json("calibrate", rdma, tcp, "-o", both))


def test_different_settings_are_named(calibrated: Calibrated, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Each with its time, by which factor they differ, and how many of their timings do; so are runs in one log."""
    paths = calibrated.rdma, calibrated.tcp
    slow, fast = ({case.call.size_bytes: case.calibrated_s for case in cases(path)} for path in reversed(paths))
    factors = [slow[size] / fast[size] for size in slow]
    line, num_apart = contradiction_warning(cases(*paths)), sum(factor > 1.25**2 for factor in factors)
    assert f" in rdma.log, {max(factors):.1f} times as long, and {num_apart} of {len(factors)} common timings" in line
    assert calibrated.told["contradictory"] == line
    both = written(tmp_path / "both.log", "".join(path.read_text() for path in paths))
    (tmp_path / "monday").mkdir()
    of_one_name = [calibrated.tcp, log(tmp_path / "monday" / "tcp.log")]
    assert [line, contradiction_warning(cases(both))] == snapshot
    assert all(f" in {path}" in contradiction_warning(cases(*of_one_name)) for path in of_one_name)


def test_repeated_runs_agree(tmp_path: Path) -> None:
    """Those of one setting, in several files or in one, also if a time of one of them was disturbed."""
    paths = [log(tmp_path / f"{seed}.log", seed=seed) for seed in range(3)]
    assert contradiction_warning(cases(*paths)) == ""
    twice = written(tmp_path / "twice.log", "".join(path.read_text() for path in paths[:2]))
    assert contradiction_warning(cases(twice)) == ""
    some = cases(*paths[:2])
    some[8] = replace(some[8], times_s=tuple(3 * time_s for time_s in some[8].times_s))
    assert contradiction_warning(some) == ""
    (nic,) = (each for each in calibrate_logs(some, "made").parameters if each.name == "host.nic.bandwidth")
    assert nic.low <= nic.value <= nic.high < 1.5 * nic.low
    assert nic.low / 1.05 < TRUE.nic_bytes_per_s < nic.high * 1.05


def test_an_interval_spans_what_the_logs_say_alone(calibrated: Calibrated) -> None:
    """And the residuals are those of each timing, not of a mean that nobody measured."""
    (nic,) = (each for each in calibrated.told["parameters"] if each["name"] == "host.nic.bandwidth")
    for path in (calibrated.rdma, calibrated.tcp):
        alone = calibrate_logs(cases(path), "alone").cluster.spec.host.nics.bandwidth_bytes_per_s
        assert nic["low"] / 1.001 <= alone <= nic["high"] * 1.001
    residuals = [cell["residual"] for cell in calibrated.told["cells"]]
    assert len(residuals) == 2 * len(SIZES)
    assert max(map(abs, residuals)) > 0.5


def test_contradictory_logs_are_told_by_all_commands(calibrated: Calibrated) -> None:
    """By calibrate, in its file, and by what uses the network; those of logs that agree are not."""
    line, step = calibrated.told["contradictory"], step_file(calibrated.both.parent)
    told = "both was calibrated from logs that contradict each other (`source` in its file): its predictions lie "
    for network in (calibrated.both, calibrated.one):
        is_told = network == calibrated.both
        assert (line in read_network(network.read_text(), "net.toml").source) == is_told
        for command in (("simulate", "--ranks", 16), ("compare", calibrated.rdma), ("step", step)):
            assert run(*command, "--network", network).stderr.count(told) == is_told, command
    text = printed("compare", calibrated.rdma, calibrated.tcp, "--network", calibrated.both)
    assert all(f"\nall_reduce nccl, {name}\n" in text for name in ("rdma.log", "tcp.log"))


def test_public_logs() -> None:
    """Settings of one cluster, and clusters, that the README of the logs tells apart; two pairs agree in most times."""
    if not LOGS.is_dir():
        pytest.skip("the public logs are not beside the repository, in ../shared/nccl-logs")
    cases_by_log = {}
    for path in sorted([*LOGS.glob("*.txt"), *LOGS.glob("raw/*.txt")]):
        with suppress(ValueError):  # of another benchmark, with wrong results, or without a shape
            cases_by_log[path.name] = cases(path)
    asked = {name: {(case.call, case.device) for case in of_log} for name, of_log in cases_by_log.items()}
    silent = [
        (one, other)
        for one, other in combinations(cases_by_log, 2)
        if asked[one] & asked[other] and not contradiction_warning([*cases_by_log[one], *cases_by_log[other]])
    ]
    name = "polaris-nccl218-all_reduce-N{}-set{}.txt"
    assert silent == [(name.format(hosts, 4), name.format(hosts, 5)) for hosts in (2, 8)]


def test_nics_that_one_rank_used_are_a_guess_for_more(tmp_path: Path, calibrated: Calibrated) -> None:
    """Said by calibrate, in the file, and by what uses it for more ranks of several hosts; not where they are given.

    Nor are those that all ranks of a host used a guess for all of them; for one rank they are.
    """
    network, given = tmp_path / "few.toml", tmp_path / "given.toml"
    # A host of eight ranks, and two hosts of which one rank each sends.
    few = log(tmp_path / "one_host.log", "all_gather", 8, 1), log(tmp_path / "one_rank.log", "all_reduce", 2, 2)
    line = printed("calibrate", *few, "-o", network).splitlines()[-1]
    assert line.startswith(
        "the logs of few send from 1 rank of a host at a time; how fast 8 ranks of a host can send is "
    )
    assert "--nic, such as 8x400Gbit/s" in line
    assert line in read_network(network.read_text(), "few.toml").source
    layers = Path(__file__).parents[3] / "docs" / "models" / "transformer.toml"
    for command in (
        ("simulate", "--ranks", 16),
        ("ddp", "--layers", layers, "--ranks", 8, "--scaling", "8,16"),
        ("compare", calibrated.rdma),
        ("step", step_file(tmp_path)),
    ):
        assert line in run(*command, "--network", network).stderr.splitlines(), command
    assert "of a host at a time" not in run("calibrate", *few, "--nic", "8x400Gbit/s", "-o", given).stdout
    for command in (
        ("simulate", "--ranks", 8, "--network", network),
        ("compare", few[1], "--network", network),
        ("simulate", "--ranks", 16, "--network", given),
    ):
        assert "of a host at a time" not in run(*command).stderr
    all_send = read_network(calibrated.one.read_text(), "one.toml")
    assert nic_warning(all_send, 8) == ""
    assert "how fast 1 rank of a host can send is not known" in nic_warning(all_send, 1)


def test_settings_that_the_network_cannot_follow_are_told(tmp_path: Path) -> None:
    """In one line, with what happens instead; where something is left, that is taken. The log itself may ask for it."""
    measured, net = log(tmp_path / "a.log", "all_reduce", 4, 1), tmp_path / "net.toml"
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


def hop(name: str, value: float, *files: str) -> FittedParameter:
    """A latency that was seen in these logs."""
    seen = tuple(Timing(Call("all_gather", 8, 16, 2), "ring", (1.0,), file=f"logs/{file}") for file in files)
    return FittedParameter(value, value, value, name, seen)


def test_latencies_that_no_cluster_has_are_doubted(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """In one line: which parameter, in which logs, what may be wrong, and what to measure; in the JSON too."""
    plausible = hop("LL hop_latency", 9e-4, "a.log"), hop("LL link_latency", 4e-5, "a.log"), hop("LL start", 1.0)
    assert implausible_warning(plausible) == ""  # slow Ethernet
    many = (
        hop("Simple hop_latency", 2e-3, "d.log", "c.log", "b.log", "a.log"),
        hop("LL128 hop_latency", 1.5e-3, "a.log"),
    )
    assert [
        implausible_warning(many),
        implausible_warning([*plausible, hop("LL link_latency", 6e-5, "a.log")]),
    ] == snapshot
    protocols = tuple(structs.replace(some, hop_latency_s=400 * some.hop_latency_s) for some in TRUE.protocols)
    slow = nccl_log("all_gather", 16, 2, rates=replace(TRUE, protocols=protocols), noise=0.02)
    done = run("calibrate", written(tmp_path / "a.log", slow), "--json")
    line = json.loads(done.stdout)["implausible"]
    assert "a hop from host to host takes less than 1 ms; seen in a.log: were the hosts busy" in line
    assert done.stderr.strip() == line  # as stdout is one object


@pytest.mark.usefixtures("few_draws")
def test_more_ranks_than_were_probed_on_a_host(tmp_path: Path) -> None:
    """A line on stderr, from the file as well; none for as many, nor where ranks are on hosts of their own."""
    network = written(tmp_path / "host.toml", network_text(calibrate(made_measurements(2), "host").cluster))
    tree = "simulate", "--network", network, "--size", "1KiB", "--algorithm", "binomial_tree"
    said = run(*tree, "--ranks", 200).stderr
    assert said == (
        "extrapolated: host is one host, calibrated on 2 ranks, predicted for 200, which share its 2 cores; for "
        "several hosts calibrate with probes of several\n"
    )
    assert run(*tree, "--ranks", 2).stderr == ""
    assert one_host_warning(calibrate(made_measurements(2, cluster=hosts())).cluster, 4) == ""
