"""How messages travel: what device and backend decide, and what is refused."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.calls.algorithm_choice import require_network
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
