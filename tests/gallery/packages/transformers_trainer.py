"""Hugging Face's Trainer, with DDP or, if the argument is "fsdp", with FSDP2."""

import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

VOCABULARY, LENGTH = 1024, 128
config = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=LENGTH,
)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 1024

    def __getitem__(self, index):
        tokens = torch.randint(VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


fsdp = {
    "fsdp": "full_shard auto_wrap",
    "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
}
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        max_steps=8,
        per_device_train_batch_size=2,
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        dataloader_num_workers=2,
        gradient_checkpointing="fsdp" not in sys.argv,
        **(fsdp if "fsdp" in sys.argv else {}),
    )
    Trainer(LlamaForCausalLM(config), arguments, train_dataset=Tokens()).train()
