"""Compiled programs communicate as eager ones do: Dynamo leaves our process group and our functions alone."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import collectives
from tests.collectives.integrations.test_ddp_hook import batch, model
from tests.ranks import RankPool, group_on


def gradients(group: dist.ProcessGroup, way: str, compiler: str, backend: str) -> list[torch.Tensor]:
    """The gradients of three backward passes, of which `way` says how many are compiled."""
    torch._dynamo.reset()
    group = group_on(backend, group.size())
    kind = collectives.DistributedDataParallel if way == "ours" else DistributedDataParallel
    module = kind(model(), process_group=group)
    called = torch.compile(module, backend=compiler) if way in ("model", "ours") else module
    if way == "in place":
        module.compile(backend=compiler)

    def step(batch: torch.Tensor) -> None:
        called(batch).square().mean().backward()

    make_step = torch.compile(step, backend=compiler) if way == "step" else step
    for number in range(3):
        make_step(batch(group.rank(), number))
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
@pytest.mark.parametrize("way", ["model", "ours", "in place", "step"])
def test_distributed_data_parallel(ring_ranks: RankPool, way: str, compiler: str) -> None:
    """On "ring", compiled from outside, the gradients are those of eager mode on Gloo."""
    ours = ring_ranks.run(gradients, way, compiler, "ring", num_ranks=2)
    assert [len(each) for each in ours] == [6, 6]
    torch.testing.assert_close(ours, ring_ranks.run(gradients, "eager", compiler, "gloo", num_ranks=2))


def communicate(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Call what returns a handle, what does not, and our own functions, with arithmetic in between."""
    total, whole = tensor * 2, tensor.new_empty(group.size() * 6)
    work = dist.all_reduce(total, group=group, async_op=True)
    tensor = tensor + 1
    work.wait()
    dist.broadcast(total := total + tensor, group_src=1, group=group)
    dist.all_gather_into_tensor(whole, total, group=group, async_op=True).wait()
    dist.barrier(group)
    collectives.all_reduce(whole := whole + 1, group=group)
    collectives.all_reduce(whole, group=group, async_op=True).get_future().wait()
    return whole * 2


def compiled_and_not(group: dist.ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
    """The results of a compiled function, and of the plain one."""
    on, tensor = group_on("ring", group.size()), torch.arange(6.0) + group.rank()
    return torch.compile(communicate, backend="eager")(tensor, on), communicate(tensor, group)


def test_calls_within_a_compiled_function(ring_ranks: RankPool) -> None:
    """They end the graph, and do what they do elsewhere."""
    for compiled, plain in ring_ranks.run(compiled_and_not, num_ranks=2):
        assert torch.equal(compiled, plain)
