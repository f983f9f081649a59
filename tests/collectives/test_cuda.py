"""CUDA tensors: on NCCL with one rank, on Gloo with several that share a GPU; the same cases on the CPU everywhere."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.calls.functions import all_reduce_coalesced
from tests.collectives.integrations.test_ddp_hook import batches_of, model, train
from tests.collectives.shared_groups import finish
from tests.ranks import RankPool, group_on

ON_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
NCCL_BACKENDS = ("nccl", "cpu:gloo,cuda:nccl")
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_A_GPU)])


@pytest.fixture(scope="module")
def nccl() -> Iterator[RankPool]:
    """One rank, with NCCL for CUDA tensors and nothing for others; NCCL wants a GPU for each rank."""
    with RankPool(1, backends=NCCL_BACKENDS) as pool:
        yield pool


def numbers(rank: int, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Such that the order of additions shows."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * seed + rank)) * 50


def every_call(group: dist.ProcessGroup, device: str, async_op: bool) -> list[torch.Tensor]:
    """The results of one call of every function, back on the CPU; all begun before any is waited for.

    Before each of them ranks compare what they are about to do. A callback of the first one doubles its result.
    """
    collectives.check_calls(group)
    rank, n = group.rank(), group.size()
    given = iter(range(100))

    def tensor(*shape: int) -> torch.Tensor:
        return numbers(rank, shape, next(given)).to(device)

    how: dict[str, Any] = {"group": group, "async_op": async_op}
    whole, strided, narrow, copied, reduced = tensor(70_000), tensor(9, 8).t()[::2], tensor(50), tensor(33), tensor(34)
    share, shares, several = tensor(11), tensor(5), [tensor(3), tensor(4, 2)]
    gathered, listed = torch.empty(n, 11, device=device), [torch.empty(5, device=device) for _ in range(n)]
    scattered, list_scattered = torch.empty(6, device=device), torch.empty(7, device=device)
    works = [
        collectives.all_reduce(whole, **how),
        collectives.all_reduce(strided, dist.ReduceOp.AVG, algorithm="recursive_doubling", **how),
        collectives.all_reduce(narrow, wire=torch.bfloat16, **how),
        collectives.broadcast(copied, group_src=n - 1, **how),
        collectives.reduce(reduced, group_dst=0, **how),
        collectives.all_gather_into_tensor(gathered, share, **how),
        collectives.all_gather(listed, shares, **how),
        collectives.reduce_scatter_tensor(scattered, tensor(6 * n), **how),
        collectives.reduce_scatter(list_scattered, [tensor(7) for _ in range(n)], **how),
        all_reduce_coalesced(several, **how),
        collectives.barrier(**how),
    ]
    collectives.check_calls(group, collectives.CallCheck.NEW)
    doubled = works[0].get_future().then(lambda future: future.value()[0] * 2).wait() if works[0] else whole * 2
    assert {work is not None for work in works} == {async_op}
    finish(*works)
    results = [whole, strided, narrow, copied, reduced, gathered, *listed, scattered, list_scattered, *several, doubled]
    return [result.cpu() for result in results]


def overlapped(group: dist.ProcessGroup, device: str, async_op: bool) -> torch.Tensor:
    """Calls on a stream that is busy, each on what the stream has yet to make, and used as soon as they come back."""
    with torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else nullcontext():
        tensor = torch.zeros(100_000, device=device)
        total = torch.zeros_like(tensor)
        for index in range(5):
            if device == "cuda":
                torch.cuda._sleep(50_000_000)  # tens of milliseconds, in which the call is long made
            tensor.fill_(index + group.rank())
            finish(collectives.all_reduce(tensor, group=group, async_op=async_op))
            total.add_(tensor)
        return total.cpu()


def dropped(group: dist.ProcessGroup, device: str) -> list[float]:
    """The shares of inputs that are dropped while the call is under way, and whose memory is then asked for again."""
    shares, works = [], []
    for index in range(20):
        shares.append(torch.empty(50_000, device=device))
        whole = torch.full((50_000 * group.size(),), float(index), device=device)
        works.append(collectives.reduce_scatter_tensor(shares[-1], whole, group=group, async_op=True))
        del whole
        torch.full((50_000 * group.size(),), -1.0, device=device)
    assert None not in works
    finish(*works)
    return [float(share.min()) for share in shares] + [float(share.max()) for share in shares]


def trained(group: dist.ProcessGroup, device: str, way: str) -> list[torch.Tensor]:
    """The parameters after some steps of DistributedDataParallel."""
    of = group_on("ring", group.size()) if way == "backend" else group
    module = torch.nn.parallel.DistributedDataParallel(model().to(device), process_group=of, bucket_cap_mb=0.0001)
    if way == "hook":
        module.register_comm_hook(collectives.HookState(group), collectives.ddp_comm_hook)
    parameters = train(module, [batch.to(device) for batch in batches_of(group.rank())])
    return [parameter.cpu() for parameter in parameters]


def assert_same(results: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]) -> None:
    """To the last bit, rank by rank."""
    for got, wanted in zip(results, expected, strict=True):
        for index, (mine, other) in enumerate(zip(got, wanted, strict=True)):
            assert torch.equal(mine, other), index


@DEVICES
@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_every_call(ranks: RankPool, device: str, async_op: bool, num_ranks: int) -> None:
    """The bits of synchronous calls on the CPU, which other tests hold against the replay."""
    expected = ranks.run(every_call, "cpu", False, num_ranks=num_ranks)
    assert_same(ranks.run(every_call, device, async_op, num_ranks=num_ranks), expected)


@DEVICES
def test_streams(ranks: RankPool, device: str) -> None:
    """The call waits for what was asked before it, and what is asked after it waits for the call.

    Nobody else gets the memory of inputs that are dropped before the call has read it.
    """
    for async_op in (False, True):
        for total in ranks.run(overlapped, device, async_op, num_ranks=2):
            assert (total == sum(2 * index + 1 for index in range(5))).all()
    assert ranks.run(dropped, device, num_ranks=2) == [[2.0 * index for index in range(20)] * 2] * 2


@DEVICES
@pytest.mark.parametrize("way", ["hook", "backend"])
def test_training(ring_ranks: RankPool, device: str, way: str) -> None:
    """Alike on all ranks, and as on the CPU but for rounding."""
    results = ring_ranks.run(trained, device, way, num_ranks=2)
    assert_same(results[:1], results[1:])
    for got, wanted in zip(results[0], ring_ranks.run(trained, "cpu", way, num_ranks=2)[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def on_backend(_: dist.ProcessGroup, backend: str, case: Callable[..., Any], *arguments: Any) -> Any:
    """The case on the group of another backend than the pool's first."""
    return case(group_on(backend, 1), *arguments)


@ON_A_GPU
@pytest.mark.parametrize("backend", NCCL_BACKENDS)
def test_nccl_with_one_rank(nccl: RankPool, ranks: RankPool, backend: str) -> None:
    """Every function, streams, futures and checks; with and without a backend for the CPU beside it."""
    expected = ranks.run(every_call, "cpu", False, num_ranks=1)
    for async_op in (False, True):
        assert_same(nccl.run(on_backend, backend, every_call, "cuda", async_op), expected)
        assert (nccl.run(on_backend, backend, overlapped, "cuda", async_op)[0] == sum(range(5))).all()
    assert nccl.run(on_backend, backend, dropped, "cuda") == [[float(index) for index in range(20)] * 2]
