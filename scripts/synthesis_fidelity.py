"""Compare found schedules with the best named algorithm on uneven testbeds: predicted and measured gains.

    python scripts/synthesis_fidelity.py -o build/synthesis
    python scripts/synthesis_fidelity.py -o build/synthesis --only "all_reduce, 1 MiB"

Each testbed is calibrated with probes. `synthesize` then searches for a schedule, and chooses the best named algorithm,
with its segments and rank placement, by predicted times. Both are timed interleaved. This takes half an hour; the
output folder keeps the results.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import click

from collectives.benchmark.case import COLLECTIVES
from fidelity import MIB, Place, calibrated, measured
from netns_testbed import why_not
from ringsim.calibration import ComparedCase, cases_of_measurements, compare_measurements
from ringsim.console import OneLineCommand
from ringsim.files import atomic_file, read_json
from ringsim.formats import msccl_lines
from ringsim.libraries import OURS
from ringsim.network import Network
from ringsim.synthesis import SearchOptions, synthesize
from ringsim.units import format_size, format_time

SLOW = {2: "250mbit"}
PLACES = (Place(4, 1, SLOW), Place(4, 2, SLOW))
TIMED = ("all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor", "broadcast")
SIZES = (MIB, 4 * MIB, 16 * MIB, 64 * MIB)
FEW_CALLS = ("-n", "5", "--calls", "1", "-w", "1")  # of a cell whose calls take seconds
PROBED = "4MiB"  # larger messages take minutes on the slow link
FOUND = "found"
TARGET = 0.10  # by which the measured gain may differ from the predicted one
HEAD = (
    "| hosts x ranks | collective | size | best named | predicted | found | gain | measured | found | gain | off |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A collective of one size in one place. function: its name in the benchmark."""

    place: Place
    function: str
    size_bytes: int

    @property
    def title(self) -> str:
        """The name in messages and for --only."""
        return f"{self.place.hosts} x {self.place.ranks_per_host}, {self.function}, {format_size(self.size_bytes)}"

    @property
    def name(self) -> str:
        """The name of its files, without the place's."""
        return f"{self.function}-{self.size_bytes // MIB}MiB"

    @property
    def num_ranks(self) -> int:
        return self.place.hosts * self.place.ranks_per_host


def files_of(cell: Cell, network: Network, folder: Path, seconds: float, again: bool) -> dict[str, Path]:
    """Return the files of both schedules by name, the named algorithm first; make missing files.

    seconds: of the search, which does not end early and always tries other forms of built-in algorithms.
    again: make the files in any case.
    """
    listed = folder / f"{cell.place.name}-{cell.name}-{seconds:g}s.json"
    if again or not listed.exists():
        collective, options = COLLECTIVES[cell.function], SearchOptions(seconds, runtime=OURS.runtime, enough=0.0)
        synthesis, files = synthesize(collective, network, cell.num_ranks, cell.size_bytes, options), {}
        best = synthesis.named[0]
        named = best.schedule(collective, cell.num_ranks, cell.size_bytes)
        for name, kind, schedule in ((best.options, "named", named), (FOUND, FOUND, synthesis.found_schedule)):
            files[name] = str(folder / f"{cell.place.name}-{cell.name}-{kind}.xml")
            with atomic_file(Path(files[name])) as file:
                file.writelines(line.encode() for line in msccl_lines(schedule, with_places=True))
        with atomic_file(listed) as file:
            file.write(json.dumps(files).encode())
    return {name: Path(file) for name, file in read_json(listed).items()}


def compared(cell: Cell, network: Network, files: dict[str, Path], folder: Path, again: bool) -> list[ComparedCase]:
    """Return measured and predicted times of the named and the found schedule."""
    size, schedules = str(cell.size_bytes), ",".join(map(str, files.values()))
    arguments = ("--collective", cell.function, "-b", size, "-e", size, "--algorithm", schedules)
    few = FEW_CALLS if cell.size_bytes > 4 * MIB else ()
    times = measured(cell.place, folder, cell.name, (*arguments, *few), again)
    cases = cases_of_measurements(times, cell.place.hosts, cell.title)
    known = {case.case.algorithm: case for case in compare_measurements(cases, network).cases}
    return [known[str(file)] for file in files.values()]


def row(cell: Cell, label: str, named: ComparedCase, found: ComparedCase) -> str:
    """Return a row of the table. label: of the named algorithm. Raises ValueError without a prediction."""
    if named.predicted_s is None or found.predicted_s is None:
        raise ValueError(f"{cell.title}: {named.how}; {found.how}")
    predicted, timed = named.predicted_s / found.predicted_s, named.case.measured_s / found.case.measured_s
    off = timed / predicted - 1
    cells = (
        f"{cell.place.hosts} x {cell.place.ranks_per_host}", COLLECTIVES[cell.function].value,
        format_size(cell.size_bytes), label,
        format_time(named.predicted_s), format_time(found.predicted_s), f"{predicted:.2f}",
        format_time(named.case.measured_s), format_time(found.case.measured_s), f"{timed:.2f}",
        f"{off:+.1%}" + ("" if abs(off) <= TARGET else " (missed)"),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


@click.command("synthesis_fidelity", cls=OneLineCommand, context_settings={"show_default": True})
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default="build/synthesis")
@click.option("--seconds", type=float, default=10.0, help="Duration of each search.")
@click.option("--again", is_flag=True, help="Search and measure again what the output folder has already.")
@click.option("--only", multiple=True, help="Words in the title of the cells to measure; repeatable.")
@click.option("--search", "searching", is_flag=True, help="Only calibrate and search; measure another time.")
def main(output: Path, seconds: float, again: bool, only: tuple[str, ...], searching: bool) -> None:
    """Calibrate, search, measure; print the table."""
    cells = [Cell(place, function, size) for place in PLACES for function in TIMED for size in SIZES]
    chosen = [cell for cell in cells if not only or any(words in cell.title for words in only)]
    if not chosen:
        raise click.UsageError(f"--only {only[0]}: no cell has these words; the first is {cells[0].title!r}")
    if reason := why_not():
        raise ValueError(f"no testbed here: {reason}")
    output.mkdir(parents=True, exist_ok=True)
    places = [place for place in PLACES if any(cell.place == place for cell in chosen)]
    networks = {place.name: calibrated(place, output, again, PROBED) for place in places}
    click.echo("\n".join(HEAD))
    for cell in chosen:
        click.echo(cell.title, err=True)
        network = networks[cell.place.name]
        files = files_of(cell, network, output, seconds, again)
        if not searching:
            click.echo(row(cell, next(iter(files)), *compared(cell, network, files, output, again)))


if __name__ == "__main__":
    main(prog_name="synthesis_fidelity")  # in messages, as it is where they do not come from click
