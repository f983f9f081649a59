"""Your own loop with torch's DataLoader: `torchrun --nproc-per-node 2 examples/dataloader.py`.

The loop is the one for DistributedDataParallel; only the wrapper is `trainers.DataParallel`. Three things are easily
forgotten where a `DistributedSampler` gives each rank its share of the samples:

- `sampler.set_epoch(epoch)`: without it every epoch has the order of the first one.
- Uneven shares: the sampler repeats a few samples, so that all ranks have equally many and make the same calls; with
  `drop_last=True` it leaves a few out instead. Here 500 samples on 2 ranks are 250 each, and none is repeated.
- The last batch of an epoch is smaller (250 = 7 * 32 + 26). As it is on all ranks alike, the mean over the ranks is
  still the mean over the samples. `drop_last=True` of the DataLoader would leave it out.
"""

from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from trainers import DataParallel, distributed_environment, init_process_group

BATCH_SIZE, EPOCHS = 64, 40  # samples in a batch of all ranks together


def make_dataset():
    """The same on every rank: a sine that is to be learned."""
    points = torch.linspace(-2, 2, 500).unsqueeze(1)
    return TensorDataset(points, torch.sin(2 * points))


def make_loader(dataset, rank, num_ranks):
    """The batches of one rank."""
    sampler = DistributedSampler(dataset, num_ranks, rank, shuffle=True, seed=0, drop_last=False)
    return DataLoader(dataset, batch_size=BATCH_SIZE // num_ranks, sampler=sampler)


def train(group):
    """The trained model, the same on every rank."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    model = DataParallel(plain, "bucketed", group)  # was DistributedDataParallel(plain)
    optimizer = model.optimizer(partial(torch.optim.Adam, lr=0.03))
    loader = make_loader(make_dataset(), group.rank(), group.size())
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for points, wanted in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(points), wanted).backward()  # leaves synchronised gradients
            optimizer.step()
    model.check_identical()
    return plain


def main():
    """On every rank that torchrun has started; or in one process."""
    environment = distributed_environment()
    group = init_process_group(environment, timeout_s=60)
    model = train(group)
    if environment.rank == 0:
        points, wanted = make_dataset().tensors
        with torch.no_grad():
            loss = nn.functional.mse_loss(model(points), wanted).item()
        print(f"number of ranks {group.size()}: mean square error {loss:.4f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
