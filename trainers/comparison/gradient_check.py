"""How far each strategy's gradients are from those of one process with the whole batch: a module for torchrun.

`trainers compare` starts it with torchrun: -m trainers.comparison.gradient_check --task mlp --strategy ring -o FILE
"""

import copy
from pathlib import Path

import click
import torch
import torch.distributed as dist
from torch import nn

from ringsim.console import INT, TorchrunCommand
from ringsim.files import parse_json, save_json
from trainers.data_parallel import DataParallel
from trainers.launch.environment import distributed_environment
from trainers.launch.rendezvous import init_process_group
from trainers.loop.batches import Batches, Share
from trainers.loop.rank import leave
from trainers.loop.train_step import on_device
from trainers.tasks import load_task
from trainers.tasks.base import Task


def largest_difference(
    task: Task, strategy: str, seed: int, global_batch_size: int, group: dist.ProcessGroup, device: str = "cpu"
) -> float:
    """Over the largest gradient: the largest difference of one element, in the first step, over all ranks.

    Every rank computes the gradients of the whole batch by itself, from the same start, for comparison; dropout, if the
    model has any, is left out of both. Not for sharded strategies, with which a parameter's `grad` is not the mean.
    """
    torch.manual_seed(seed)
    model = task.model().to(device).eval()
    alone = copy.deepcopy(model)
    backward(task, alone, Batches(task.num_samples, global_batch_size, seed, 0, 1).share(0), device)
    parallel = DataParallel(model, strategy, group)
    shared = Batches(task.num_samples, global_batch_size, seed, group.rank(), group.size())
    backward(task, parallel, shared.share(0), device)
    pairs = [(a.grad, b.grad) for a, b in zip(alone.parameters(), model.parameters(), strict=True)]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    largest = max(float(a.abs().max()) for a, _ in known)
    difference = torch.tensor(max(float((a - b).abs().max()) for a, b in known) / largest)
    dist.all_reduce(difference, dist.ReduceOp.MAX, group=group)
    return float(difference)


def backward(task: Task, model: nn.Module, share: Share, device: str) -> None:
    """Leave the gradients of the share's weighted loss in the model."""
    torch.autograd.backward(task.loss(model, on_device(task.batch(share.indices), device)) * share.weight)


@click.command(cls=TorchrunCommand, name="gradient_check")
@click.option("--task", required=True, help="Task whose gradients are compared.")
@click.option("--options", default="{}", help="Options of the task, a JSON object.")
@click.option("--strategy", "strategies", multiple=True, required=True, help="Strategy to check.")
@click.option("--seed", type=INT, default=0, help="Seed of data and weights.")
@click.option("--global-batch-size", type=INT, required=True, help="Number of samples of all ranks together.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Write the differences to this file.",
)
def main(task: str, options: str, strategies: tuple[str, ...], seed: int, global_batch_size: int, output: Path) -> None:
    """Write the largest difference of each strategy to a JSON file."""
    environment = distributed_environment()
    group = init_process_group(environment, 60.0)
    loaded = load_task(task, seed, **parse_json(options))
    differences = {
        name: largest_difference(loaded, name, seed, global_batch_size, group, environment.device)
        for name in strategies
    }
    if environment.rank == 0:
        save_json(output, differences)
    dist.barrier(group)  # so that nobody leaves while another still needs it
    leave("", 0)  # taking leave in order, threads of Gloo abort the process now and then


if __name__ == "__main__":
    main()
