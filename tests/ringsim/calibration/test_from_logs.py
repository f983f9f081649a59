"""From logs to a network, and from the network's text alone to predictions of other logs."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from syrupy.assertion import SnapshotAssertion

from ringsim.calibration import LogFit, Timing, calibrate_logs, cases_of_tables, compare_logs
from ringsim.calibration.log_parameters import assumptions, fit
from ringsim.libraries import Call, CallColumns, Rates, predict, times_s
from ringsim.measurements import NcclSettings, read_logs
from ringsim.network import Network, Nics, load_network, network_text, read_network
from tests.ringsim.made_logs import LOGS, SIZES, TRUE, fitted, logs_of, nccl_log

DGX = load_network("dgx-h100")  # with the protocols of NCCL's own model
LARGE = 2**30
ONE_HOST = (("all_reduce", 8, 1), ("all_gather", 8, 1))
TWO_HOSTS = (("all_reduce", 16, 2), ("all_gather", 16, 2))


def time_s(network: Network, *call: object) -> float:
    """Of one collective."""
    return predict(network, [Call(*call)])[0][0]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> LogFit:
    """The fit to one host and two."""
    return calibrate_logs(logs_of(tmp_path_factory.mktemp("logs"), TRUE, *ONE_HOST, *TWO_HOSTS), "made")


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """From an all_reduce beside an all_gather."""
    return fitted(logs_of(tmp_path_factory.mktemp("logs"), TRUE, *TWO_HOSTS))


def test_parameters_are_recovered_within_their_intervals(made: LogFit) -> None:
    """Bandwidths, and what small messages show."""
    found = {parameter.name: parameter for parameter in made.parameters}
    true = {
        "host.link.bandwidth": TRUE.link_bytes_per_s,
        "host.nic.bandwidth": TRUE.nic_bytes_per_s,
        "LL link_latency": TRUE.protocols[0].link_latency_s,
        "LL start": TRUE.protocols[0].start_s,
        "LL hop_latency": TRUE.protocols[0].hop_latency_s,
    }
    for name, value in true.items():
        # 95 % intervals of 5 parameters: one that just misses is no surprise, hence half as wide again.
        middle, low, high = (np.log(getattr(found[name], field)) for field in ("value", "low", "high"))
        assert 1.5 * (low - middle) <= np.log(value) - middle <= 1.5 * (high - middle), name
        assert "bandwidth" not in name or found[name].value == pytest.approx(value, rel=0.05)


def test_the_fit_is_the_known_one(made: LogFit, snapshot: SnapshotAssertion) -> None:
    """Each parameter to three figures, with its interval and how many timings tell it."""
    assert [
        f"{each.name}: {each.value:.3g}, {each.low:.2g} to {each.high:.2g}, seen in {len(each.seen_in)}"
        for each in made.parameters
    ] == snapshot


def test_the_text_of_the_file_predicts(made: LogFit, tmp_path: Path) -> None:
    """More hosts and another collective; it knows the cells of the calibration, and times grow with size."""
    network = read_network(network_text(made.cluster), "made.toml")
    held_out = logs_of(tmp_path, TRUE, ("reduce_scatter", 16, 2), ("all_reduce", 64, 8))
    compared = compare_logs(held_out, network)
    assert np.median([abs(each.error or 0.0) for each in compared.cases if each.case.call.size_bytes >= 2**20]) < 0.05
    assert not any(each.used_in_calibration for each in compared.cases)
    assert all(each.used_in_calibration for each in compare_logs(made.cases, network).cases)
    by_size = [time_s(network, "all_gather", size, 16, 2) for size in SIZES]
    assert by_size == sorted(by_size)


@pytest.mark.usefixtures("one_start")
def test_a_log_of_another_day_is_held_out(tmp_path: Path) -> None:
    """By its times, under any name and beside any other; a file without digests cannot tell it from those used."""
    logs = [tmp_path / name for name in ("monday.log", "tuesday.log", "friday.log")]
    for seed, path in enumerate(logs):
        path.write_text(nccl_log("all_reduce", 8, 1, noise=0.02, seed=seed))
    text = network_text(calibrate_logs(cases_of_tables(read_logs(logs[:2])), "made").cluster)
    network = read_network(text, "made.toml")
    assert [len(cells.rows) for cells in network.calibration.cells] == [2 * len(SIZES)]
    moved, friday = logs[1].rename(tmp_path / "moved.log"), logs[2]
    for paths in ([logs[0]], [moved, friday], [friday]):
        compared = compare_logs(cases_of_tables(read_logs(paths)), network).cases
        assert {each.case.file: each.used_in_calibration for each in compared} == {
            str(path): path != friday for path in paths
        }
    old = read_network("\n".join(line for line in text.splitlines() if not line.startswith("rows = ")), "old.toml")
    assert all(each.used_in_calibration for each in compare_logs(cases_of_tables(read_logs([friday])), old).cases)


@pytest.mark.parametrize("given", [4e9, 24e9])
def test_given_nics_need_not_be_reached(tmp_path: Path, given: float) -> None:
    """One rank of a host uses one NIC of eight, as far as the times say; no latency makes up for the rest.

    Where one host was measured, given NICs are believed.
    """
    cases, nics = logs_of(tmp_path, TRUE, *ONE_HOST, ("all_reduce", 2, 2)), Nics(0.0, given, count=8)
    made = calibrate_logs(cases, "made", nics)
    parameters = {parameter.name: parameter for parameter in made.parameters}
    assert parameters["host.nic.bandwidth"].value == pytest.approx(TRUE.nic_bytes_per_s, rel=0.05)
    assert all(parameters[f"{name} hop_latency"].value < 100e-6 for name in ("LL", "LL128", "Simple"))
    alone = calibrate_logs([case for case in cases if case.call.num_nodes == 1], "alone", Nics(0.0, 6e9, count=4))
    for network, rate in ((made.cluster, 8 * TRUE.nic_bytes_per_s), (alone.cluster, 4 * 6e9)):
        assert time_s(network, "all_gather", LARGE, 16, 2) == pytest.approx(LARGE * 15 / 16 / rate, rel=0.05)


@pytest.mark.parametrize("shapes", [ONE_HOST, TWO_HOSTS, [("all_reduce", 2, 2)]])
def test_what_no_timing_determines_is_as_nccl_has_it(tmp_path: Path, shapes: Sequence[tuple[str, int, int]]) -> None:
    """To the digit: the table says that it is NCCL's own model. What lacks a bandwidth is not predicted."""
    nccl = {"tree_share": 0.92, "tree_latency": 1.0, "message_start": 1.0}
    nccl |= {"message_share": 0.93, "ring_fill": 0.2}  # as they are on other clusters
    for protocol in DGX.spec.protocols:
        for name in ("start", "link_latency", "hop_latency", "share"):
            nccl[f"{protocol.name} {name}"] = getattr(protocol, name if name == "share" else f"{name}_s")
    fitted = calibrate_logs(logs_of(tmp_path, TRUE, *shapes), "made")
    untold = [parameter for parameter in fitted.parameters if not parameter.seen_in]
    assert untold
    for parameter in untold:
        assert parameter.value == pytest.approx(nccl[parameter.name], rel=1e-6), parameter.name
        assert parameter.low < nccl[parameter.name] < parameter.high
    hosts, missing = (2, "nic") if shapes == ONE_HOST else (1, "link")
    with pytest.raises(ValueError, match=rf"host\.{missing}\.bandwidth is missing, but all_reduce was measured on"):
        time_s(fitted.cluster, "all_reduce", 1024, 8 * hosts, hosts)
    with pytest.raises(ValueError, match="alltoall: there is no formula for it"):
        time_s(fitted.cluster, "alltoall", 1024, 8, 1)


