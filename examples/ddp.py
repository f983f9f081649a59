"""An ordinary DistributedDataParallel program: `torchrun --nproc-per-node 2 examples/ddp.py ring`, or gloo."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import collectives  # noqa: F401  the one line more: it makes "ring" known


def main() -> None:
    """Fit a plane through points; each rank has points of its own."""
    dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "ring")
    torch.manual_seed(dist.get_rank())
    points = torch.randn(256, 3)
    heights = points @ torch.tensor([[1.0], [-2.0], [3.0]])
    model = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(50):
        optimizer.zero_grad()
        loss = (model(points) - heights).square().mean()
        loss.backward()
        optimizer.step()
        if step % 49 == 0 and dist.get_rank() == 0:
            print(f"{dist.get_backend()}: step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:  # torchrun sets it
        print("ddp.py: start it with torchrun --nproc-per-node 2 examples/ddp.py ring", file=sys.stderr)
        sys.exit(2)
    main()
