"""Measure the errors of predictions on testbeds and on this machine: a table of docs/accuracy.md.

Networks are calibrated only with probes. They predict collectives of other sizes or numbers of ranks, and training
steps from probes and steps recorded without sending. The output folder keeps the measurements, so that an interrupted
run can continue.
"""

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import click

from accuracy_points import Point, points_of, write_points
from netns_testbed import run_ranks, why_not
from ringsim.calibration import ComparedCase, calibrate, cases_of_measurements, compare_measurements
from ringsim.console import OneLineCommand
from ringsim.files import atomic_file, read_json, read_text
from ringsim.measurements import Measurements, p95
from ringsim.network import Network, network_text, read_network

BENCHMARK = ("-m", "collectives.benchmark", "--in-place", "--cell-time", "250ms")
MIB = 2**20
SMALL = ("-b", "1KiB", "-e", "512KiB")
MAIN_JOB = str(Path(__file__).parent / "train_ring.py")
STRATEGIES = "allreduce,flat,rs_ag,ring,bucketed,bucketed/0.25,ddp,ddp/0.25,ddp/1,ddp_hook,zero1"
TRAINING = (MAIN_JOB, "--strategies", STRATEGIES, "--steps", "60")
ALL_REDUCE = (
    "--collective",
    "all_reduce",
    "--algorithm",
    "ring,ring/4,recursive_doubling,halving_doubling,binomial_tree",
)
HALVES = ("--collective", "reduce_scatter_tensor,all_gather_into_tensor", "--algorithm", "ring")