def test_a_parameter_is_seen_wherever_nccl_s_value_would_change_a_time(tmp_path: Path) -> None:
    """Also where small changes of it change little, as those of a latency do in a long time."""
    slow = tuple(structs.replace(protocol, hop_latency_s=30 * protocol.hop_latency_s) for protocol in TRUE.protocols)
    made = calibrate_logs(logs_of(tmp_path, replace(TRUE, protocols=slow), ("all_gather", 16, 2)), "made")
    calls = [case.call for case in made.cases]
    hops = {parameter.name: parameter for parameter in made.parameters}
    for own in DGX.spec.protocols:
        hop, nccl_s = hops[f"{own.name} hop_latency"], own.hop_latency_s
        assert hop.value > 2 * nccl_s
        protocols = made.cluster.spec.protocols
        changed = tuple(structs.replace(p, hop_latency_s=nccl_s) if p.name == own.name else p for p in protocols)
        elsewhere = made.cluster.with_spec(protocols=changed)
        pairs = zip(made.cases, predict(made.cluster, calls), predict(elsewhere, calls), strict=True)
        seen = [case for case, (here_s, _), (there_s, _) in pairs if abs(np.log(there_s / here_s)) > 0.01]
        assert {case.call.size_bytes for case in seen} <= {case.call.size_bytes for case in hop.seen_in}


