"""Where each rank is, and the sum of their numbers: to try a way of launching before training with it.

`python examples/where.py`; with `--ranks 4`; `torchrun --nproc-per-node 4 examples/where.py`; `srun python
examples/where.py` (docs/slurm.md).
"""

import socket
import sys
import time

import click

from ringsim.console import TorchrunCommand
from trainers import distributed_environment, init_process_group, spawn


def add_up(seconds: float, timeout_s: float) -> None:
    """What each rank does: meet the others, add up all ranks every tenth of a second, and say so."""
    environment = distributed_environment()
    group = init_process_group(environment, timeout_s)
    import torch  # noqa: PLC0415  takes seconds, and --help has no need of it
    import torch.distributed as dist  # noqa: PLC0415

    end = time.monotonic() + seconds
    while True:
        total = torch.tensor([environment.rank, 0], device=environment.device)
        total[1] = int(time.monotonic() > end)  # no rank goes before the last one wants to
        dist.all_reduce(total, group=group)
        if total[1] == environment.num_ranks:
            break
        time.sleep(0.1)
    host, local_ranks = socket.gethostname(), f"local rank {environment.local_rank} of {environment.ranks_per_node}"
    place = f"node {environment.node} ({host}), {local_ranks}, {environment.device}"
    # Text and newline in one write: print would write them apart, and the lines of several ranks would mix.
    sys.stdout.write(f"rank {environment.rank} of {environment.num_ranks}: {place}; sum of ranks {int(total[0])}\n")
    dist.destroy_process_group()


@click.command("where", cls=TorchrunCommand, context_settings={"show_default": True})
@click.option("--ranks", type=int, help="Number of ranks to start here, without torchrun.")
@click.option("--seconds", type=float, default=0.0, help="Seconds to run.")
@click.option("--timeout", type=float, default=60.0, help="Seconds that a rank waits for others.")
def main(ranks: int | None, seconds: float, timeout: float) -> int:
    """Says where each rank is, and what all of them add up to."""
    if ranks is not None:
        return spawn(ranks, add_up, (seconds, timeout))
    add_up(seconds, timeout)
    return 0


if __name__ == "__main__":
    main(prog_name="where")
