"""accelerate's FullyShardedDataParallelPlugin of version 2, with accumulation and a clipped norm."""

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import set_seed
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, LENGTH = 1024, 128
set_seed(42)
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
    cpu_ram_efficient_loading=False,
)
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin, gradient_accumulation_steps=2)
config = LlamaConfig(
    vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=2, num_attention_heads=8
)
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
data = torch.utils.data.DataLoader([{"input_ids": torch.arange(LENGTH) % VOCABULARY} for _ in range(512)], batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for batch in data:
    with accelerator.accumulate(model):
        loss = model(**batch, labels=batch["input_ids"], use_cache=False).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.print(accelerator.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print(accelerator.reduce(loss.detach(), "mean").item())
