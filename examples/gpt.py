"""A GPT that learns to write like Python's help pages: `torchrun --nproc-per-node 2 examples/gpt.py --backend ring`.

It is an ordinary DistributedDataParallel program in one file; `--backend gloo` trains the same model on Gloo. The text
comes with Python, so nothing is downloaded. On two ranks both backends give the same losses and weights, bit for bit.
"""

import argparse
import hashlib
import math
import os
import sys
from collections.abc import Iterator
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import collectives  # noqa: F401  the one line more: it makes "ring" known

HELD_OUT = 10  # one character in so many, at the end of the text
EVALUATED = 8  # batches of each rank
SPREAD = 0.05  # of the first weights; wider than GPT-2's 0.02, as this model is narrower


class Attention(nn.Module):
    """Each position looks at itself and at those before it, with several heads at once."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, length, width)."""
        batch, length, width = x.shape
        parts = self.queries_keys_values(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, width of a head)
        looked_up = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(looked_up.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """Attention, then a small network for each position; each adds to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before_attention, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, length, width)."""
        x = x + self.attention(self.before_attention(x))
        out: Tensor = x + self.mlp(self.before_mlp(x))
        return out


class Gpt(nn.Module):
    """The decoder of Radford et al. 2019 (GPT-2), without dropout; the embedding is the last layer, too."""

    def __init__(self, vocabulary: int, context: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.context = context
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                # What each block adds is smaller, so that the sum does not grow with the number of blocks.
                adds = name.endswith(("attention.out.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=SPREAD / math.sqrt(2 * layers) if adds else SPREAD)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (batch, length); returns the scores of the next one, (batch, length, vocabulary)."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return functional.linear(self.norm(self.blocks(x)), self.tokens.weight)

    @torch.no_grad()
    def continued(self, tokens: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """The tokens, (length,), and `count` more, each drawn from what the model finds likely."""
        for _ in range(count):
            scores = self(tokens[-self.context :].unsqueeze(0))[0, -1]
            likely = torch.softmax(scores / 0.8, dim=0)  # a little bolder than the model is
            tokens = torch.cat([tokens, torch.multinomial(likely, 1, generator=generator)])
        return tokens


def batches(tokens: Tensor, options: argparse.Namespace, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows drawn at random, and the same windows one token later: (batch, context) each."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(options.context)
    while True:
        starts = torch.randint(len(tokens) - options.context, (options.batch_size, 1), generator=generator)
        yield tokens[starts + offsets], tokens[starts + offsets + 1]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean cross entropy of the next token, in nats."""
    inputs, targets = batch
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def mean_over_ranks(value: Tensor, group: dist.ProcessGroup | None) -> float:
    """The same on every rank."""
    total = value.detach().clone()
    dist.all_reduce(total, group=group)
    return total.item() / dist.get_world_size(group)


def learning_rate(step: int, options: argparse.Namespace) -> float:
    """It grows in the first twentieth of the steps, and then falls to a tenth along a cosine."""
    warm_up = max(options.steps // 20, 1)
    if step < warm_up:
        return float(options.learning_rate * (step + 1) / warm_up)
    done = (step - warm_up) / max(options.steps - warm_up, 1)
    return float(options.learning_rate * (0.55 + 0.45 * math.cos(math.pi * done)))


def train(options: argparse.Namespace, group: dist.ProcessGroup | None = None) -> tuple[list[float], Gpt]:
    """Train on every rank of the group; returns the mean loss of the ranks in each step, and the model."""
    tokens, characters = encoded(english_text())
    training = tokens[: -(len(tokens) // HELD_OUT)]
    torch.manual_seed(options.seed)  # the same weights on every rank
    model = Gpt(len(characters), options.context, options.layers, options.heads, options.width)
    parallel = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.AdamW(parallel.parameters(), weight_decay=0.1, betas=(0.9, 0.95))
    losses = []
    drawn = batches(training, options, seed=1000 * options.seed + dist.get_rank(group))  # each rank its own
    for step, batch in zip(range(options.steps), drawn, strict=False):
        optimizer.param_groups[0]["lr"] = learning_rate(step, options)
        optimizer.zero_grad()
        loss = loss_of(parallel, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
        optimizer.step()
        losses.append(mean_over_ranks(loss, group))
        if dist.get_rank(group) == 0 and (step % 50 == 0 or step + 1 == options.steps):
            print(f"{dist.get_backend(group)}: step {step}: loss {losses[-1]:.6f}")
    return losses, model


def english_text() -> str:
    """Some 466,000 characters, which differ a little between versions of Python."""
    return "\n".join(topics[name] for name in sorted(topics))


def encoded(text: str) -> tuple[Tensor, str]:
    """Each character's number, (length,), and the characters by number."""
    characters = "".join(sorted(set(text)))
    numbers = {character: number for number, character in enumerate(characters)}
    return torch.tensor([numbers[character] for character in text]), characters


@torch.no_grad()
def report(model: Gpt, options: argparse.Namespace) -> None:
    """Judge the model on text that it has not seen, with all ranks; rank 0 prints that, and what the model writes."""
    tokens, characters = encoded(english_text())
    held_out = batches(tokens[-(len(tokens) // HELD_OUT) :], options, seed=dist.get_rank())
    loss = torch.stack([loss_of(model, next(held_out)) for _ in range(EVALUATED)]).mean()
    mean = mean_over_ranks(loss, None)
    if dist.get_rank() == 0:
        weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
        print(f"{dist.get_backend()}: held-out loss {mean:.6f}, weights {hashlib.sha256(weights).hexdigest()[:16]}")
        start = torch.tensor([characters.index(character) for character in "The "])
        written = model.continued(start, options.sample, torch.Generator().manual_seed(options.seed))
        print("".join(characters[number] for number in written.tolist()))


def read_options(arguments: list[str]) -> argparse.Namespace:
    """What is asked for; the defaults take half a minute on two cores."""
    parser = argparse.ArgumentParser(prog="gpt.py", description="Train a small GPT on Python's help pages.")
    parser.add_argument("--backend", choices=("ring", "gloo"), default="ring", help="of torch.distributed (ring)")
    sizes = {"steps": 600, "batch-size": 16, "context": 64, "layers": 2, "heads": 4, "width": 128, "sample": 300}
    for name, default in {**sizes, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"({default})")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="(0.003)")
    options = parser.parse_args(arguments)
    for name in sizes:
        if (value := getattr(options, name.replace("-", "_"))) < 1:
            parser.exit(2, f"gpt.py: --{name} {value}: must be at least 1\n")
    if options.width % options.heads:
        parser.exit(2, f"gpt.py: --width {options.width}: must be divisible by --heads {options.heads}\n")
    return options


if __name__ == "__main__":
    chosen = read_options(sys.argv[1:])
    if "RANK" not in os.environ:  # torchrun sets it
        print("gpt.py: start it with torchrun --nproc-per-node 2 examples/gpt.py --backend ring", file=sys.stderr)
        sys.exit(2)
    dist.init_process_group(chosen.backend)
    report(train(chosen)[1], chosen)
    dist.destroy_process_group()
