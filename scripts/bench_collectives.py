"""Compare our collectives with torch.distributed's, a plain ring and the limit, on several numbers of ranks."""

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from collectives.benchmark.table import ratio, rival_of
from collectives.probes import provenance
from ringsim.console import OneLineCommand, parse_numbers, run_local_ranks
from ringsim.measurements import LIMIT, PLAIN_RING, TORCH, CollectiveTimes, Measurements
from ringsim.registry import ALGORITHMS
from ringsim.schedule import Collective
from ringsim.text_table import align_columns
from ringsim.units import format_size

BENCHMARK = ["-m", "collectives.benchmark", "--cell-time", "300ms"]
BEST = "best of these"
LARGE = ("-b", "1MiB", "-e", "64MiB")
MIB = 2**20
LIMIT_HEAD = ("ranks", "algorithm", "size", "ratio")


@dataclass(frozen=True, slots=True)
class Target:
    """Cells to measure, and the rival of our times.

    arguments: the benchmark's options for the cells.
    """

    title: str
    collective: Collective
    arguments: tuple[str, ...]
    quick_arguments: tuple[str, ...]
    rival: str = TORCH

    @property
    def heading(self) -> str:
        return f"{self.title}: ours over {_RIVALS[self.rival]}"

    def algorithms(self, names: Sequence[str]) -> list[str]:
        """Return the `names` that the collective has, or that are not built in; the ring if there are none."""
        elsewhere = {name for _, name in ALGORITHMS}
        return [name for name in names if (self.collective, name) in ALGORITHMS or name not in elsewhere] or ["ring"]


_QUICK_LARGE = ("-b", "1MiB", "-e", "1MiB")
TARGETS = (
    Target(
        "reduce_scatter_tensor float32, 1 MiB to 64 MiB",
        Collective.REDUCE_SCATTER,
        ("--collective", "reduce_scatter_tensor", "--out-of-place", *LARGE),
        _QUICK_LARGE,
    ),
    Target(
        "all_gather_into_tensor float32, 1 MiB to 64 MiB",
        Collective.ALL_GATHER,
        ("--collective", "all_gather_into_tensor", "--out-of-place", *LARGE),
        _QUICK_LARGE,
    ),
    Target(
        "all_reduce float32, 64 B to 64 MiB",
        Collective.ALL_REDUCE,
        ("--in-place", "-b", "64", "-e", "64MiB", "-f", "4"),
        ("-e", "64KiB", "-f", "32"),
    ),
    Target(
        "all_reduce bfloat16, 1 MiB to 64 MiB",
        Collective.ALL_REDUCE,
        ("--in-place", "--dtype", "bfloat16", *LARGE),
        _QUICK_LARGE,
    ),
    *(
        Target(
            f"{title}, 1 MiB to 64 MiB, against a ring of isend and irecv, both by Gloo",
            collective,
            ("--collective", name, "--out-of-place", "--plain-ring", "--transport", "gloo", *LARGE),
            _QUICK_LARGE,
            rival=PLAIN_RING,
        )
        for title, name, collective in (
            ("reduce_scatter_tensor float32", "reduce_scatter_tensor", Collective.REDUCE_SCATTER),
            ("all_gather_into_tensor float32", "all_gather_into_tensor", Collective.ALL_GATHER),
            ("all_reduce float32", "all_reduce", Collective.ALL_REDUCE),
        )
    ),
)
_RIVALS = {TORCH: "torch.distributed", PLAIN_RING: "a plain ring", LIMIT: "the limit"}


@dataclass(frozen=True, slots=True)
class Ratio:
    """The time of an algorithm in a cell, relative to the rival's."""

    algorithm: str
    num_ranks: int
    size_bytes: int
    value: float


def format_targets(results: Sequence[tuple[Target, Sequence[Measurements]]]) -> str:
    """Return a row for each target, algorithm and number of ranks, and a row for all numbers of ranks.

    results: for each target, a measurement file per number of ranks.
    """
    head = f"{'ranks':>7}  {'algorithm':<20} {'cells':>5} {'mean':>6} {'worst':>6}  worst cell"
    blocks = ["# ratio: ours over theirs, medians; mean: geometric, over the cells; less than 1 is faster"]
    for target, files in results:
        blocks += ["", f"# {target.heading}", head, *_rows(ratios_of(target, files))]
    return "\n".join(blocks)


def ratios_of(target: Target, files: Sequence[Measurements]) -> list[Ratio]:
    """Return the ratios of each cell, and the best ratio if there are several algorithms."""
    ratios: list[Ratio] = []
    for times in (file.collectives for file in files):
        ours = [timed for timed in times if timed.algorithm not in _RIVALS]
        for cell in dict.fromkeys(timed.cell for timed in ours):
            of_cell = list(_ratios([timed for timed in ours if timed.cell == cell], times, target.rival))
            best = min(of_cell, key=lambda one: one.value)
            several = len(of_cell) > 1
            ratios += [*of_cell, *([Ratio(BEST, best.num_ranks, best.size_bytes, best.value)] if several else [])]
    return ratios


