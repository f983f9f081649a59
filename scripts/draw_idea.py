"""Draw the idea of the project, docs/idea.svg: an algorithm, its schedule, and the results from the schedule.

usage: python scripts/draw_idea.py OUTPUT.svg

The picture shows the code of the function below; the script proves, simulates and executes it on four processes with
torch.distributed.
"""

import inspect
import tempfile
from pathlib import Path

import click
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import collectives
from ringsim import Network, Schedule, Transfer, simulate, verify
from ringsim.analysis import ChunkStates
from ringsim.console import OneLineCommand
from ringsim.report.colours import contributor_colours
from ringsim.report.plots.chunk_grid import draw_cells, name_cells
from ringsim.report.plots.lanes import Lanes, draw_bars, set_time_axis
from ringsim.report.plots.style import palette, save_figure
from ringsim.schedule import Collective
from ringsim.units import format_time

RANKS, SIZE_BYTES = 4, 2**20
NETWORK = Network.uniform(latency_s=10e-6, bandwidth_bytes_per_s=1.25e9, reduce_bytes_per_s=5e9)
WIDTH, HEIGHT = 13.0, 5.4  # inches


# The lines are as long as there is room for in the picture.
# fmt: off
def my_ring(n: int) -> Schedule:
    """Ring all-reduce on n ranks."""
    steps = []
    for i in range(n - 1):  # reduce-scatter
        steps.append([
            Transfer(r, (r + 1) % n, (r - i - 1) % n, True)
            for r in range(n)])
    for i in range(n - 1):  # all-gather
        steps.append([
            Transfer(r, (r + 1) % n, (r - i) % n, False)
            for r in range(n)])
    return Schedule.from_transfers(
        Collective.ALL_REDUCE, "my_ring", n, n, steps)
# fmt: on


def draw_idea(executed: list[tuple[list[float], list[float]]]) -> Figure:
    """Draw the page. executed: each rank's tensor before and after the execution."""
    schedule = my_ring(RANKS)
    figure = Figure(figsize=(WIDTH, HEIGHT))
    _draw_code(figure)
    _draw_steps(figure, schedule)
    for left in (0.347, 0.605):
        figure.text(left, 0.3, "→", fontsize=30, ha="center", va="center", color=palette().dark_grey)
    _draw_proof(figure, schedule)
    _draw_simulation(figure, schedule)
    _draw_execution(figure, executed)
    return figure


def _head(figure: Figure, left: float, top: float, title: str, text: str) -> None:
    figure.text(left, top, title, fontsize=13, fontweight="bold", va="bottom")
    figure.text(left, top - 0.012, text, fontsize=9, va="top", color=palette().dark_grey)


def _draw_code(figure: Figure) -> None:
    _head(figure, 0.02, 0.92, "You write an algorithm once,", "as a function that returns the transfers of each step")
    code = inspect.getsource(my_ring)
    figure.text(0.02, 0.81, code, fontsize=8.6, family="monospace", va="top", linespacing=1.6)


def _draw_steps(figure: Figure, schedule: Schedule) -> None:
    _head(figure, 0.4, 0.92, "it is data,", f"{schedule.num_transfers} transfers: chunk c to rank r")
    axes = figure.add_axes((0.4, 0.13, 0.19, 0.68))
    colours = palette()
    for number, step in enumerate(schedule.steps):
        for src, dst, chunk, reduce in zip(step.src, step.dst, step.chunk, step.reduce, strict=True):
            colour = colours.blue if reduce else colours.sky
            box = FancyBboxPatch((src - 0.42, number - 0.36), 0.84, 0.72, boxstyle="round,pad=0,rounding_size=0.08")
            box.set(facecolor=colour, linewidth=0)
            axes.add_patch(box)
            ink = colours.paper if reduce else colours.ink
            axes.text(src, number, f"c{chunk} → r{dst}", color=ink, fontsize=8.5, ha="center", va="center")
    axes.set(xlim=(-0.5, schedule.num_ranks - 0.5), ylim=(schedule.num_steps - 0.5, -0.5))
    axes.set_xticks(range(schedule.num_ranks), [f"rank {rank}" for rank in range(schedule.num_ranks)], fontsize=8)
    axes.set_yticks(range(schedule.num_steps), [f"step {step + 1}" for step in range(schedule.num_steps)], fontsize=8)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    keys = ((0.0, colours.blue, "the receiver adds it"), (0.6, colours.sky, "it copies it"))
    for left, colour, text in keys:
        axes.text(left, -0.02, "■", color=colour, transform=axes.transAxes, fontsize=9, va="top")
        axes.text(left + 0.06, -0.02, text, transform=axes.transAxes, fontsize=8, va="top")


