"""A schedule as text: steps downwards, ranks across, and what each rank receives in each step."""

from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import Step
from ringsim.text_table import align_columns

MAX_STEPS = 8  # steps shown before and after the marked one
MAX_RANKS = 8  # ranks shown on either side of the marked one, if there is room for them
MAX_TRANSFERS = 3  # shown in a cell
WIDTH = 80  # columns of a terminal


def draw_grid(schedule: Schedule, marked_step: int, marked_rank: int | None) -> str:
    """Return the grid around one cell, which gets a `>` in front; of so many ranks that it fits 80 columns.

    `c3+r1` in a rank's column: chunk 3 arrives from rank 1 and is added; `c3=r1`: it overwrites.
    """
    steps = _window(marked_step, schedule.num_steps, MAX_STEPS)
    cells = {index: _received(schedule.steps[index]) for index in steps}
    for reach in range(MAX_RANKS, -1, -1):
        ranks = _window(marked_rank or 0, schedule.num_ranks, reach)
        rows = [["step", *(f"rank {rank}" for rank in ranks)]]
        for index, received in cells.items():
            marked = marked_rank if index == marked_step else None
            rows.append([str(index), *(_cell(received.get(rank, []), rank == marked) for rank in ranks)])
        lines = align_columns(rows)
        if max(map(len, lines)) <= WIDTH:
            break
    return "\n".join([*lines, "(c3+r1: chunk 3 from rank 1 is added; c3=r1: it overwrites; >: the fault)"])


def _window(centre: int, length: int, reach: int) -> range:
    return range(max(0, centre - reach), min(length, centre + reach + 1))


def _received(step: Step) -> dict[int, list[str]]:
    cells: dict[int, list[str]] = {}
    for src, dst, chunk, reduce, _ in step:
        cells.setdefault(dst, []).append(f"c{chunk}{'+' if reduce else '='}r{src}")
    return cells


def _cell(received: list[str], marked: bool) -> str:
    shown = received[:MAX_TRANSFERS]
    if len(received) > MAX_TRANSFERS:
        shown.append(f"+{len(received) - MAX_TRANSFERS} more")
    return (">" if marked else " ") + (" ".join(shown) or ".")
