"""`algorithm="auto"`: chosen by simulation, once, and the same on all ranks."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace

import collectives
from collectives.calls.algorithm_choice import CANDIDATES, Chooser, _calibrated, chooser_of, use_network
from ringsim import Collective, Network, ScheduleError, predict_time
from ringsim.network import Host, Link, Nics, Processor, Spec
from ringsim.registry import build
from tests.ranks import RankPool
from tests.refusals import said_by
from tests.ringsim.calibration.test_host_costs import PROCESSOR
from tests.ringsim.calibration.test_host_costs import probed as probed_hosts

ALL_REDUCE = Collective.ALL_REDUCE
SLOW = Network.uniform(latency_s=1e-3, bandwidth_bytes_per_s=1e8)


def chosen(group: dist.ProcessGroup, sizes: list[int]) -> list[str]:
    """Return the algorithms that are chosen for sums of these sizes, on a network that is given."""
    use_network(SLOW, group)
    for size in sizes:
        tensor = torch.full((size // 4,), float(group.rank()))
        collectives.all_reduce(tensor, group=group, algorithm="auto")
        assert (tensor == sum(range(group.size()))).all()
    return [chooser_of(group).choose(ALL_REDUCE, size, group) for size in sizes]


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_the_simulator_chooses(ranks: RankPool, num_ranks: int) -> None:
    """The fastest of the candidates on the network, near the size asked for; every rank the same."""
    sizes = [64, 2**16, 2**22]
    results = ranks.run(chosen, sizes, num_ranks=num_ranks)
    assert results == [results[0]] * num_ranks
    for size, name in zip(sizes, results[0], strict=True):
        times = {each: predict_time(build(ALL_REDUCE, each, num_ranks), SLOW, size) for each in CANDIDATES[ALL_REDUCE]}
        assert times[name] <= 1.3 * min(times.values())


# Every rank sends all that it has to every other, in one step: faster than the candidates there are where bytes are
# cheap. In the other, nothing comes back from rank 1, which `verify` says.
OWN_FILE = """
from ringsim import Collective, Schedule, Transfer

def right(n):
    pairs = [Transfer(a, b, 0, True) for a in range(n) for b in range(n) if a != b]
    return Schedule.from_transfers(Collective.ALL_REDUCE, "right", n, 1, [pairs])

def wrong(n):
    return Schedule.from_transfers(Collective.ALL_REDUCE, "wrong", n, 1, [[Transfer(0, 1, 0, True)]])
"""
QUICK_BYTES = Network.uniform(latency_s=1e-3, bandwidth_bytes_per_s=1e12)


def chosen_with_burst(group: dist.ProcessGroup) -> list[str]:
    """Return the choices on two hosts of two ranks whose NICs save up 128 KiB."""
    nics = Nics(latency_s=6e-5, bandwidth_bytes_per_s=1.2e8, burst_bytes=2**17)
    use_network(Network("", Spec(Host(nics=nics), ranks_per_host=2, processor=Processor(4e-5, 4e-5))), group)
    return [chooser_of(group).choose(ALL_REDUCE, size, group) for size in (2**17, 2**20)]


def test_of_those_that_a_link_paces_alike_the_one_with_less_beside_its_bytes_wins(ranks: RankPool) -> None:
    """Halving-doubling sends as many bytes between hosts as reducing within hosts first, in longer rounds."""
    assert ranks.run(chosen_with_burst, num_ranks=4) == [["hierarchical@2"] * 2] * 4


def own_candidate(group: dist.ProcessGroup, file: str) -> tuple[str, str, list[float], str]:
    """Return the choices before and after a candidate is added, a sum by it, and the message for a wrong one."""
    use_network(QUICK_BYTES, group)
    before = chooser_of(group).choose(ALL_REDUCE, 64, group)
    collectives.add_candidate(f"{file}:right", group=group)
    after = chooser_of(group).choose(ALL_REDUCE, 64, group)
    tensor = torch.full((2,), float(group.rank()))
    collectives.all_reduce(tensor, group=group, algorithm="auto")
    refusal = said_by(ScheduleError, collectives.add_candidate, f"{file}:wrong", "all_reduce", group)
    said_by(ScheduleError, collectives.all_reduce, tensor, group=group, algorithm=f"{file}:wrong")
    return before, after, tensor.tolist(), refusal.splitlines()[0]


def test_auto_chooses_an_algorithm_of_ones_own(ranks: RankPool, tmp_path: Path) -> None:
    """Where it is the fastest; a wrong one is refused by `verify` before anything is sent."""
    (file := tmp_path / "own.py").write_text(OWN_FILE)
    first, *others = ranks.run(own_candidate, str(file), num_ranks=3)
    assert first[:-1] == ("two_shot", f"{file}:right", [3.0, 3.0])
    assert "own.py:wrong over 3 ranks: at the start, rank 0: chunk 0 ends with rank 1 counted 0 times" in first[-1]
    assert others == [first] * 2


# An all-gather by one step in which every rank sends to every other; with the rows in the other order on some ranks.
ORDERED_FILE = """
from ringsim import Collective, Schedule, Transfer

def gather(n):
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    rows = [Transfer(a, b, a, False) for a, b in sorted(pairs, reverse={reverse})]
    return Schedule.from_transfers(Collective.ALL_GATHER, "gather", n, n, [rows])
