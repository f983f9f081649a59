"""Draw where the time of a step goes: `torchrun --nproc-per-node 2 scripts/draw_step.py docs/measured-step.png`.

DistributedDataParallel on Gloo, on "ring", and ours, whose buckets lie in shared memory: what each rank computes, and
below it the all_reduce of each bucket. All are trained in one run, interleaved by step, under torch's profiler, which
knows when Gloo's calls begin and end. Of each program the step of median duration is drawn.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import click
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch.profiler import ProfilerActivity, profile

from bench_steps import PROGRAMS, WARM_UP, BucketTimes, StepTimes, Training, new_group, of_all_ranks
from collectives.probes import provenance
from collectives.runtime.queue import CollectiveQueue
from ringsim.console import IntRange, TorchrunCommand, num_ranks
from ringsim.report.plots.style import new_figure, palette, points, save_figure
from ringsim.units import format_time
from trainers.tasks.base import ModelConfig

START = "torchrun --nproc-per-node 2 scripts/draw_step.py"
CONFIG = ModelConfig(d_model=256, d_ff=1024, layers=4, sequence_length=32)
DRAWN = [program for program in PROGRAMS if "DDP" in program.name]


def profiled_step(training: Training, tokens: torch.Tensor) -> None:
    """Train one step; add Gloo's calls to its times, and those that no queue's thread gets."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler, noting_waits() as waits:
        training.step(tokens, is_timed=True)
    events = profiler.events()
    assert events is not None
    # The profiler's clock is another one: the backward pass began where its first operator did.
    first_us = min(event.time_range.start for event in events if event.name.startswith("autograd::engine"))
    step = training.steps[-1]
    for event in events:
        if event.name == "gloo:all_reduce":
            began_s, ended_s = (
                step.forward_ended_s + (time_us - first_us) / 1e6
                for time_us in (event.time_range.start, event.time_range.end)
            )
            step.calls.append(BucketTimes(0, began_s, began_s, ended_s))
    step.calls.extend(waits)


@contextmanager
def noting_waits() -> Iterator[list[BucketTimes]]:
    """Note each collective that the calling thread executes itself, as that of our DDP's last bucket."""
    noted: list[BucketTimes] = []
    run = CollectiveQueue.run

    def timed_run(self: CollectiveQueue, call: Callable[[], object]) -> None:
        called_s = time.perf_counter()
        run(self, call)
        noted.append(BucketTimes(0, called_s, called_s, time.perf_counter()))

    with patch.object(CollectiveQueue, "run", timed_run):
        yield noted


def median_step(training: Training) -> list[StepTimes]:
    """Return the times of all ranks in the step of median duration of the slowest rank; collective."""
    steps = list(zip(*of_all_ranks(training.steps), strict=True))
    durations_s = [max(of_rank.duration_s for of_rank in step) for step in steps]
    return list(steps[durations_s.index(statistics.median_low(durations_s))])


def draw(steps: dict[str, list[StepTimes]]) -> Figure:
    """Draw the lanes of each program's ranks on one axis of time."""
    colours, where = palette(), provenance()
    ranks = len(next(iter(steps.values())))
    figure = new_figure(12.0, 1.4 + len(steps) * (0.5 + 0.5 * ranks), layout="constrained")
    figure.suptitle(
        f"A measured step, {ranks} ranks on {where['cores']} cores ({where['machine']})",
        x=0.01, ha="left", fontsize=points(13), fontweight="bold",
    )  # fmt: skip
    for axes, (name, times) in zip(figure.subplots(len(steps), sharex=True), steps.items(), strict=True):
        draw_program(axes, times)
        duration_s = max(of_rank.duration_s for of_rank in times)
        axes.set_title(f"{name}: {format_time(duration_s)}", loc="left", fontsize=points(10))
    axes.set_xlabel("time from the start of the step, ms", fontsize=points(9))
    parts = {
        "forward": colours.light_grey,
        "backward": colours.grey,
        "optimizer": colours.dark_grey,
        "all_reduce: waits for the last rank's call": colours.sky,
        "all_reduce: after it": colours.blue,
    }
    figure.legend(
        handles=[Patch(color=colour, label=label) for label, colour in parts.items()],
        loc="outside lower left", ncols=len(parts), fontsize=points(9), frameon=False,
    )  # fmt: skip
    return figure


def draw_program(axes: Axes, step: list[StepTimes]) -> None:
    """Draw two lanes for each rank: what it computes, and its calls."""
    colours, start_s = palette(), min(of_rank.began_s for of_rank in step)
    calls = zip(*(times.calls for times in step), strict=True)
    last_calls_s = [max(call.called_s for call in of_ranks) for of_ranks in calls]

    def bar(lane: float, begin_s: float, end_s: float, colour: str) -> None:
        axes.barh(lane, 1e3 * (end_s - begin_s), 0.4, 1e3 * (begin_s - start_s), color=colour, edgecolor=colours.paper)

    for rank, times in enumerate(step):
        bar(rank, times.began_s, times.forward_ended_s, colours.light_grey)
        bar(rank, times.forward_ended_s, times.backward_ended_s, colours.grey)
        bar(rank, times.backward_ended_s, times.ended_s, colours.dark_grey)
        for call, last_s in zip(times.calls, last_calls_s, strict=True):
            bar(rank + 0.4, call.called_s, last_s, colours.sky)
            bar(rank + 0.4, last_s, call.ended_s, colours.blue)
    axes.set_yticks([rank + 0.2 for rank in range(len(step))], [f"rank {rank}" for rank in range(len(step))])
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(labelsize=points(9), left=False)


@click.command(cls=TorchrunCommand, context_settings={"show_default": True})
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path))
@click.option("-n", "--steps", type=IntRange(1), default=15, help="Number of steps of each program, after the warm-up.")
def main(output: Path, steps: int) -> None:
    """Train each program for some steps, and draw one of each to OUTPUT."""
    num_ranks(START)
    dist.init_process_group("gloo")
    groups = {name: new_group(name) for name in ("gloo", "ring")}
    trainings = [Training(program, CONFIG, groups[program.backend]) for program in DRAWN]
    for index in range(WARM_UP + steps):
        tokens = torch.randint(CONFIG.vocabulary, (1, CONFIG.sequence_length))
        for training in trainings:
            training.step(tokens, is_timed=False) if index < WARM_UP else profiled_step(training, tokens)
    drawn = {training.program.name: median_step(training) for training in trainings}
    if dist.get_rank() == 0:
        save_figure(lambda: draw(drawn), output, style="light")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
