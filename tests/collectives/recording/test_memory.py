"""A trace has the peak of memory in a step, and the memory held at its end, by kind."""

import pytest

from ringsim.traces import Device, HeldBytes, StepMemory
from tests.collectives.recording.recorded import IMPORTS, trace_of

pytestmark = pytest.mark.parametrize("is_fake", [True, False])

WIDTH, LAYERS, NUM_RANKS = 64, 4, 4
PROGRAM = f"""{IMPORTS}
import gc
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
WAY, BATCH = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
if WAY in ("cuda", "hook"):
    torch.set_default_device("cuda")
num_layers = 1 if WAY in ("plain", "kept") else {LAYERS}
model = nn.Sequential(*[nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range(num_layers)])
if WAY in ("ddp", "cuda", "hook"):
    model = nn.parallel.DistributedDataParallel(model)
if WAY == "hook":
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
if WAY == "fsdp":
    for layer in (*model, model):
        fully_shard(layer)
unused = torch.empty(1000) if WAY == "kept" else None
if WAY == "kept":
    gc.freeze()  # puts aside what there is
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
while True:
    for _ in range(2 if WAY == "accumulates" else 1):
        if WAY == "kept":
            scores = model(torch.ones(BATCH, {WIDTH}))
            scores.sum().backward()
        else:
            model(torch.ones(BATCH, {WIDTH})).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LAYER = 4 * WIDTH * WIDTH  # bytes of a weight
FEW, MANY = WIDTH // 16, WIDTH * 16  # samples
NUMBER = 4  # bytes of a loss, and of its gradient


def memory_of(way: str, batch: int, is_fake: bool, device: Device = Device.CPU) -> StepMemory:
    """The memory of the watched step."""
    memory = trace_of(PROGRAM, way, str(batch), num_ranks=NUM_RANKS, is_fake=is_fake, device=device).memory
    assert memory is not None
    return memory


ROWS_OF_FEW, ROWS_OF_MANY = 4 * FEW * WIDTH, 4 * MANY * WIDTH  # bytes


@pytest.mark.parametrize(
    ("way", "batch", "peak", "rest_at_end"),
    [
        ("plain", MANY, HeldBytes(LAYER, 0, LAYER, 2 * ROWS_OF_MANY + NUMBER), 0),  # in the forward pass
        ("plain", FEW, HeldBytes(LAYER, LAYER, LAYER, ROWS_OF_FEW + 2 * NUMBER), 0),  # in the backward pass
        # The last step's result counts until there is another, and a tensor that nobody reads.
        ("kept", MANY, HeldBytes(LAYER, 0, LAYER, 4000 + 3 * ROWS_OF_MANY), 4000 + ROWS_OF_MANY),
    ],
)
def test_the_peak_is_where_most_is_held(way: str, batch: int, peak: HeldBytes, rest_at_end: int, is_fake: bool) -> None:
    """With many samples in the forward pass, with few of them in the backward pass; what was there before counts."""
    memory = memory_of(way, batch, is_fake)
    assert (memory.peak, memory.end) == (peak, HeldBytes(LAYER, LAYER, LAYER, rest_at_end))


def test_buckets_count(is_fake: bool) -> None:
    """DistributedDataParallel holds them in C++, as large as all gradients."""
    assert memory_of("ddp", FEW, is_fake).end == HeldBytes(*[LAYERS * LAYER] * 4)
    assert memory_of("cuda", FEW, is_fake, Device.CUDA).end == HeldBytes(*[LAYERS * LAYER] * 4)
    assert memory_of("hook", FEW, is_fake, Device.CUDA).end.rest >= LAYERS * LAYER


def test_a_model_may_be_called_twice_in_a_step(is_fake: bool) -> None:
    """Gradients of the first pass are there while the second goes on: a layer's is made and added to its own."""
    memory = memory_of("accumulates", FEW, is_fake)
    assert memory.end == HeldBytes(*[LAYERS * LAYER] * 3, 0)
    assert memory.peak.gradients == LAYERS * LAYER
    assert LAYER < memory.peak.rest < 2 * LAYER


def test_a_rank_of_fsdp_holds_its_share(is_fake: bool) -> None:
    """In the backward pass a layer is gathered, the next one is, too, and it has a gradient while another is sent.

    The inputs of two layers and their gradients are there then, and at the end nothing but shares. With data, a few
    numbers describe the mesh.
    """
    memory = memory_of("fsdp", FEW, is_fake)
    share = LAYERS * LAYER // NUM_RANKS
    end, peak = memory.end, memory.peak
    assert end == HeldBytes(share, share, share, end.rest)
    assert end.rest < 200
    assert (peak.parameters, peak.optimizer) == (share, share)
    assert peak.rest - end.rest == 4 * LAYER + 4 * 4 * FEW * WIDTH + 2 * NUMBER


def test_gradients_may_be_sparse(is_fake: bool) -> None:
    """Gradients of a recommender's tables: their indices and values count."""
    model = "table = nn.EmbeddingBag(99, 4, sparse=True)\noptimizer = torch.optim.SGD(table.parameters())\n"
    step = "for _ in range(9):\n    table(torch.arange(16).view(2, 8)).sum().backward()\n    optimizer.step()\n"
    step += "    optimizer.zero_grad()\n"
    memory = trace_of(f"{IMPORTS}\ndist.init_process_group('gloo')\n{model}{step}", is_fake=is_fake).memory
    assert memory is not None
    assert (memory.end.parameters, memory.end.gradients) == (99 * 4 * 4, 16 * (8 + 4 * 4))


def test_an_optimizer_may_keep_its_state_in_objects(is_fake: bool) -> None:
    """Shampoo has its factors in dataclasses, in a dictionary for each block of a parameter."""
    program = f"""{IMPORTS}
from types import SimpleNamespace
class Shampoo(torch.optim.SGD):
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            if not self.state[parameter]:
                factors = SimpleNamespace(left=(torch.zeros(16, 16),), of=self)
                self.state[parameter]["block_0"] = {{"shampoo": factors}}
        super().step()
dist.init_process_group("gloo")
model = nn.Linear(16, 16, bias=False)
optimizer = Shampoo(model.parameters())
for _ in range(9):
    model(torch.ones(1, 16)).sum().backward()
    optimizer.step()
"""
    memory = trace_of(program, is_fake=is_fake).memory
    assert memory is not None
    assert memory.end == HeldBytes(*[4 * 16 * 16] * 3, memory.end.rest)
