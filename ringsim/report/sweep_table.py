"""A `Sweep` as text: the fastest algorithms, their times and gains."""

from collections.abc import Iterator, Sequence

from ringsim.analysis import Sweep, Winner
from ringsim.libraries import LIBRARY_ALGORITHMS, LIBRARY_TITLE
from ringsim.report.network_table import network_facts
from ringsim.text_table import WIDTH, align_columns, wrap_text
from ringsim.units import format_size, format_time, plural

_GAP = "   "


def format_sweep(sweep: Sweep, width: int = WIDTH) -> str:
    """Return a table per network, by size and number of ranks, and notes; columns beyond the width follow below."""
    blocks = [_format_network(sweep, name, width) for name in sweep.networks]
    notes = [wrap_text(note, width, "  ") for note in sweep_notes(sweep)]
    return "\n\n".join([*blocks, "\n".join(notes)] if notes else blocks)


def sweep_notes(sweep: Sweep) -> list[str]:
    """Return the skipped algorithms, and `library_notes`."""
    return [*sweep.skipped(), *library_notes(sweep)]


def library_notes(sweep: Sweep) -> list[str]:
    """Return a note on times that are not corrected to a library's formula."""
    others = sweep.not_of_the_library()
    own = f"{LIBRARY_TITLE}'s"
    reason = f"not {own}, and simulated without the factor that brings {own} algorithms to the time of its formula"
    return [f"{', '.join(others)}: {reason}"] if others else []


def format_gain(sweep: Sweep, winner: Winner) -> str:
    """Return the speed-up over the `runner_up`, such as 3.1x; "" for the baseline, and if no time passes."""
    baseline = sweep.baseline(winner.cell.network)
    has_baseline = baseline in sweep.algorithms
    gain = winner.over_ring if has_baseline else winner.over_second
    if gain is None or (has_baseline and winner.cell.algorithm == baseline):
        return ""
    return f"{gain:.2f}x" if gain < 1.995 else f"{gain:.1f}x" if gain < 9.95 else f"{gain:.0f}x"


def runner_up(sweep: Sweep, network: str) -> str:
    """Return the reference of gains: the baseline, or the second fastest."""
    baseline = sweep.baseline(network)
    if baseline not in sweep.algorithms:
        return "the second"
    return baseline if baseline in LIBRARY_ALGORITHMS else f"the {baseline}"


def _format_network(sweep: Sweep, network: str, width: int) -> str:
    title = f"{sweep.collective.value} {sweep.algorithms[0]}, its time"
    if len(sweep.algorithms) > 1:
        gain = f"how many times as fast as {runner_up(sweep, network)}"
        title = f"{sweep.collective.value}, the fastest of {len(sweep.algorithms)} algorithms, its time, and {gain}"
    about = ", ".join(network_facts(sweep.networks[network]))
    sizes = ["", *(format_size(size) for size in sweep.sizes_bytes)]
    columns = [fastest_column(sweep, network, num_ranks) for num_ranks in sweep.ranks]
    pages = _pages(columns, width - len(max(sizes, key=len)))
    blocks = ["\n".join(align_columns(list(zip(sizes, *page, strict=True)), "rl", _GAP)) for page in pages]
    heading = [title, f"network {network}" + (f": {about}" if about else "")]
    head = [wrap_text(line, width, "  ") for line in heading]
    return "\n\n".join(["\n".join(head), *blocks])


def fastest_column(sweep: Sweep, network: str, num_ranks: int) -> list[str]:
    """Return a heading, and the fastest algorithm by size."""
    winners = sweep.winners()
    rows = [_texts(sweep, winners.get((network, num_ranks, size))) for size in sweep.sizes_bytes]
    return [plural(num_ranks, "rank"), *align_columns(rows, "lr")]


def _texts(sweep: Sweep, winner: Winner | None) -> tuple[str, str, str]:
    if winner is None:
        return "all skipped", "", ""
    gain = format_gain(sweep, winner)
    return winner.cell.name, format_time(winner.cell.time_s or 0.0), gain


def _pages(columns: Sequence[list[str]], width: int) -> Iterator[list[list[str]]]:
    page: list[list[str]] = []
    used = 0
    for column in columns:
        needed = len(_GAP) + max(map(len, column))
        if page and used + needed > width:
            yield page
            page, used = [], 0
        page.append(column)
        used += needed
    yield page