def test_times_in_place_count_where_they_spare_a_copy() -> None:
    """In-place times count for all_gather and reduce_scatter, which spare a copy; tables show the median of all."""
    for collective, calibrated_s in (("all_gather", 1.0), ("reduce_scatter", 1.0), ("all_reduce", 2.0)):
        case = Timing(Call(collective, 8, 2, 1), "nccl", (3.0, 1.0), (1.0,))
        assert (case.calibrated_s, case.measured_s) == (calibrated_s, 2.0)


@pytest.mark.parametrize(("known", "asked"), [(1, 4), (4, 1)])
def test_each_gpu_has_a_nic_until_logs_say_otherwise(tmp_path: Path, known: int, asked: int) -> None:
    """From some GPUs of each host to others, in both directions."""
    network = fitted(logs_of(tmp_path, TRUE, ("all_gather", 4 * known, 4)))
    true_s = times_s(TRUE, CallColumns.from_calls([Call("all_gather", LARGE, 4 * asked, 4)]))[0]
    assert network.spec.host.nics.count == 0
    assert time_s(network, "all_gather", LARGE, 4 * asked, 4) == pytest.approx(true_s, rel=0.03)


@pytest.mark.usefixtures("one_start")
@pytest.mark.parametrize(("num_nics", "num_gpus"), [(1, 2), (2, 3)])
def test_logs_of_several_numbers_of_gpus_tell_the_nics(tmp_path: Path, num_nics: int, num_gpus: int) -> None:
    """Some GPUs that share one NIC or two, as the log of one GPU per host beside that of several shows."""
    rates = replace(TRUE, num_nics=num_nics)
    network = fitted(logs_of(tmp_path, rates, ("all_gather", 2, 2), ("all_gather", 2 * num_gpus, 2)))
    assert network.spec.host.nics.count == num_nics
    assert network.spec.host.nics.bandwidth_bytes_per_s == pytest.approx(TRUE.nic_bytes_per_s, rel=0.05)


def test_hosts_of_many_ranks_have_not_many_nics_to_try(tmp_path: Path) -> None:
    """Each number is a fit of its own, and logs of CPUs may have hundreds of ranks on a host."""
    many = logs_of(tmp_path, TRUE, ("all_reduce", 2, 2), ("all_reduce", 128, 2))
    assert {assumption.num_nics for assumption in assumptions(many, None)} == set(range(17))


@pytest.mark.usefixtures("one_start")
def test_the_likelier_trees_of_two_hosts_are_taken(two_hosts: Network, tmp_path: Path) -> None:
    """An all_reduce beside an all_gather tells; alone it does not."""
    assert two_hosts.spec.library.two_host_passes == TRUE.library.two_host_passes == 2.0
    once = logs_of(tmp_path, replace(TRUE, library=structs.replace(TRUE.library, two_host_passes=1.0)), *TWO_HOSTS)
    assert fitted(once).spec.library.two_host_passes == 1.0
    alone = [case for case in once if case.call.collective == "all_reduce"]
    assert {assumption.two_host_passes for assumption in assumptions(alone, None)} == {2.0}


def test_a_single_message_reaches_less_of_a_nic_than_a_ring(tmp_path: Path) -> None:
    """Between hosts: by 0.93, as on other clusters, so that its log gives a ring more."""
    network = fitted(logs_of(tmp_path, TRUE, ("all_gather", 8, 8)))
    sent_s, passed_s = (time_s(network, test, LARGE, 2, 2) for test in ("sendrecv", "broadcast"))
    assert sent_s / passed_s == pytest.approx(1 / 0.93, rel=0.01)


def test_pat_is_taken_where_it_may_be_and_is_faster() -> None:
    """For few bytes between many hosts of one GPU; not with more of them, nor by an all_reduce."""
    cluster = read_network("[host.nic]\nbandwidth = '3GB/s'\ncount = 0\n", "x.toml")
    network = cluster.with_spec(protocols=TRUE.protocols, library=TRUE.library)
    with_pat = network.with_spec(library=structs.replace(TRUE.library, pat_share=0.75))
    small = ("all_gather", 2**20, 64, 64)
    assert time_s(with_pat, *small) < 0.8 * time_s(network, *small)
    assert predict(with_pat, [Call(*small)])[0][1].startswith("PAT")
    for other in (("all_gather", 2**20, 64, 8), ("all_reduce", 2**20, 64, 64)):
        assert time_s(with_pat, *other) == time_s(network, *other)
    assert time_s(with_pat, *small, NcclSettings(algorithms="ring")) == time_s(network, *small)


