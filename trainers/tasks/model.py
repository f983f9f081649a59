"""`TinyTransformer`, a causal language model small enough for a laptop, and `TextClassifier`."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  # the name everybody knows it by
from torch import Tensor, nn

from trainers.tasks.base import NUM_BYTE_VALUES, ModelConfig, evaluating

D_MODEL, HEADS, DROPOUT = 64, 4, 0.3
TEMPERATURE = 0.8  # a little below 1: fewer slips into what the model itself finds unlikely


class TinyTransformer(nn.Module):
    """A causal transformer with pre-norm blocks and weights from torch's global generator."""

    positions: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.sequence_length = config.sequence_length
        self.embedding = nn.Embedding(config.vocabulary, config.d_model)
        # As large as the positions (the root mean square of a sine); were it small, they would drown the tokens.
        nn.init.normal_(self.embedding.weight, std=math.sqrt(0.5))
        # Not persistent: it follows from the configuration, so a checkpoint need not carry it.
        self.register_buffer("positions", sinusoids(config.sequence_length, config.d_model), persistent=False)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.d_model)
        self.head = _linear(config.d_model, config.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token, (batch, sequence, vocabulary).

        tokens: (batch, sequence) int64, below the vocabulary. Raises ValueError for a sequence that is too long.
        """
        length = tokens.shape[1]
        if length > self.sequence_length:
            raise ValueError(f"sequence of {length} tokens: must be at most `sequence_length` {self.sequence_length}")
        stream = self.embedding(tokens) + self.positions[:length]
        logits: Tensor = self.head(self.norm(self.blocks(stream)))
        return logits


class Block(nn.Module):
    """Attention between positions, then an MLP on each position; both add to the stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.attention = CausalSelfAttention(config)
        self.mlp_norm = nn.LayerNorm(config.d_model)
        self.mlp = nn.Sequential(
            _linear(config.d_model, config.d_ff),
            nn.GELU(),
            _linear(config.d_ff, config.d_model, std=_branch_std(config)),
        )

    def forward(self, stream: Tensor) -> Tensor:
        """Return the new stream, (batch, sequence, d_model)."""
        stream = stream + self.attention(self.attention_norm(stream))
        added: Tensor = stream + self.mlp(self.mlp_norm(stream))
        return added


class CausalSelfAttention(nn.Module):
    """Causal multi-head attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query_key_value = _linear(config.d_model, 3 * config.d_model)
        self.output = _linear(config.d_model, config.d_model, std=_branch_std(config))

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor like x, (batch, sequence, d_model)."""
        batch, sequence, d_model = x.shape
        # (batch, sequence, 3 * d_model) -> three of (batch, heads, sequence, d_model / heads)
        split = self.query_key_value(x).view(batch, sequence, 3, self.heads, d_model // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        joined: Tensor = self.output(read.transpose(1, 2).reshape(batch, sequence, d_model))
        return joined


def sinusoids(num_positions: int, d_model: int) -> Tensor:
    """Return positional encodings, (num_positions, d_model); d_model is even.

    Even columns are sines, odd columns cosines, with wavelengths from 2 pi to nearly 10,000 * 2 pi positions (Vaswani
    et al. 2017, section 3.5).
    """
    position = torch.arange(num_positions).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10_000.0) / d_model))
    angle = position * frequency
    return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)


def next_token_loss(model: Callable[[Tensor], Tensor], windows: Tensor) -> Tensor:
    """Return the mean cross entropy, in nats, of each token given its predecessors.

    model: as `TinyTransformer`. windows: (batch, sequence_length + 1) int64.
    """
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def _linear(num_inputs: int, num_outputs: int, std: float = 0.02) -> nn.Linear:
    """Return a linear layer with small weights, so that an untrained model predicts nearly uniformly."""
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
    return layer


def _branch_std(config: ModelConfig) -> float:
    """Return the smaller deviation of layers that add to the stream, as in GPT-2."""
    return 0.02 / math.sqrt(2 * config.layers)


class TextClassifier(nn.Module):
    """A classifier of texts of different lengths; attention and mean ignore the padding."""

    def __init__(self, vocabulary: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, D_MODEL, padding_idx=0)
        self.dropout = nn.Dropout(DROPOUT)
        self.norm = nn.LayerNorm(D_MODEL)
        self.attention = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)
        self.head = nn.Linear(D_MODEL, num_classes)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Return the scores, (batch, num_classes). words, mask: as in `Padded`; words are below the vocabulary."""
        stream = self.dropout(self.embedding(words))
        normed = self.norm(stream)
        read, _ = self.attention(normed, normed, normed, key_padding_mask=~mask, need_weights=False)
        weights = mask.unsqueeze(2).to(stream.dtype)
        mean = ((stream + read) * weights).sum(dim=1) / weights.sum(dim=1)
        scores: Tensor = self.head(self.dropout(mean))
        return scores


def continue_text(
    model: nn.Module, sequence_length: int, prompt: bytes, num_bytes: int, seed: int, temperature: float = TEMPERATURE
) -> bytes:
    """Sample `num_bytes` bytes after `prompt`, without torch's global generator.

    sequence_length: maximum number of visible tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor(list(prompt))
    with evaluating(model) as device:
        for _ in range(num_bytes):
            logits = model(tokens[-sequence_length:].unsqueeze(0).to(device))[0, -1, :NUM_BYTE_VALUES]
            # A model that has diverged gives nan; its text should be shown rather than end in an error.
            likely = torch.softmax(torch.nan_to_num(logits.float().cpu() / temperature), dim=0)
            tokens = torch.cat([tokens, torch.multinomial(likely, 1, generator=generator)])
    return bytes(tokens[len(prompt) :].tolist())
