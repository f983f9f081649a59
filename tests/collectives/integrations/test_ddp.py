"""`collectives.DistributedDataParallel` against torch's own over the same collectives: the same bits."""

import copy
import io
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.join import Join

import collectives
from collectives import HookState, ddp_comm_hook
from collectives.runtime import CollectiveQueue
from collectives.runtime.sharing import TRANSPORT
from tests.collectives.integrations.test_ddp_hook import SMALL_BUCKETS_MB, batch
from tests.collectives.shared_groups import shared_by
from tests.ranks import RankPool, group_on
from tests.refusals import said_by


class Branches(nn.Module):
    """A model of which some parameters may have no part in a step, with buffers, and of several dtypes."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(7, 10), nn.BatchNorm1d(10)
        self.left, self.right = nn.Linear(10, 5, dtype=dtype), nn.Linear(10, 5, dtype=dtype)

    def forward(self, batch: torch.Tensor, side: str) -> torch.Tensor:
        """Through the branch, or both."""
        hidden = self.norm(self.first(batch)).tanh().to(self.left.weight.dtype)
        outputs = [getattr(self, name)(hidden) for name in ("left", "right") if side in (name, "both")]
        return torch.stack(outputs).sum(0).float()


Trained = list[bytes]


def bits(tensors: Iterator[torch.Tensor]) -> Trained:
    """Of each tensor."""
    return [tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]


def train(
    module: Any, rank: int, steps: int = 4, side: Callable[[int], str] = lambda _: "both", accumulated: int = 1
) -> Trained:
    """The gradients of all steps, and at last the parameters and the buffers."""
    optimizer, trained = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for micro in range(accumulated):
            with module.no_sync() if micro < accumulated - 1 else nullcontext():
                module(batch(rank, 10 * step + micro), side(step)).square().mean().backward()
        trained += bits(each.grad for each in module.parameters() if each.grad is not None)
        optimizer.step()
    return trained + bits(module.parameters()) + bits(module.buffers())


def with_join(module: Any, rank: int) -> Trained:
    """With fewer steps on some ranks than on others."""
    with Join([module]):
        return train(module, rank, 2 + rank)[-11:]


def with_hook(hook: Callable[..., Any], state: Any) -> Callable[[Any, int], Trained]:
    """With a communication hook."""

    def trained(module: Any, rank: int) -> Trained:
        module.register_comm_hook(state(module), hook)
        return train(module, rank)

    return trained


def with_copies(module: Any, rank: int) -> Trained:
    """Gradients that are copied, and saved, between steps."""
    trained = train(module, rank, 2)
    gradients = [each.grad for each in module.parameters()]
    torch.save(gradients, file := io.BytesIO())
    file.seek(0)
    return [*trained, *bits(iter(copy.deepcopy(gradients))), *bits(iter(torch.load(file))), *train(module, rank, 2)]


OPTIONS: dict[str, dict[str, Any]] = {
    "a small bucket for each parameter": {"bucket_cap_mb": SMALL_BUCKETS_MB},
    "find_unused_parameters": {"find_unused_parameters": True, "bucket_cap_mb": SMALL_BUCKETS_MB},
    "static_graph": {"static_graph": True, "bucket_cap_mb": SMALL_BUCKETS_MB},
    "gradients apart": {"gradient_as_bucket_view": False},
}
WAYS: dict[str, Callable[[Any, int], Trained]] = {
    "plain": train,
    "unused": lambda module, rank: train(module, rank, side=lambda step: ("left", "both", "right")[(step + rank) % 3]),
    "no_sync": lambda module, rank: train(module, rank, accumulated=3),
    "join": with_join,
    "our hook": with_hook(ddp_comm_hook, lambda module: HookState(module.process_group, algorithm="two_shot")),
    "torch's hook": with_hook(fp16_compress_hook, lambda module: module.process_group),
    "copies": with_copies,
}
CASES = [
    *((way, "", "float32") for way in WAYS if way != "unused"),
    *(("plain", options, "float32") for options in OPTIONS),
    *((way, "a small bucket for each parameter", "float32") for way in ("no_sync", "join")),
    ("unused", "find_unused_parameters", "float32"),
    ("plain", "", "float64"),
]


def both(group: dist.ProcessGroup, way: str, options: str, dtype: str) -> tuple[bool, bool, bool]:
    """Return whether our class, and torch's, do the same; and whether gradients lie in shared memory: ours, torch's."""
    group, results, are_lent = group_on("ring", group.size()), [], []
    for kind in (collectives.DistributedDataParallel, nn.parallel.DistributedDataParallel):
        keywords = {"gradient_as_bucket_view": True} | OPTIONS.get(options, {})
        module = kind(Branches(getattr(torch, dtype)), None, process_group=group, **keywords)
        results.append(WAYS[way](module, group.rank()))
        gradients = [each.grad for each in module.parameters() if each.grad is not None]
        local = shared_by(group).local
        are_lent.append(local is not None and all(local.lend(gradient) is not None for gradient in gradients))
    return results[0] == results[1], are_lent[0], are_lent[1]


@pytest.mark.parametrize(("way", "options", "dtype"), CASES)
def test_the_same_as_torchs(ring_ranks: RankPool, way: str, options: str, dtype: str) -> None:
    """The same gradients, parameters and buffers, step by step, whatever it is asked to do."""
    is_lent = options != "gradients apart" and os.environ.get(TRANSPORT) != "gloo"
    assert ring_ranks.run(both, way, options, dtype, num_ranks=3) == [(True, is_lent, False)] * 3


def handed_over(group: dist.ProcessGroup, accumulated: int) -> tuple[int, int]:
    """Return how many buckets of a step are summed by the queue's thread, and how many by that of the backward pass."""
    group = group_on("ring", group.size())
    module = collectives.DistributedDataParallel(Branches(), process_group=group, bucket_cap_mb=SMALL_BUCKETS_MB)
    train(module, group.rank(), steps=2)  # from now on the buckets are those of the order of gradients
    started, run = (
        mock.patch.object(CollectiveQueue, name, autospec=True, side_effect=getattr(CollectiveQueue, name))
        for name in ("start", "run")
    )
    for micro in range(accumulated):
        with module.no_sync() if micro < accumulated - 1 else nullcontext():
            loss = module(batch(group.rank(), micro), "both").sum()
            with started as by_queue, run as here:
                loss.backward()
    return by_queue.call_count, here.call_count


