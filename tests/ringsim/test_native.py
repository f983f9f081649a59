"""The costs of a torch call beside its schedule."""

import pytest

from ringsim import Cluster, Collective
from ringsim.native import NEW_BEYOND_BYTES, LocalWork, local_s, local_work
from ringsim.network.spec import Host, Processor, Spec

GATHER, SCATTER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE
HOST = Cluster(
    "host", Spec(host=Host(cores=2), processor=Processor(reduce_bytes_per_s=1e9, first_touch_bytes_per_s=1e8)), "", ""
)


def test_torch_copies_where_ours_does_not() -> None:
    """Of 100 bytes on four ranks."""
    by_torch = {REDUCE: LocalWork(0.0), SCATTER: LocalWork(25.0, 100.0), GATHER: LocalWork(100.0, 100.0)}
    assert {collective: local_work(collective, "dist", 4, 100) for collective in by_torch} == by_torch
    assert {local_work(collective, "ring", 4, 100) for collective in by_torch} == {LocalWork(0.0)}


def test_new_memory_is_slow_only_where_the_system_gives_it() -> None:
    """Up to 32 MiB a process keeps what it has freed."""
    limit = NEW_BEYOND_BYTES
    assert local_s(LocalWork(0.0, limit), HOST, 2) == pytest.approx(limit / 1e9)
    assert local_s(LocalWork(0.0, 2 * limit), HOST, 2) == pytest.approx(2 * limit / 1e8)


def test_ranks_beyond_the_cores_wait() -> None:
    """Six on two cores take three times as long; on hosts of two each none waits."""
    assert local_s(LocalWork(1e9), HOST, 6) == pytest.approx(3.0)
    each = Cluster("hosts", Spec(host=Host(cores=2), ranks_per_host=2, processor=HOST.spec.processor), "", "")
    assert local_s(LocalWork(1e9), each, 6) == pytest.approx(1.0)