def _ratios(ours: Sequence[CollectiveTimes], times: Sequence[CollectiveTimes], rival: str) -> Iterator[Ratio]:
    for own in ours:
        value = ratio(own, rival_of(own, times, rival))
        if value is None:
            raise ValueError(f"{own.collective.value} of {own.size_bytes} bytes: no times of {rival} to compare with")
        yield Ratio(own.algorithm, own.num_ranks, own.size_bytes, value)


def _rows(ratios: Sequence[Ratio]) -> Iterator[str]:
    for num_ranks in [*dict.fromkeys(one.num_ranks for one in ratios), None]:
        for algorithm in dict.fromkeys(one.algorithm for one in ratios):
            chosen = [one for one in ratios if one.algorithm == algorithm and num_ranks in (None, one.num_ranks)]
            if chosen:
                yield _row(algorithm, "all" if num_ranks is None else str(num_ranks), chosen)


def _row(algorithm: str, ranks: str, ratios: Sequence[Ratio]) -> str:
    mean = statistics.geometric_mean(one.value for one in ratios)
    worst = max(ratios, key=lambda one: one.value)
    where = f"{format_size(worst.size_bytes)} on {worst.num_ranks} ranks"
    return f"{ranks:>7}  {algorithm:<20} {len(ratios):>5} {mean:>6.3f} {worst.value:>6.3f}  {where}"


def over_limit(results: Sequence[tuple[Target, Sequence[Measurements]]]) -> str:
    """Return a row for each large size of the targets of which the limit was measured: our time over it."""
    lines = ["# from 1 MiB: ours over the limit of the memory that the ranks share"]
    for target, files in results:
        rows = [
            (str(own.num_ranks), own.algorithm, format_size(own.size_bytes), f"{quotient:.2f}")
            for times in (file.collectives for file in files)
            for own in times
            if own.algorithm not in _RIVALS and own.size_bytes >= MIB
            if (quotient := ratio(own, rival_of(own, times, LIMIT))) is not None
        ]
        lines += ["", f"# {target.title}", *align_columns([LIMIT_HEAD, *rows], "rlrr")] if rows else []
    return "\n".join(lines)


def arguments(target: Target, algorithms: Sequence[str], quick: bool, shared: bool, file: Path) -> list[str]:
    """Return the program and its arguments that measure `target` into `file`. shared: use shared tensors."""
    mine = [option for name in target.algorithms(algorithms) for option in ("--algorithm", name)]
    less = [*target.quick_arguments, "-n", "3", "-w", "1"] if quick else []
    return [*BENCHMARK, *target.arguments, *less, *mine, *(["--shared"] if shared else []), "-o", str(file)]


@click.command("bench_collectives", cls=OneLineCommand, context_settings={"show_default": True})
@click.option("--ranks", default="2,3,4,8", help="Numbers of ranks on this machine, such as 2,4.")
@click.option("--algorithm", "algorithms", multiple=True, default=("ring",), help="Algorithm to measure; repeatable.")
@click.option("--only", multiple=True, help="Measure only targets with these words in their heading; repeatable.")
@click.option("--shared", is_flag=True, help="Allocate the tensors with collectives.empty.")
@click.option("--quick", is_flag=True, help="Measure few sizes and iterations, to test the script.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Folder in which to keep the measurements."
)
def main(
    ranks: str, algorithms: tuple[str, ...], only: tuple[str, ...], shared: bool, quick: bool, output: Path | None
) -> None:
    """Measure all targets on each number of ranks, one after the other, and print how far we are."""
    counts = parse_numbers(ranks, int, 2)
    targets = [target for target in TARGETS if not only or any(words in target.heading for words in only)]
    if not targets:
        raise click.UsageError(
            f"--only {only[0]}: no target has these words in its heading; "
            f"the headings are: {'; '.join(target.heading for target in TARGETS)}"
        )
    where = provenance()
    click.echo(f"# {where['machine']}, {where['cores']} cores, torch {where['torch']}, {where['date']}")
    if quick:
        click.echo("# --quick: few sizes, few iterations, so no figures to go by")
    with tempfile.TemporaryDirectory() as folder:
        measured: dict[Target, list[Measurements]] = {target: [] for target in targets}
        for num_ranks in counts:
            for index, target in enumerate(targets):
                click.echo(f"{num_ranks} ranks: {target.title}", err=True)
                file = (output or Path(folder)) / f"target{index}-ranks{num_ranks}.json"
                run_local_ranks(num_ranks, arguments(target, algorithms, quick, shared, file), quiet=True)
                measured[target].append(Measurements.load(file))
    results = list(measured.items())
    click.echo(format_targets(results))
    click.echo(f"\n{over_limit(results)}")


if __name__ == "__main__":
    main(prog_name="bench_collectives")  # in messages, as it is where they do not come from click
