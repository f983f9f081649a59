"""A compiled model in bfloat16 with capped scores and its own precision, as speedruns have it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, HEADS, LAYERS, VOCABULARY, BATCH, LENGTH = 256, 4, 2, 1024, 4, 256

dist.init_process_group(backend="nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())


def norm(x):
    return nn.functional.rms_norm(x, (x.shape[-1],))


class Linear(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight.type_as(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads, self.output = Linear(WIDTH, 3 * WIDTH, bias=False), Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = Linear(WIDTH, 4 * WIDTH, bias=False), Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        query, key, value = (
            each.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for each in self.heads(norm(x)).chunk(3, -1)
        )
        y = nn.functional.scaled_dot_product_attention(norm(query), norm(key), value, is_causal=True)
        x = x + self.output(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.relu(self.up(norm(x))).square())


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH).bfloat16()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens, targets):
        x = norm(self.tokens(tokens))
        for block in self.blocks:
            x = block(x)
        scores = self.head(norm(x)).float()
        return nn.functional.cross_entropy((15 * torch.tanh(scores / 15)).flatten(0, 1), targets.flatten())


model = DistributedDataParallel(
    torch.compile(GPT().cuda(), dynamic=False), device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=True
)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
for step in range(8):
    started.record()
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), device="cuda")
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    optimizer.step()
    model.zero_grad(set_to_none=True)
    ended.record()
    torch.cuda.synchronize()
    print(started.elapsed_time(ended), torch.cuda.max_memory_allocated() // 1024 // 1024)
