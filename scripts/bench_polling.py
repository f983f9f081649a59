"""Measure the gain of keeping Gloo's polling threads off used cores: the same calls with each policy, interleaved.

All messages travel over Gloo, including the ring's.

torchrun --nproc-per-node 4 scripts/bench_polling.py
"""

import statistics
import sys
import time
from collections.abc import Callable

import click
import torch
import torch.distributed as dist

import collectives
from collectives.probes import provenance
from collectives.runtime import GlooThreadPolicy
from ringsim.console import SIZE, FloatRange, IntRange, TorchrunCommand, num_ranks
from ringsim.measurements import p10_p90
from ringsim.units import format_size

START = "torchrun --nproc-per-node 4 scripts/bench_polling.py"
IMPLEMENTATIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "dist.all_reduce": dist.all_reduce,
    "ring": collectives.all_reduce,
}
TRIED = 10  # calls, to find out how many a turn has


@click.command(cls=TorchrunCommand, name="bench_polling.py", context_settings={"show_default": True})
@click.option(
    "--size",
    "sizes",
    type=SIZE,
    multiple=True,
    default=("1KiB", "64KiB", "1MiB", "16MiB"),
    help="Size of the tensor; repeatable.",
)
@click.option(
    "--turns", type=IntRange(2), default=20, help="Number of runs with each scheduling policy of Gloo's threads."
)
@click.option(
    "--turn", "turn_s", type=FloatRange(1e-3), default=0.05, help="Approximate duration of a run, in seconds."
)
def main(sizes: tuple[int, ...], turns: int, turn_s: float) -> None:
    """Print the median, p10 and p90 of the time of a call, as Gloo's threads are and as SCHED_BATCH, and the ratio."""
    num_ranks(START)
    dist.init_process_group("gloo")
    collectives.use_transport("gloo")
    rows = [_row(name, size, turns, turn_s) for size in sizes for name in IMPLEMENTATIONS]
    if dist.get_rank() == 0:
        where = provenance()
        click.echo(f"{where['machine']}, {where['cores']} cores, torch {where['torch']}, Gloo, {where['date']}")
        click.echo(f"{where['command']}\n")
        click.echo("| size | what | ranks | normal (us) | 10 to 90 % | batch (us) | 10 to 90 % | ratio |")
        click.echo("|---|---|---|---|---|---|---|---|")
        click.echo("\n".join(rows))
    dist.barrier()
    dist.destroy_process_group()


def _row(name: str, size: int, turns: int, turn_s: float) -> str:
    """Return a row of the table; collective."""
    tensor, call = torch.zeros(max(size // 4, 1)), IMPLEMENTATIONS[name]
    calls = _calls(lambda: call(tensor), turn_s)
    times_s: dict[GlooThreadPolicy, list[float]] = {"normal": [], "batch": []}
    for _ in range(turns):
        for policy, policy_times_s in times_s.items():
            collectives.set_gloo_thread_policy(policy)
            policy_times_s.append(_timed(lambda: call(tensor), calls))
    normal, batch = (statistics.median(policy_times_s) for policy_times_s in times_s.values())
    cells = [f"{normal * 1e6:.0f}", _between(times_s["normal"]), f"{batch * 1e6:.0f}", _between(times_s["batch"])]
    return f"| {format_size(size)} | {name} | {dist.get_world_size()} | {' | '.join(cells)} | {batch / normal:.2f} |"


def _between(times_s: list[float]) -> str:
    low, high = p10_p90(times_s)
    return f"{low * 1e6:.0f} to {high * 1e6:.0f}"


def _calls(call: Callable[[], object], turn_s: float) -> int:
    """Return the number of calls per turn, the same on all ranks."""
    _timed(call, TRIED)
    number = torch.tensor(max(turn_s / _timed(call, TRIED), 1.0))
    dist.broadcast(number, src=0)
    return int(number)


def _timed(call: Callable[[], object], calls: int) -> float:
    """Return the mean seconds of a call."""
    dist.barrier()
    begin_s = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin_s) / calls


if __name__ == "__main__":
    sys.exit(main())
