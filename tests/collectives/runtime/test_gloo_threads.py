"""Gloo's polling threads, and their scheduling policy."""

import os
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch.distributed as dist

from collectives.runtime import backends
from tests.ranks import RankPool
from tests.refusals import refused

pytestmark = pytest.mark.skipif(not backends.TASKS.exists(), reason="not Linux: threads have no folders")


def policies(_: dist.ProcessGroup) -> None:
    """The threads that are batch, once set and once reset."""
    num_set = backends.set_gloo_thread_policy()
    assert backends.have_gloo_threads_batch_policy()
    assert os.sched_getscheduler(threading.get_native_id()) == os.SCHED_OTHER
    batch = [task for task in backends.TASKS.glob("*") if os.sched_getscheduler(int(task.name)) == os.SCHED_BATCH]
    assert {(task / "comm").read_text().strip() for task in batch} == {backends.GLOO_THREAD}
    assert len(batch) == num_set > 0
    backends.set_gloo_thread_policy("normal")
    assert {os.sched_getscheduler(int(task.name)) for task in batch} == {os.SCHED_OTHER}
    assert not backends.have_gloo_threads_batch_policy()
    backends.set_gloo_thread_policy()


def test_only_gloos_threads_are_set(ranks: RankPool) -> None:
    """All of them, one for each group; the callers keep their policy."""
    ranks.run(policies, num_ranks=2)


def ring_beside(group: dist.ProcessGroup) -> list[bool]:
    """Whether a thread is batch: of a group that is set to normal, and of one of the backend "ring" made after that."""
    backends.set_gloo_thread_policy("normal")
    before = backends._gloo_threads()
    ring = dist.new_group(list(range(group.size())), backend="ring")
    both = [before, backends._gloo_threads() - before]
    policies = [{os.sched_getscheduler(thread) for thread in threads} for threads in both]
    dist.barrier(group)  # a rank that leaves while another still connects ends that one's attempt
    dist.destroy_process_group(ring)
    backends.set_gloo_thread_policy()
    return [policy == {os.SCHED_BATCH} for policy in policies]


def test_a_group_of_ours_sets_its_own(ranks: RankPool) -> None:
    """And leaves the others as the program wants them: "normal" holds with the strategy ddp_backend_ring, too."""
    assert ranks.run(ring_beside, num_ranks=5) == [[False, True]] * 5


def test_a_thread_that_has_no_name_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new group's thread is waited for: on a busy machine it may not have run when the group is made."""
    monkeypatch.setattr(backends, "_gloo_threads", Mock(side_effect=[{1}, {1}, {1, 2}]))
    assert backends._appeared_since({1}) == {2}


def test_a_system_without_such_threads_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A call that seccomp denies and a thread that ends meanwhile are no faults; an unknown policy is refused."""
    assert backends.set_gloo_thread_policy() == 0
    assert not backends.have_gloo_threads_batch_policy()
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "comm").write_text("gloo_tcp_loop\n")
    (tmp_path / "2").mkdir()  # has no name any more
    monkeypatch.setattr(backends, "TASKS", tmp_path)
    monkeypatch.setattr(os, "sched_setscheduler", Mock(side_effect=PermissionError))
    assert backends.set_gloo_thread_policy() == 0
    with refused("policy 'calm': must be one of batch, normal"):
        backends.set_gloo_thread_policy("calm")  # type: ignore[arg-type]
