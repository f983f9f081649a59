"""Compare the training step of our strategies with torch's DDP.

All strategies train interleaved by step in one strategy comparison; a ratio is the median over the steps.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import click

from collectives.probes import provenance
from netns_testbed import run_ranks, why_not
from ringsim.console import IntRange, OneLineCommand
from ringsim.files import read_json
from ringsim.measurements import p10_p90

MAIN_JOB = str(Path(__file__).parent / "train_ring.py")
OURS = ("bucketed", "ddp_hook", "zero1")
HALVED = ("bucketed_bf16", "ddp_hook_bf16")
OTHERS = ("ring", "flat", "ddp_backend_ring")
LARGE = ("--d-model", "256", "--d-ff", "1024", "--layers", "4")
SHORT = ("--batch-size", "1", "--sequence-length", "32")
MODELS = {
    "0.5 million parameters, 512 tokens a rank": (),  # computing takes most of the time
    "3.3 million parameters, 32 tokens a rank": (*LARGE, *SHORT),  # sending does
}


class Hosts(NamedTuple):
    """count: hosts of a testbed of 1 Gbit/s; 1: this machine. ranks: on all hosts together."""

    title: str
    count: int
    ranks: int

    def targets(self) -> dict[str, float]:
        """Return, by strategy, the largest acceptable ratio of a step to DDP's."""
        equal = {"bucketed": 1.0, "ddp_hook": 1.0, "zero1": 1.05}
        return equal if self.count == 1 else {**equal, **dict.fromkeys(HALVED, 0.65)}


ALL_HOSTS = (
    Hosts("2 ranks on this machine", 1, 2),
    Hosts("4 ranks on this machine", 1, 4),
    Hosts("4 hosts of a testbed, 1 Gbit/s", 4, 4),
)


def report(hosts: Hosts, arguments: list[str], output: Path) -> dict[str, Any]:
    """Run the strategy comparison on the hosts; return its report."""
    run_ranks(hosts.count, hosts.ranks // hosts.count, [MAIN_JOB, *arguments, "--output", str(output)])
    content: dict[str, Any] = read_json(output / "report.json")
    return content


def ratios(found: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Return the ratios of each strategy's steps to DDP's: the median, the 10th and the 90th percentile."""
    steps_s = {result["strategy"]: result["steps_s"] for result in found["strategies"]}
    theirs = steps_s.pop("ddp")
    return {name: _spread([a / b for a, b in zip(ours, theirs, strict=True)]) for name, ours in steps_s.items()}


def _spread(values: list[float]) -> tuple[float, float, float]:
    return statistics.median(values), *p10_p90(values)


def rows(hosts: Hosts, model: str, found: dict[str, Any]) -> list[str]:
    """Return a line per strategy."""
    targets = hosts.targets()
    step_ms = next(each["step_s"] for each in found["strategies"] if each["strategy"] == "ddp") * 1e3
    lines = [f"{hosts.title}, {model}: a step with ddp takes {step_ms:.1f} ms"]
    for name, (median, low, high) in ratios(found).items():
        target = targets.get(name)
        judged = "" if target is None else f"  target {target:.2f}: {'reached' if median <= target else 'missed'}"
        lines.append(f"  {name:15}{median:6.2f}  ({low:.2f} to {high:.2f}){judged}")
    return lines


@click.command(cls=OneLineCommand, context_settings={"show_default": True})
@click.option("--steps", type=IntRange(8), default=60, help="Number of steps with each strategy.")
@click.option("--only", multiple=True, help="Train only on hosts with these words in their title; repeatable.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Folder in which to keep the reports."
)
def main(steps: int, only: tuple[str, ...], output: Path | None) -> None:
    """Train with each model on each of ALL_HOSTS, and print the ratios."""
    where = provenance()
    click.echo(f"# {where['machine']}, {where['cores']} cores, torch {where['torch']}, {where['date']}")
    strategies = ",".join(("ddp", *OURS, *HALVED, *OTHERS))
    with tempfile.TemporaryDirectory() as folder:
        for hosts in ALL_HOSTS:
            if only and not any(words in hosts.title for words in only):
                continue
            if hosts.count > 1 and (reason := why_not()):
                click.echo(f"{hosts.title}: left out: {reason}")
                continue
            for model, options in MODELS.items():
                arguments = ["--strategies", strategies, "--steps", str(steps), *options]
                kept = (output or Path(folder)) / f"{hosts.count}x{hosts.ranks}-{len(options)}"
                click.echo("\n".join(rows(hosts, model, report(hosts, arguments, kept))))


if __name__ == "__main__":
    main()
