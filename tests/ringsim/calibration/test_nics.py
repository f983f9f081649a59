"""NICs of a host, trees of two hosts, PAT, single messages, and what NCCL was told to take."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ringsim.calibration import calibrate_logs, cases_of_tables
from ringsim.calibration.cases import TimedCase
from ringsim.calibration.log_parameters import assumptions
from ringsim.calibration.protocol_time import Rates, predict, times_s
from ringsim.calibration.questions import Question
from ringsim.calibration.questions import QuestionColumns as Columns
from ringsim.measurements import NcclSettings, read_logs
from ringsim.network import Cluster, network_text, read_network
from tests.ringsim.made_logs import TRUE, nccl_log

LARGE = 2**30
BOTH = (("all_gather", 16, 2), ("all_reduce", 16, 2))


def logs_of(
    folder: Path, rates: Rates, *shapes: tuple[str, int, int], head: str = "", device: str = ""
) -> list[TimedCase]:
    """The cases of made logs of these collectives, ranks and hosts."""
    paths = []
    for number, (test, ranks, hosts) in enumerate(shapes):
        paths.append(folder / f"{test}-{ranks}-{hosts}.log")
        options = {"device": device} if device else {}
        paths[-1].write_text(head + nccl_log(test, ranks, hosts, noise=0.01, seed=number, rates=rates, **options))
    return cases_of_tables(read_logs(paths))


def fitted(cases: Sequence[TimedCase]) -> Cluster:
    """Return the network as it is read from its file."""
    return read_network(network_text(calibrate_logs(cases, "mine").cluster), "mine.toml")


def time_s(network: Cluster, *question: object) -> float:
    """Of one collective."""
    [(seconds, _)] = predict(network, [Question(*question)])  # type: ignore[arg-type]
    return seconds


@pytest.mark.parametrize(("known", "asked"), [(1, 4), (4, 1)])
def test_each_gpu_has_a_nic_until_logs_say_otherwise(tmp_path: Path, known: int, asked: int) -> None:
    """From some GPUs of each host to others, in both directions."""
    network = fitted(logs_of(tmp_path, TRUE, ("all_gather", 4 * known, 4)))
    true_s = times_s(TRUE, Columns.from_questions([Question("all_gather", LARGE, 4 * asked, 4)]))[0]
    assert network.spec.host.nics.count == 0
    assert time_s(network, "all_gather", LARGE, 4 * asked, 4) == pytest.approx(true_s, rel=0.03)


@pytest.mark.parametrize(("num_nics", "num_gpus"), [(1, 2), (2, 3)])
def test_logs_of_several_numbers_of_gpus_tell_the_nics(tmp_path: Path, num_nics: int, num_gpus: int) -> None:
    """Some GPUs that share one NIC or two, as the log of one GPU per host beside that of several shows."""
    rates = replace(TRUE, num_nics=num_nics)
    network = fitted(logs_of(tmp_path, rates, ("all_gather", 2, 2), ("all_gather", 2 * num_gpus, 2)))
    assert network.spec.host.nics.count == num_nics
    assert network.spec.host.nics.bandwidth_bytes_per_s == pytest.approx(TRUE.nic_bytes_per_s, rel=0.05)


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """From an all_reduce beside an all_gather."""
    return fitted(logs_of(tmp_path_factory.mktemp("logs"), TRUE, *BOTH))


def test_the_likelier_trees_of_two_hosts_are_taken(two_hosts: Cluster, tmp_path: Path) -> None:
    """An all_reduce beside an all_gather tells; alone it does not."""
    assert two_hosts.spec.library.two_host_passes == TRUE.library.two_host_passes == 2.0
    once = logs_of(tmp_path, replace(TRUE, library=replace(TRUE.library, two_host_passes=1.0)), *BOTH)
    assert fitted(once).spec.library.two_host_passes == 1.0
    alone = [case for case in once if case.collective == "all_reduce"]
    assert {assumption.two_host_passes for assumption in assumptions(alone, None)} == {2.0}


def test_a_single_message_reaches_less_of_a_nic_than_a_ring(tmp_path: Path) -> None:
    """Between hosts: by 0.93, as on other clusters, so that its log gives a ring more."""
    network = fitted(logs_of(tmp_path, TRUE, ("all_gather", 8, 8)))
    sent_s, passed_s = (time_s(network, test, LARGE, 2, 2) for test in ("sendrecv", "broadcast"))
    assert sent_s / passed_s == pytest.approx(1 / 0.93, rel=0.01)


def test_pat_is_taken_where_it_may_be_and_is_faster() -> None:
    """For few bytes between many hosts of one GPU; not with more of them, nor by an all_reduce."""
    network = Cluster("pat", read_network(_text(TRUE), "x.toml").spec)
    with_pat = network.with_spec(library=replace(TRUE.library, pat_share=0.75))
    small = ("all_gather", 2**20, 64, 64)
    assert time_s(with_pat, *small) < 0.8 * time_s(network, *small)
    [(_, taken)] = predict(with_pat, [Question(*small)])
    assert taken.startswith("PAT")
    for other in (("all_gather", 2**20, 64, 8), ("all_reduce", 2**20, 64, 64)):
        assert time_s(with_pat, *other) == time_s(network, *other)
    forced = Question(*small, NcclSettings(algorithms="ring"))
    assert predict(with_pat, [forced])[0][0] == time_s(network, *small)


def _text(rates: Rates) -> str:
    cluster = Cluster("true", read_network("[host.nic]\nbandwidth = '3GB/s'\ncount = 0\n", "x.toml").spec)
    return network_text(cluster.with_spec(protocols=rates.protocols, library=rates.library))


def test_what_nccl_was_told_to_take_is_what_is_predicted(two_hosts: Cluster) -> None:
    """NCCL_ALGO and NCCL_PROTO of a log; a setting that leaves nothing, or of single collectives, counts as none."""
    network, question = two_hosts, Question("all_reduce", 2**16, 16, 2)
    free = predict(network, [question])[0]
    for settings, taken in (
        (NcclSettings(algorithms="ring", protocols="simple"), "ring Simple"),
        (NcclSettings(algorithms="^ring", protocols="ll128"), "tree LL128"),
    ):
        seconds, by = predict(network, [question._replace(settings=settings)])[0]
        assert (by, seconds > free[0]) == (taken, True)
    for unknown in ("collnetdirect", "allreduce:tree;allgather:ring"):
        assert predict(network, [question._replace(settings=NcclSettings(algorithms=unknown))])[0] == free


OFF = "n:1 [0] NCCL INFO 16 coll channels, 0 collnet channels, 0 nvls channels\n"
ON = "n:1 [0] NCCL INFO 16 coll channels, 0 collnet channels, 16 nvls channels\n"


@pytest.mark.parametrize(
    ("head", "device", "hosts", "algorithm", "adds"),
    [
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
    ],
)
def test_an_all_gather_is_a_ring_only_where_nccl_has_nothing_else(
    tmp_path: Path, head: str, device: str, hosts: int, algorithm: str, adds: bool
) -> None:
    """NVLS is assumed by evidence alone: the GPU's switch may add, the version has NVLS, and no line says it is off.

    PAT may be taken between hosts of one GPU from version 2.23 on, or if the version is not known.
    """
    cases = logs_of(tmp_path, TRUE, ("all_gather", 8, hosts), head=head, device=device)
    (assumption,) = assumptions(cases, None)
    assert (cases[0].algorithm, assumption.adds) == (algorithm, adds)
    if head == ON:
        assert fitted(cases).spec.library.switch_share is not None
