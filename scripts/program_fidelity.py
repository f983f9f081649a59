"""Measure the errors of predictions of whole programs, whose steps `ringsim trace` and `ringsim step` predict.

usage: python scripts/program_fidelity.py --ranks 2 "examples/gpt.py --backend gloo" "examples/fsdp.py gloo"

Each turn probes this machine. Each program is then recorded in one process, predicted, and run on ranks of this host,
where torch's optimizer hook notes the steps.
"""

import json
import os
import runpy
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from torch.optim.optimizer import register_optimizer_step_post_hook

from accuracy_points import Point, write_points
from collectives.runtime import GlooThreadPolicy, set_gloo_thread_policy
from ringsim.console import IntRange, OneLineCommand, run_local_ranks

WARM_UP, STEPS = 5, 40  # at most, of a program that runs; so many are recorded, too
TIMED = "--timed"  # how this script runs a program on each rank
RINGSIM = (sys.executable, "-m", "ringsim")


def run_timed(policy: GlooThreadPolicy, folder: str, program: str, *arguments: str) -> None:
    """Run a program until it has made its steps, or ends, and leave the median of each rank in `folder`, in seconds."""
    moments_s: list[float] = []

    def leave() -> None:
        steps_s = [after - before for before, after in pairwise(moments_s[WARM_UP:])]
        if not steps_s:
            sys.exit(f"{program}: made {len(moments_s)} steps: it must make {WARM_UP + 2} or more")
        (Path(folder) / os.environ["RANK"]).write_text(str(statistics.median(steps_s)))
        os._exit(0)  # whatever the program would still do; the other ranks have made this step, too

    def note(*_: Any) -> None:
        if not moments_s and policy == "batch":
            set_gloo_thread_policy(policy)  # as a program does that has made its groups
        moments_s.append(time.perf_counter())
        if len(moments_s) > WARM_UP + STEPS:
            leave()

    register_optimizer_step_post_hook(note)
    home = _home([program]).absolute()
    sys.argv, sys.path[0] = [program, *arguments], str(home)
    os.chdir(home)
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise
    leave()


def measured_s(program: list[str], num_ranks: int, policy: GlooThreadPolicy, folder: Path) -> float:
    """Return the median seconds of a step, averaged over the ranks of a real run.

    Raises ClickException with the last line of the ranks if one fails.
    """
    with tempfile.TemporaryDirectory(dir=folder) as times:
        timed = [str(Path(__file__).absolute()), TIMED, policy, times]
        try:
            run_local_ranks(num_ranks, [*timed, *program], quiet=True)
        except OSError as error:
            *_, last = str(error).splitlines()
            raise click.ClickException(f"{shlex.join(program)} on {num_ranks} ranks: {last}") from None
        return statistics.fmean(float((Path(times) / str(rank)).read_text()) for rank in range(num_ranks))


def predicted_s(program: list[str], num_ranks: int, network: Path, folder: Path) -> float:
    """Return the median seconds of a step, predicted from a recording by one process."""
    trace = str(folder / "step.trace.json")
    ranks = [f"--ranks={num_ranks}", f"--ranks-per-host={num_ranks}"]
    output_of(*RINGSIM, "trace", *ranks, "--device=cpu", f"--steps={STEPS}", "-o", trace, *program, cwd=_home(program))
    step = json.loads(output_of(*RINGSIM, "step", trace, "--network", str(network), "--json"))
    return statistics.median_low(step["steps_s"])


def calibrated(num_ranks: int, policy: GlooThreadPolicy, folder: Path) -> Path:
    """Probe this machine; return the path of the network file."""
    probes, network = folder / "probes.json", folder / "network.toml"
    options = f"--ranks={num_ranks} -b 64K -e 64K -n 1 --gloo-thread-policy={policy}"  # one collective, as briefly
    output_of(*RINGSIM, "measure", *options.split(), "-o", str(probes))
    output_of(*RINGSIM, "calibrate", str(probes), "-o", str(network))
    return network


def _home(program: list[str]) -> Path:
    """Return the folder in which a program runs, because it may look for files there."""
    return Path(program[0]).parent


def _split(text: str) -> list[str]:
    """Split a program from its arguments. Raises UsageError if the program does not exist."""
    try:
        script, *arguments = shlex.split(text)
    except ValueError:
        raise click.UsageError(f"{text!r}: must be a program and its arguments, quoted as in a shell") from None
    if not Path(script).is_file():
        raise click.UsageError(f"{script}: there is no such file; give the path of a Python program")
    return [script, *arguments]


def output_of(*command: str, cwd: Path | None = None) -> str:
    """Return a command's output. Raises ClickException with its last line if it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace", cwd=cwd)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise click.ClickException(f"{shlex.join(command)}: {lines[-1]}")
    return done.stdout


@click.command("program_fidelity", cls=OneLineCommand)
@click.argument("programs", nargs=-1, required=True, metavar='"PROGRAM ARGUMENTS"...')
@click.option("--ranks", type=IntRange(min=1), default=2, help="Number of ranks, all on this machine.")
@click.option("--turns", type=IntRange(min=1), default=3, help="Number of rounds, each with its own probes.")
@click.option(
    "--gloo-thread-policy",
    "policy",
    type=click.Choice(["normal", "batch"]),
    default="normal",
    help="Scheduling policy of Gloo's threads in the programs and probes; normal is the default of Linux.",
)
@click.option(
    "--points",
    type=click.Path(path_type=Path, dir_okay=False),
    help="CSV file to write, with a row for each predicted and measured time.",
)
def main(programs: tuple[str, ...], ranks: int, turns: int, policy: GlooThreadPolicy, points: Path | None) -> None:
    """Record, predict and run each program, in turns; print milliseconds of a step and errors of each turn."""
    os.environ["OMP_NUM_THREADS"] = "1"  # of all that is started
    commands = {text: _split(text) for text in programs}
    rows: dict[str, list[tuple[str, str, str]]] = {text: [] for text in programs}
    found: list[Point] = []
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            network = calibrated(ranks, policy, folder)
            for text, row in rows.items():
                script, *arguments = commands[text]
                program = [str(Path(script).absolute()), *arguments]
                predicted = predicted_s(program, ranks, network, folder)
                measured = measured_s(program, ranks, policy, folder)
                found.append(Point("whole program", f"{text}, {ranks} ranks", predicted, measured))
                row.append((f"{predicted * 1e3:.1f}", f"{measured * 1e3:.1f}", f"{predicted / measured - 1:+.0%}"))
                click.echo(f"{text}: {' '.join(row[-1])}", err=True)
    click.echo(f"| program on {ranks} ranks | predicted ms | measured ms | error |\n| --- | --- | --- | --- |")
    for text, row in rows.items():
        click.echo(f"| `{text}` | {' | '.join(map(', '.join, zip(*row, strict=True)))} |")
    if points:
        write_points(points, found)


if __name__ == "__main__":
    if sys.argv[1:2] == [TIMED]:
        run_timed(*sys.argv[2:])  # type: ignore[arg-type]
    main(prog_name="program_fidelity")