"""


def different_files(group: dist.ProcessGroup, files: list[str]) -> tuple[str, str, list[float]]:
    """Return the message where this rank's file gives another schedule under the same name; and a call after it."""
    os.chdir(files[group.rank()])  # of which the ranks have no other use
    whole, share = torch.empty(group.size()), torch.tensor([float(group.rank())])
    gather, mismatch = collectives.all_gather_into_tensor, collectives.MismatchError
    called = said_by(mismatch, gather, whole, share, group=group, algorithm="own.py:gather")
    added = said_by(mismatch, collectives.add_candidate, "own.py:gather", "all_gather", group)
    gather(whole, share, group=group)
    return called, added, whole.tolist()


def test_different_files_under_one_name_are_noticed(trio: RankPool, tmp_path: Path) -> None:
    """Each is correct by itself; together they would put chunks into wrong places."""
    folders = [tmp_path / str(rank) for rank in range(3)]
    for rank, folder in enumerate(folders):
        folder.mkdir()
        (folder / "own.py").write_text(ORDERED_FILE.format(reverse=rank == 2))
    for called, added, whole in trio.run(different_files, [str(folder) for folder in folders]):
        assert "own.py:gather (schedule " in called
        assert "add_candidate to all_gather: own.py:gather (schedule " in added
        assert whole == [0.0, 1.0, 2.0]


def probed(group: dist.ProcessGroup) -> list[str]:
    """Return the choices where nothing is known of the network, for every collective, all with right results."""
    n, rank = group.size(), group.rank()
    whole = torch.arange(float(3 * n))
    collectives.all_reduce(total := whole.clone(), group=group, algorithm="auto")
    collectives.reduce_scatter_tensor(share := torch.empty(3), whole, group=group, algorithm="auto")
    collectives.all_gather_into_tensor(gathered := torch.empty(3 * n), share, group=group, algorithm="auto")
    collectives.broadcast(copy := torch.full((2,), float(rank)), group_src=n - 1, group=group, algorithm="auto")
    collectives.reduce(summed := torch.ones(2), group_dst=0, group=group, algorithm="auto")
    assert torch.equal(total, whole * n)
    assert torch.equal(gathered, whole * n)
    assert (copy == n - 1).all()
    assert rank != 0 or (summed == n).all()
    return [chooser_of(group).choose(collective, 64, group) for collective in CANDIDATES]


def test_a_group_is_probed_at_first_use(ranks: RankPool) -> None:
    """Without a network of its own; and all ranks choose the same for every collective."""
    first, *others = ranks.run(probed, num_ranks=3)
    assert others == [first] * 2


def on_the_backend(_: dist.ProcessGroup) -> tuple[list[float], str]:
    """Sums by "auto" on the backend "ring", whose barrier is ours, too, and what was chosen."""
    on = dist.new_group(backend="ring", pg_options=collectives.BackendOptions(all_reduce="auto"))
    tensor, later = torch.ones(3), torch.ones(3)
    dist.all_reduce(tensor, group=on)
    dist.all_reduce(later, group=on, async_op=True).wait()
    dist.barrier(on)
    return [*tensor.tolist(), *later.tolist()], chooser_of(on).choose(ALL_REDUCE, 12, on)


def test_auto_on_the_backend(trio: RankPool) -> None:
    """The probes meet without the group's own barrier, which would wait for the call that probes."""
    (sums, name), *others = trio.run(on_the_backend, timeout_s=60)
    assert sums == [3.0] * 6
    assert others == [(sums, name)] * 2


@pytest.mark.parametrize(
    ("num_hosts", "winners"), [(2, {"hierarchical@2", "halving_doubling"}), (3, {"hierarchical@2"})]
)
def test_ranks_of_a_host_share_its_network_interface(num_hosts: int, winners: set[str]) -> None:
    """For large tensors the algorithm that crosses the interface least wins: 2(h-1)/h of the size, not 2(n-1)/n."""
    num_ranks, host = 2 * num_hosts, Host(link=Link(0.0, 2e9), nics=Nics(100e-6, 125e6))  # of 1 Gbit/s, for two ranks
    cluster = Network("true", Spec(host=host, ranks_per_host=2, processor=PROCESSOR))
    hosts = tuple(rank // 2 for rank in range(num_ranks))
    network = _calibrated(probed_hosts(cluster, hosts, hosts), 8)
    chooser = Chooser(None)  # type: ignore[arg-type]  # it looks at no group until it has to ask the others
    assert chooser._best(ALL_REDUCE, 2**24, num_ranks, network) in winners
    assert chooser._best(ALL_REDUCE, 64, num_ranks, network) == "recursive_doubling"
    assert chooser._best(Collective.REDUCE_SCATTER, 2**24, num_ranks, network) in CANDIDATES[Collective.REDUCE_SCATTER]


@pytest.mark.parametrize("hosts", [(0, 1, 0, 1), (0, 1, 1, 1)])
def test_hosts_that_are_not_alike_are_ranks_with_links_of_their_own(hosts: tuple[int, ...]) -> None:
    """Which need not be true, but is all that the probes can tell."""
    measured = probed_hosts(Network("true", Spec(ranks_per_host=1, processor=PROCESSOR)), hosts, hosts)
    in_flight = replace(measured.probes[0], in_flight=4)
    additions = [replace(probe, kind="reduce") for probe in measured.probes_of("reduce", clock="cpu")]
    network = _calibrated(replace(measured, probes=(*measured.probes, in_flight, *additions)), 8)
    assert isinstance(network, Network)
