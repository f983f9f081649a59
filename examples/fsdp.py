"""An ordinary FSDP2 program: `torchrun --nproc-per-node 2 examples/fsdp.py ring`, or gloo."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import collectives  # noqa: F401  the one line more: it makes "ring" known


def main() -> None:
    """Fit a curve through points; each rank has points of its own, and a share of the parameters."""
    dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "ring")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    points = torch.rand(256, 1, generator=torch.Generator().manual_seed(dist.get_rank()))
    for step in range(100):
        optimizer.zero_grad()
        loss = (model(points) - torch.sin(6 * points)).square().mean()
        loss.backward()
        optimizer.step()
        if step % 99 == 0 and dist.get_rank() == 0:
            print(f"{dist.get_backend()}: step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:  # torchrun sets it
        print("fsdp.py: start it with torchrun --nproc-per-node 2 examples/fsdp.py ring", file=sys.stderr)
        sys.exit(2)
    main()