def _draw_proof(figure: Figure, schedule: Schedule) -> None:
    proof = verify(schedule)
    told = f"{type(proof).__name__}: in every chunk of every rank, each rank's contribution once"
    _head(figure, 0.63, 0.92, "and it is proved,", told)
    states = ChunkStates.of(schedule)
    chosen = [0, len(states.states) // 2, len(states.states) - 1]
    for place, number in enumerate(chosen):
        axes = figure.add_axes((0.655 + 0.12 * place, 0.665, 0.095, 0.155))
        name_cells(axes, states.num_ranks, states.num_chunks, with_ranks=False)
        axes.set_xticks([])
        held = states.contributions > 0
        draw_cells(axes, held[number], states.finished[number], held[number])
        done = int(states.states[number])
        axes.set_title(f"after step {done}" if done else "before", fontsize=7.5, pad=3)


def _draw_simulation(figure: Figure, schedule: Schedule) -> None:
    timeline = simulate(schedule, NETWORK, SIZE_BYTES)
    told = f"1 MiB at 10 Gbit/s and 10 us: {format_time(timeline.time_s)}"
    _head(figure, 0.63, 0.575, "simulated on a network,", told)
    axes = figure.add_axes((0.655, 0.33, 0.335, 0.19))
    lanes = Lanes(timeline)
    set_time_axis(axes, lanes)
    draw_bars(axes, lanes)
    axes.set_xticks([])
    axes.set_yticks(range(RANKS), [f"{rank}" for rank in range(RANKS)], fontsize=7)


def _draw_execution(figure: Figure, executed: list[tuple[list[float], list[float]]]) -> None:
    told = "collectives.execute(my_ring(4), tensor) on each of four ranks"
    _head(figure, 0.63, 0.255, "and executed on torch.distributed", told)
    colours = contributor_colours(len(executed))
    for rank, (before, after) in enumerate(executed):
        height = 0.175 - 0.043 * rank
        shown = ["".join(f"{number:5.0f}" for number in numbers) for numbers in (before, after)]
        figure.text(0.645, height, f"rank {rank}", fontsize=8.5, va="center", color=colours[rank], fontweight="bold")
        tensors = f"[{shown[0]} ]   →   [{shown[1]} ]"
        figure.text(0.69, height, tensors, fontsize=7.8, family="monospace", va="center")


def _execute(rank: int, folder: str) -> None:
    """Execute the schedule on one rank, and write the tensors to a file."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    before = torch.arange(1.0, RANKS + 1) * 10**rank
    after = before.clone()
    collectives.execute(my_ring(RANKS), after)
    torch.save((before.tolist(), after.tolist()), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@click.command("draw_idea", cls=OneLineCommand)
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
def main(output: Path) -> None:
    """Execute the schedule, then draw the picture into OUTPUT."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_execute, (folder,), nprocs=RANKS)
        executed = [torch.load(f"{folder}/{rank}.pt") for rank in range(RANKS)]
    save_figure(lambda: draw_idea(executed), output, "light")


if __name__ == "__main__":
    main(prog_name="draw_idea")
