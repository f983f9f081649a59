"""How messages travel: what device and backend decide, what is refused, and the policy of Gloo's polling threads."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.calls.algorithm_choice import require_network
from collectives.runtime import backends
from collectives.runtime.backends import Transport, find_transport, home_of
from tests.collectives.travel import travelling
from tests.ranks import RankPool, group_on
from tests.refusals import refused


class Group:
    """As much of a process group of two ranks as is asked for its backends."""

    def __init__(self, **backends: str) -> None:
        self.backends, self.size = backends, lambda: 2

    def _get_backend(self, device: torch.device) -> SimpleNamespace:
        if device.type not in self.backends:
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return SimpleNamespace(name=lambda: self.backends[device.type])


@pytest.mark.parametrize(
    ("backends", "device", "transport"),
    [
        ({"cpu": "gloo", "cuda": "gloo"}, "cpu", Transport.POSTED),
        ({"cpu": "gloo", "cuda": "gloo"}, "cuda:1", Transport.STAGED),
        ({"cpu": "gloo", "cuda": "nccl"}, "cuda:1", Transport.BATCHED),
        ({"cpu": "gloo", "cuda": "nccl"}, "cpu", Transport.POSTED),
        ({"cpu": "mpi"}, "cpu", Transport.BATCHED),
    ],
)
def test_device_and_backend_decide(backends: dict[str, str], device: str, transport: Transport) -> None:
    """Receives are posted ahead on Gloo alone, which sends no CUDA tensors."""
    group: Any = Group(**backends)
    assert find_transport(group, torch.device(device)) is transport
    assert home_of(group) == torch.device("cpu")  # small messages of our own stay there where they can


NO_CPU = (
    "the group has no backend for tensors on cpu: move them, or create the process group with one, "
    'such as dist.init_process_group("cpu:gloo,cuda:nccl")'
)


@pytest.mark.parametrize(("group", "device"), [(Group(cuda="nccl"), "cpu"), (Group(cuda="gloo"), "cuda:1")])
def test_what_cannot_travel_is_refused(group: Any, device: str) -> None:
    """In one line that says what to do. Small messages of our own are on the GPU where they must be."""
    with refused(NO_CPU):
        find_transport(group, torch.device(device))
    assert home_of(group).type == "cuda"


def test_the_probes_need_the_cpu() -> None:
    """The message says how to do without them."""
    with refused(
        "algorithm 'auto': the probes time tensors on the CPU, for which the group has no backend; name an "
        "algorithm, or calibrate and call collectives.use_network(network, group) first"
    ):
        require_network(Group(cuda="nccl"))  # type: ignore[arg-type]


def ways(group: dist.ProcessGroup) -> list[Transport]:
    """Of a CUDA tensor on Gloo and on our backend."""
    return [find_transport(each, torch.device("cuda:1")) for each in (group, group_on("ring", group.size()))]


def test_cuda_tensors_may_be_given_to_gloo_and_ring(ring_ranks: RankPool) -> None:
    """Real groups know a backend for them."""
    assert ring_ranks.run(ways, num_ranks=2) == [[Transport.STAGED] * 2] * 2


def single(group: dist.ProcessGroup) -> complex:
    """The sum of tensors of one element, whose stride is that of the tensor that it was cut from."""
    tensor = torch.full((4,), 1 + 2j, dtype=torch.complex128)[::2][:1]
    with travelling(group, Transport.BATCHED):
        collectives.all_reduce(tensor, group=group)
    return complex(tensor.item())


def test_a_single_element_may_have_any_stride(ranks: RankPool) -> None:
    """It counts as contiguous, but cannot be seen as bytes as it is."""
    assert ranks.run(single, num_ranks=2) == [2 + 4j] * 2


LINUX = pytest.mark.skipif(not backends.TASKS.exists(), reason="not Linux: threads have no folders")


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


@LINUX
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


@LINUX
def test_a_group_of_ours_sets_its_own(ranks: RankPool) -> None:
    """And leaves the others as the program wants them: "normal" holds with the strategy ddp_backend_ring, too."""
    assert ranks.run(ring_beside, num_ranks=5) == [[False, True]] * 5


@LINUX
def test_a_thread_that_has_no_name_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new group's thread is waited for: on a busy machine it may not have run when the group is made."""
    monkeypatch.setattr(backends, "_gloo_threads", Mock(side_effect=[{1}, {1}, {1, 2}]))
    assert backends._appeared_since({1}) == {2}


@LINUX
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
