"""Gloo's polling threads, and what the kernel is told of them."""

import os
import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from collectives.runtime import gloo_threads
from tests.ranks import RankPool

pytestmark = pytest.mark.skipif(not gloo_threads.TASKS.exists(), reason="not Linux: threads have no folders")


def policies(_: dist.ProcessGroup) -> tuple[int, bool, bool, set[int], int]:
    """How many threads there are, whether all are calm: as told, and when they are no longer; whose policy changed."""
    found = gloo_threads.calm_polling()
    calm = gloo_threads.is_calm()
    own = os.sched_getscheduler(threading.get_native_id())
    threads = [int(task.name) for task in gloo_threads.TASKS.glob("*")]
    batch = {each for each in threads if os.sched_getscheduler(each) == os.SCHED_BATCH}
    names = {(gloo_threads.TASKS / str(each) / "comm").read_text().strip() for each in batch}
    assert names == {gloo_threads.GLOO_THREAD}
    gloo_threads.calm_polling(calm=False)
    assert {os.sched_getscheduler(each) for each in batch} == {os.SCHED_OTHER}
    restless = gloo_threads.is_calm()
    gloo_threads.calm_polling()
    return found, calm, restless, {len(batch)}, own


def test_only_gloos_threads_are_told(ranks: RankPool) -> None:
    """All of them, one for each group; the callers keep their policy."""
    for found, calm, restless, batch, own in ranks.run(policies, num_ranks=2):
        assert found > 0
        assert batch == {found}
        assert calm
        assert not restless
        assert own == os.SCHED_OTHER


def ring_beside(group: dist.ProcessGroup) -> list[bool]:
    """Whether a thread is calm: of a group that is told not to be, and of one of the backend "ring" made after that."""
    gloo_threads.calm_polling(calm=False)
    before = gloo_threads._gloo_threads()
    ring = dist.new_group(list(range(group.size())), backend="ring")
    found = [before, gloo_threads._gloo_threads() - before]
    policies = [{os.sched_getscheduler(thread) for thread in threads} for threads in found]
    dist.destroy_process_group(ring)
    gloo_threads.calm_polling()
    return [policy == {os.SCHED_BATCH} for policy in policies]


def test_a_group_of_ours_calms_its_own(ranks: RankPool) -> None:
    """And leaves the others as the program wants them: `--no-calm` holds with the strategy ddp_on_ring, too."""
    assert ranks.run(ring_beside, num_ranks=5) == [[False, True]] * 5


def test_a_thread_that_has_no_name_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new group's thread is waited for: on a busy machine it may not have run when the group is made."""
    looks = iter([{1}, {1}, {1}, {1, 2}])
    told: list[set[int]] = []
    monkeypatch.setattr(gloo_threads, "_gloo_threads", lambda: next(looks))
    monkeypatch.setattr(gloo_threads, "_tell", lambda threads, calm: told.append(threads) or calm)
    with gloo_threads.calm_new_polling():
        pass
    assert told == [{2}]


def test_a_process_without_gloo_has_nothing_to_calm() -> None:
    """Nor has a system without such folders."""
    assert gloo_threads.calm_polling() == 0
    assert not gloo_threads.is_calm()


def test_a_system_that_forbids_it_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As seccomp may; a thread that ends meanwhile is no fault either."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "comm").write_text("gloo_tcp_loop\n")
    (tmp_path / "2").mkdir()  # has no name any more
    monkeypatch.setattr(gloo_threads, "TASKS", tmp_path)
    monkeypatch.setattr(os, "sched_setscheduler", _refuse)
    assert gloo_threads.calm_polling() == 0


def _refuse(*_: object) -> None:
    raise PermissionError