OFF = "n:1 [0] NCCL INFO 16 coll channels, 0 collnet channels, 0 nvls channels\n"
ON = "n:1 [0] NCCL INFO 16 coll channels, 0 collnet channels, 16 nvls channels\n"


ALL_GATHERS = [
    ("# NCCL version: 2.16.2\n", "NVIDIA H800", 1, "ring", False),
    ("# NCCL version: 2.29.2\n", "NVIDIA H800", 1, "nccl", True),
    (f"# NCCL version: 2.29.2\n{OFF}", "NVIDIA H800", 1, "ring", False),
    (ON, "NVIDIA H800", 1, "nccl", True),
    ("# NCCL version: 2.29.2\nNCCL_NVLS_ENABLE=0\n", "NVIDIA H800", 1, "ring", False),
    ("# NCCL version: 2.29.2\n", "NVIDIA A100", 1, "ring", False),
    ("# NCCL version: 2.22.3\n", "NVIDIA A100", 8, "ring", False),
    ("# NCCL version: 2.23.4\n", "NVIDIA A100", 8, "nccl", False),
    ("", "NVIDIA A100", 8, "nccl", False),
    ("NCCL_ALGO=Ring\n", "NVIDIA A100", 8, "ring", False),
    ("", "NVIDIA A100", 2, "ring", False),
]


@pytest.mark.parametrize(("head", "device", "hosts", "algorithm", "adds"), ALL_GATHERS)
def test_all_gathers_of_logs(tmp_path: Path, head: str, device: str, hosts: int, algorithm: str, adds: bool) -> None:
    """NVLS is assumed by evidence alone: the GPU's switch may add, the version has NVLS, and no line says it is off.

    PAT may be taken between hosts of one GPU from version 2.23 on, or if the version is not known.
    """
    cases = logs_of(tmp_path, TRUE, ("all_gather", 8, hosts), head=head, device=device)
    (assumption,) = assumptions(cases, None)
    assert (cases[0].algorithm, assumption.adds) == (algorithm, adds)
    if head == ON:
        assert fitted(cases).spec.library.switch_share is not None


def test_a_message_uses_one_nic_and_a_collective_one_for_each_rank() -> None:
    """As many as there are, and no collective is faster than the links within the hosts."""
    rates = Rates(100e9, 20e9, 6, TRUE.protocols, TRUE.library)
    asked = [("sendrecv", 16), ("all_gather", 2), ("all_gather", 6), ("all_gather", 8), ("all_gather", 16)]
    times = times_s(rates, CallColumns.from_calls([Call(test, 2**36, ranks, 2) for test, ranks in asked]))
    shares = [1.0, *((ranks - 1) / ranks for _, ranks in asked[1:])]
    assert np.array(shares) * 2**36 / times == pytest.approx([20e9, 20e9, 60e9, 80e9, 100e9], rel=1e-3)


def test_the_fit_of_a_line_is_the_known_one() -> None:
    """With vague beliefs, the posterior of a constant in n log times is their mean, with deviation noise / sqrt(n)."""
    times, one = np.log([1.0, 1.1, 0.9, 1.0]), np.array([1.0])
    found = fit(lambda at: np.repeat(at[0], 4), times, one, 100 * one, 1.0, np.array([False]), one)
    assert found.mode[0] == pytest.approx(times.mean(), abs=1e-3)
    assert found.deviation[0] == pytest.approx(0.5, rel=0.01)


@pytest.mark.slow
def test_public_clusters() -> None:
    """The claim of docs/accuracy.md for every third of its pairs: so many of them are within their targets."""
    if not LOGS.is_dir():
        pytest.skip("the public logs are not beside the repository, in ../shared/nccl-logs")
    sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
    import cluster_fidelity

    results = [cluster_fidelity.measure(pair, LOGS) for pair in [*cluster_fidelity._pairs()][::3]]
    met = sum(result.median <= result.target for result in results)
    assert met / len(results) >= 0.7
    assert np.median([result.median for result in results]) < 0.10