@dataclass(frozen=True, slots=True)
class Place:
    """The location of the ranks: hosts of a testbed, or this machine if there is one host.

    slow: hosts with a different rate. transport: of our collectives, as in `collectives.use_transport`.
    """

    hosts: int
    ranks_per_host: int
    slow: Mapping[int, str] = field(default_factory=dict)
    transport: str = "gloo"

    @property
    def name(self) -> str:
        """The prefix of its files' names."""
        slow = "".join(f"-{host}at{rate}" for host, rate in self.slow.items())
        return f"{self.hosts}x{self.ranks_per_host}{slow}{'' if self.transport == 'gloo' else f'-{self.transport}'}"

    @property
    def largest(self) -> str:
        return "64MiB" if self.hosts == 1 else "16MiB"

    def run(self, arguments: Sequence[str]) -> None:
        """Run a program at this place. Raises OSError if it fails."""
        with patch.dict(os.environ, COLLECTIVES_TRANSPORT=self.transport):
            run_ranks(self.hosts, self.ranks_per_host, arguments, self.slow)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A network calibrated in one place, and predictions for others.

    bounds: of the classes of sizes; targets: for the median |error| of each class.
    """

    title: str
    calibrated: Place
    predicted: tuple[Place, ...]
    bounds: tuple[int, ...]
    targets: tuple[float, ...]


EXPERIMENTS = (
    Experiment(
        "testbed, 1 Gbit/s, calibrated on 2 hosts, predicted for 3 and 4",
        Place(2, 1), (Place(3, 1), Place(4, 1)), (0, MIB, 2**40), (0.15, 0.05),
    ),
    Experiment(
        "testbed, 1 Gbit/s, calibrated on 3 hosts, predicted for 4",
        Place(3, 1), (Place(4, 1),), (0, MIB, 2**40), (0.15, 0.05),
    ),
    Experiment(
        "testbed, 4 hosts, one at 250 Mbit/s",
        Place(4, 1, {2: "250mbit"}), (Place(4, 1, {2: "250mbit"}),), (MIB, 2**40), (0.08,),
    ),
    Experiment("testbed, 2 hosts of 2 ranks", Place(2, 2), (Place(2, 2),), (0, MIB, 2**40), (0.15, 0.08)),
    *(
        Experiment(
            f"loopback, {ranks} ranks on this machine's cores",
            Place(1, ranks), (Place(1, ranks),), (0, 8 * MIB, 2**40), (0.25, 0.10),
        )
        for ranks in (2, 4, 8)
    ),
    *(
        Experiment(
            f"shared memory, {ranks} ranks on this machine's cores",
            Place(1, ranks, transport="shm"), (Place(1, ranks, transport="shm"),), (MIB, 2**40), (0.10,),
        )
        for ranks in (2, 4, 8)
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Training:
    """Training steps with every strategy in one place. target: for the median |error|."""

    title: str
    place: Place
    target: float


TRAININGS = (
    Training("training step, testbed, 2 hosts, 1 Gbit/s", Place(2, 1), 0.08),
    Training("training step, testbed, 4 hosts, 1 Gbit/s", Place(4, 1), 0.08),
    Training("training step, loopback, 2 ranks", Place(1, 2), 0.12),
    Training("training step, loopback, 4 ranks", Place(1, 4), 0.12),
    Training("training step, shared memory, 2 ranks", Place(1, 2, transport="shm"), 0.12),
    Training("training step, shared memory, 4 ranks", Place(1, 4, transport="shm"), 0.12),
)


def measured(place: Place, folder: Path, what: str, arguments: Sequence[str], again: bool) -> Measurements:
    """Return the benchmark's measurements, or an earlier run's from the folder, unless `again`."""
    file = folder / f"{place.name}-{what}.json"
    if again or not file.exists():
        place.run([*BENCHMARK, *arguments, "-o", str(file)])
    return Measurements.load(file)


def calibrated(place: Place, folder: Path, again: bool, largest: str = "") -> Network:
    """Return the network fitted to the place's probes, written to a file and read again, as a user would.

    largest: size of the probed messages' tensor; by default the place's.
    """
    largest = largest or place.largest
    probes = ("--probes", "-b", largest, "-e", largest, "-n", "1", "--calls", "1")
    found = measured(place, folder, "probes", probes, again)
    file = folder / f"{place.name}.toml"
    fit = calibrate(found, file.stem, file=f"{place.name}-probes.json")
    with atomic_file(file) as writing:
        writing.write(network_text(fit.cluster).encode())
    return read_network(read_text(file), str(file))


def compared(experiment: Experiment, folder: Path, again: bool) -> Iterator[ComparedCase]:
    """Yield all cases of an experiment."""
    network = calibrated(experiment.calibrated, folder, again)
    for place in experiment.predicted:
        large = ("-b", "1MiB", "-e", place.largest)
        for size, sizes in (("small", SMALL), ("large", large))[experiment.bounds[0] > 0 :]:
            for what, arguments in (("all_reduce", ALL_REDUCE), ("halves", HALVES)):
                found = measured(place, folder, f"{what}-{size}", (*sizes, *arguments), again)
                cases = cases_of_measurements(found, place.hosts, place.name)
                yield from compare_measurements(cases, network).cases


def row(
    title: str, sizes: str, errors: Sequence[float], spreads: Sequence[float], target: float, inside: float | None
) -> str:
    """Return a row of the table. inside: the share of the cells inside their intervals, or None."""
    median = statistics.median(errors)
    return (
        f"| {title} | {sizes} | {len(errors)} | {median:.1%} | {p95(errors):.1%} | {statistics.median(spreads):.0%} | "
        f"{'' if inside is None else f'{inside:.0%}'} | {target:.0%} | {'' if median <= target else 'missed'} |"
    )


def rows(experiment: Experiment, folder: Path, again: bool, found: list[Point]) -> Iterator[str]:
    """Yield a row per class of sizes, and add the times to `found`."""
    cases = [each for each in compared(experiment, folder, again) if each.error is not None]
    place = experiment.title.partition(",")[0]
    found += points_of(place, experiment.title, cases)
    for low, high, target in zip(experiment.bounds, experiment.bounds[1:], experiment.targets, strict=False):
        some = [each for each in cases if low <= each.case.call.size_bytes < high]
        errors = [abs(each.error) for each in some if each.error is not None]
        sizes = f"from {low // MIB} MiB" if low else f"below {high // MIB} MiB"
        inside = statistics.mean(each.is_inside for each in some)
        yield row(experiment.title, sizes, errors, [each.spread for each in some], target, inside)


def training_row(training: Training, folder: Path, again: bool, found: list[Point]) -> str:
    """Return one row for all strategies, and add their times to `found`."""
    output = folder / f"{training.place.name}-training"
    if again or not (output / "report.json").exists():
        training.place.run([*TRAINING, "--output", str(output)])
    results = read_json(output / "report.json")["strategies"]
    found += [
        Point("training step", f"{training.title}: {result['strategy']}", result["predicted_step_s"], result["step_s"])
        for result in results
    ]
    errors = [abs(result["step_error"]) for result in results]
    spreads = [(result["step_p90_s"] - result["step_p10_s"]) / result["step_s"] for result in results]
    return row(training.title, "1.8 MB of gradients", errors, spreads, training.target, None)


@click.command("fidelity", cls=OneLineCommand, context_settings={"show_default": True})
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default="fidelity")
@click.option(
    "--points",
    type=click.Path(path_type=Path, dir_okay=False),
    help="CSV file to write, with a row for each predicted and measured time.",
)
@click.option("--again", is_flag=True, help="Repeat the measurements that are already in the output folder.")
@click.option("--only", multiple=True, help="Run only experiments with these words in their title; repeatable.")
def main(output: Path, points: Path | None, again: bool, only: tuple[str, ...]) -> None:
    """Measure, calibrate, predict, compare; print the table."""
    reason = why_not()
    chosen = [each for each in EXPERIMENTS if not only or any(words in each.title for words in only)]
    trained = [each for each in TRAININGS if not only or any(words in each.title for words in only)]
    places = [each.calibrated for each in chosen] + [each.place for each in trained]
    if reason and any(place.hosts > 1 for place in places):
        raise ValueError(f"no testbed here: {reason}; --only loopback does without")
    output.mkdir(parents=True, exist_ok=True)
    found: list[Point] = []
    lines = [
        "| where | sizes | cells | median error | 95th percentile | measured spread | in their 80 % | target | |",
        "|---|---|---|---|---|---|---|---|---|",
        *(row for each in chosen for row in rows(each, output, again, found)),
        *(training_row(each, output, again, found) for each in trained),
    ]
    num_missed = sum(line.endswith("| missed |") for line in lines)
    click.echo("\n".join([*lines, "", f"{num_missed} of {len(lines) - 2} rows miss their target."]))
    if points:
        write_points(points, found)


if __name__ == "__main__":
    main(prog_name="fidelity")  # in messages, as it is where they do not come from click
