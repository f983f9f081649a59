"""A mixture of experts, one expert a rank: `torchrun --nproc-per-node 4 examples/moe.py --backend ring`.

The model guesses the next character of Python's help pages from the few before it. A router sends each position to one
expert (Switch Transformer: Fedus, Zoph and Shazeer 2021). The experts are on different ranks, so two all-to-alls with
uneven blocks carry the positions to their experts (dispatch) and the results back (combine). All other parameters are
the same on all ranks, and their gradients are averaged.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import collectives  # noqa: F401  the one line more: it makes "ring" known

BALANCE = 0.01  # the weight of the loss that keeps the experts equally busy
SHOWN = 20  # steps from one printed loss to the next


class Exchange(torch.autograd.Function):
    """An all-to-all of rows; its gradient takes the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        """rows: (sum(sent), width), the first sent[0] of them for rank 0; returns (sum(received), width)."""
        ctx.sizes, ctx.group = (sent, received), group
        arrived = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group)
        return arrived

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        """Return the gradient of each row to the rank that has sent it."""
        sent, received = ctx.sizes
        returned = gradient.new_empty(sum(sent), gradient.shape[1])
        dist.all_to_all_single(returned, gradient.contiguous(), sent, received, ctx.group)
        return returned, None, None, None


class MixtureOfExperts(nn.Module):
    """One expert of each rank, and a router that chooses one of them for each row.

    balance: the loss of the last forward pass that is least, 1, where all experts get as much.
    """

    def __init__(self, width: int, group: dist.ProcessGroup, seed: int) -> None:
        super().__init__()
        self.group, self.num_experts = group, dist.get_world_size(group)
        self.router = nn.Linear(width, self.num_experts, bias=False)
        with torch.random.fork_rng():  # another expert on every rank; the router is the same
            torch.manual_seed(1000 * seed + dist.get_rank(group) + 1)
            self.expert = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.balance = torch.zeros(())

    def forward(self, rows: Tensor) -> Tensor:
        """rows: (number, width); returns the same shape."""
        probabilities = torch.softmax(self.router(rows), dim=1)
        chosen = probabilities.argmax(dim=1)
        counts = torch.bincount(chosen, minlength=self.num_experts)
        self.balance = self.num_experts * (counts / len(rows) * probabilities.mean(dim=0)).sum()
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        order = chosen.argsort(stable=True)  # the rows for one expert after those for the one before
        sent, received = counts.tolist(), arriving.tolist()
        dispatched = Exchange.apply(rows[order], sent, received, self.group)
        combined = Exchange.apply(self.expert(dispatched), received, sent, self.group)
        results = torch.empty_like(combined).index_copy(0, order, combined)
        return results * probabilities.gather(1, chosen[:, None])  # through which the router learns


class Guesser(nn.Module):
    """The scores of the next character, from the last few."""

    def __init__(self, vocabulary: int, options: argparse.Namespace, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, options.width)
        self.mixed = nn.Linear(options.context * options.width, options.width)
        self.norm = nn.LayerNorm(options.width)
        self.experts = MixtureOfExperts(options.width, group, options.seed)
        self.out = nn.Linear(options.width, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        """characters: (batch, context); returns (batch, vocabulary)."""
        x = functional.gelu(self.mixed(self.embedding(characters).flatten(1)))
        scores: Tensor = self.out(x + self.experts(self.norm(x)))
        return scores


def average_gradients(model: Guesser, group: dist.ProcessGroup) -> None:
    """Average the gradients over all ranks; an expert has those of the rows of all ranks already."""
    of_expert = set(model.experts.expert.parameters())
    for parameter in model.parameters():
        if parameter.grad is None:  # an expert to which no rank has sent anything
            continue
        if parameter not in of_expert:
            dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)


def train(options: argparse.Namespace, group: dist.ProcessGroup) -> tuple[list[float], Guesser]:
    """Train on every rank of the group; returns the mean loss of the ranks in each step, and this rank's model."""
    text = "\n".join(topics[name] for name in sorted(topics))
    vocabulary = sorted(set(text))
    numbers = {character: number for number, character in enumerate(vocabulary)}
    tokens = torch.tensor([numbers[character] for character in text])
    torch.manual_seed(options.seed)
    model = Guesser(len(vocabulary), options, group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    generator = torch.Generator().manual_seed(1000 * options.seed + dist.get_rank(group))  # each rank its own batches
    losses = []
    for step in range(options.steps):
        starts = torch.randint(len(tokens) - options.context, (options.batch_size, 1), generator=generator)
        windows = tokens[starts + torch.arange(options.context + 1)]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])
        (loss + BALANCE * model.experts.balance).backward()
        average_gradients(model, group)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=group)
        losses.append(mean.item() / dist.get_world_size(group))
        if dist.get_rank(group) == 0 and (step % SHOWN == 0 or step + 1 == options.steps):
            print(f"{dist.get_backend(group)}: step {step}: loss {losses[-1]:.6f}")
    return losses, model


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """What is asked for; the defaults take some seconds on two cores."""
    parser = argparse.ArgumentParser(prog="moe.py", description="Train a mixture of experts on Python's help pages.")
    parser.add_argument("--backend", choices=("ring", "gloo"), default="ring", help="of torch.distributed (ring)")
    sizes = {"steps": 200, "batch-size": 256, "context": 8, "width": 64}
    for name, default in {**sizes, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"({default})")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="(0.003)")
    options = parser.parse_args(arguments)
    for name in sizes:
        if (value := getattr(options, name.replace("-", "_"))) < 1:
            parser.exit(2, f"moe.py: --{name} {value}: must be at least 1\n")
    return options


if __name__ == "__main__":
    asked = read_options(sys.argv[1:])
    if "RANK" not in os.environ:  # torchrun sets it
        print("moe.py: start it with torchrun --nproc-per-node 4 examples/moe.py --backend ring", file=sys.stderr)
        sys.exit(2)
    dist.init_process_group(asked.backend)
    assert dist.group.WORLD is not None
    train(asked, dist.group.WORLD)
    dist.destroy_process_group()