@pytest.mark.parametrize("accumulated", [1, 3])
def test_the_last_bucket_alone_is_not_handed_over(ring_ranks: RankPool, accumulated: int) -> None:
    """The thread of the backward pass would wait for it; the buckets before it are summed while it goes on."""
    for by_queue, here in ring_ranks.run(handed_over, accumulated, num_ranks=2):
        assert here == 1
        assert by_queue > 1


def differentiated(module: nn.Module, given: torch.Tensor) -> None:
    """Run both passes, of which the second can be differentiated again."""
    torch.autograd.grad(module(given).sum(), given, create_graph=True)


def refusals_of_what_is_not_synchronised(group: dist.ProcessGroup) -> list[str]:
    """Of a model that changes after it was wrapped, and of a double backward pass of a static graph."""
    told = []
    for case in ("added", "converted", "double backward"):
        layer = nn.Linear(3, 3)
        ours = collectives.DistributedDataParallel(layer, process_group=group, static_graph=case == "double backward")
        if case == "added":
            layer.extra = nn.Parameter(torch.ones(3))
        if case == "converted":
            layer.double()
        given = torch.ones(1, 3, dtype=layer.weight.dtype, requires_grad=True)
        told.append(said_by(RuntimeError, differentiated, ours, given))
    return told


def test_what_would_not_be_synchronised_is_refused(ring_ranks: RankPool) -> None:
    """In place of ranks that diverge without a word, as with torch's own class."""
    for added, converted, double in ring_ranks.run(refusals_of_what_is_not_synchronised, num_ranks=1):
        assert "is new or requires a gradient only since the model was wrapped" in added
        assert "has become torch.float64 since the model was wrapped" in converted
        assert double.startswith("static_graph=True: torch would synchronise the first gradients before")
