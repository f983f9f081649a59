"""The costs of a torch call beside its schedule."""

import pytest

from ringsim import Collective, Network
from ringsim.libraries import GLOO, NEW_BEYOND_BYTES, OURS, copy_s
from ringsim.network.spec import Host, Processor, Spec

GATHER, SCATTER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE
HOST = Network("host", Spec(Host(cores=2), processor=Processor(reduce_bytes_per_s=1e9, first_touch_bytes_per_s=1e8)))


def test_torch_copies_where_ours_does_not() -> None:
    """Of 100 bytes on four ranks."""
    by_torch = {REDUCE: (0.0, 0.0), SCATTER: (25.0, 100.0), GATHER: (100.0, 100.0)}
    assert {collective: GLOO.copies(collective, 4, 100) for collective in by_torch} == by_torch
    assert {OURS.copies(collective, 4, 100) for collective in by_torch} == {(0.0, 0.0)}


def test_new_memory_is_slow_only_where_the_system_gives_it() -> None:
    """Up to 32 MiB a process keeps what it has freed."""
    limit = NEW_BEYOND_BYTES
    assert copy_s(HOST, 2, 0.0, limit) == pytest.approx(limit / 1e9)
    assert copy_s(HOST, 2, 0.0, 2 * limit) == pytest.approx(2 * limit / 1e8)


def test_ranks_beyond_the_cores_wait() -> None:
    """Six on two cores take three times as long; on hosts of two each none waits."""
    assert copy_s(HOST, 6, 1e9) == pytest.approx(3.0)
    assert copy_s(HOST.with_spec(ranks_per_host=2), 6, 1e9) == pytest.approx(1.0)
