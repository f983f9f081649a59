"""`sample_continuation`: what a language model writes when it is asked to go on."""

import numpy as np
import torch
from torch import nn

from trainers.tasks.config import ModelConfig
from trainers.tasks.data import NUM_BYTE_VALUES, Tokens
from trainers.tasks.evaluating import evaluating

TEMPERATURE = 0.8  # a little below 1: fewer slips into what the model itself finds unlikely


def sample_continuation(
    model: nn.Module,
    prompt: Tokens,
    sequence_length: int,
    num_tokens: int,
    num_choices: int,
    seed: int,
    temperature: float = TEMPERATURE,
) -> list[int]:
    """The tokens that `model` draws after `prompt`, each below `num_choices`.

    sequence_length: the most tokens it can look back at. seed: of the draws, which leave torch's global generator as
    it is.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor(prompt.tolist())
    with evaluating(model) as device:
        for _ in range(num_tokens):
            logits = model(tokens[-sequence_length:].unsqueeze(0).to(device))[0, -1, :num_choices]
            # No numbers come from a model that has diverged, and that too should be shown rather than end in an error.
            likely = torch.softmax(torch.nan_to_num(logits.float().cpu() / temperature), dim=0)
            tokens = torch.cat([tokens, torch.multinomial(likely, 1, generator=generator)])
    drawn: list[int] = tokens[len(prompt) :].tolist()
    return drawn


def continue_text(
    model: nn.Module, config: ModelConfig, prompt: bytes, num_bytes: int, seed: int, temperature: float
) -> bytes:
    """The bytes that a model of this shape draws after `prompt`."""
    tokens = np.frombuffer(prompt, dtype=np.uint8)
    length = config.sequence_length
    return bytes(sample_continuation(model, tokens, length, num_bytes, NUM_BYTE_VALUES, seed, temperature))
