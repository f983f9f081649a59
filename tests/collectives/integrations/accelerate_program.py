"""A program with accelerate, to be started by torchrun with the name of a backend."""

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import collectives  # noqa: F401  makes "ring" known


def main() -> None:
    """Train a few epochs; accelerate shares the batches among the ranks."""
    dist.init_process_group(sys.argv[1])  # before Accelerator, which takes the group that there is
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    points = torch.randn(64, 3)
    data = DataLoader(TensorDataset(points, points @ torch.tensor([[1.0], [-2.0], [3.0]])), batch_size=8)
    plane = torch.nn.Linear(3, 1)
    model, optimizer, batches = accelerator.prepare(plane, torch.optim.SGD(plane.parameters(), lr=0.1), data)
    for _ in range(8):
        for at, heights in batches:
            optimizer.zero_grad()
            loss = (model(at) - heights).square().mean()
            accelerator.backward(loss)
            optimizer.step()
    mean = accelerator.reduce(loss.detach(), "mean").item()
    weights = accelerator.gather(plane.weight.detach()).tolist()
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        first, second = ([mean, *row] for row in weights)
        print(f"on {dist.get_backend()}: loss and weights {first}, the same on both: {first == second}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
