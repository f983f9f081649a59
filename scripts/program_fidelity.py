"""How far off predictions of whole programs are: their steps as `ringsim trace` and `ringsim step` predict them.

usage: python scripts/program_fidelity.py --ranks 2 "examples/gpt.py --backend gloo" "examples/fsdp.py gloo"

In each turn this machine is probed, and then each program is recorded in one process, predicted, and run under
torchrun, where a hook of torch's notes when its optimizer steps.
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
from pathlib import Path
from typing import Any

import click

from ringsim.console import IntRange, OneLineCommand
from ringsim.text_table import align_columns

WARM_UP, STEPS = 5, 40  # of a program that runs; so many are recorded, too
TIMED = "--timed"  # how this script runs a program under torchrun
RINGSIM = (sys.executable, "-m", "ringsim.cli")


def run_timed(folder: str, program: str, *arguments: str) -> None:
    """Run a program until it has made its steps, and leave the median seconds of one in `folder`, for each rank."""
    from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415  only ranks need torch

    moments_s: list[float] = []

    def note(*_: Any) -> None:
        moments_s.append(time.perf_counter())
        if len(moments_s) == WARM_UP + STEPS:
            steps_s = [
                after - before for before, after in zip(moments_s[WARM_UP - 1 :], moments_s[WARM_UP:], strict=False)
            ]
            (Path(folder) / os.environ["RANK"]).write_text(json.dumps(statistics.median(steps_s)))
            os._exit(0)  # whatever the program would still do; the other ranks have made this step, too

    register_optimizer_step_post_hook(note)
    sys.argv, sys.path[0] = [program, *arguments], str(Path(program).parent.absolute())
    runpy.run_path(program, run_name="__main__")
    raise SystemExit(f"{program}: ended after {len(moments_s)} steps: must make {WARM_UP + STEPS}")


def measured_s(program: list[str], num_ranks: int, folder: Path) -> float:
    """Return the median seconds of a step, averaged over the ranks of a real run."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    _run(sys.executable, *start, __file__, TIMED, str(folder), *program)
    return statistics.fmean(float((folder / str(rank)).read_text()) for rank in range(num_ranks))


def predicted_s(program: list[str], num_ranks: int, network: Path, folder: Path) -> float:
    """Return the seconds of a step as they are predicted from a recording by one process."""
    trace = str(folder / "step.trace.json")
    ranks = [f"--ranks={num_ranks}", f"--ranks-per-host={num_ranks}"]
    _run(*RINGSIM, "trace", *ranks, "--device=cpu", f"--steps={STEPS}", "-o", trace, *program)
    step = json.loads(_run(*RINGSIM, "step", trace, "--network", str(network), "--json"))
    return float(step["step_s"])


def calibrated(num_ranks: int, folder: Path) -> Path:
    """Probe this machine, and return the file of the network."""
    probes, network = folder / "probes.json", folder / "network.toml"
    _run(*RINGSIM, "measure", f"--ranks={num_ranks}", "-b", "64K", "-e", "64K", "-n", "1", "-o", str(probes))
    _run(*RINGSIM, "calibrate", str(probes), "-o", str(network))
    return network


def _run(*command: str) -> str:
    """Return what a command prints. Raises ClickException with its last line if it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise click.ClickException(f"{shlex.join(command)}: {lines[-1]}")
    return done.stdout


@click.command("program_fidelity", cls=OneLineCommand)
@click.argument("programs", nargs=-1, required=True, metavar='"PROGRAM ARGUMENTS"...')
@click.option("--ranks", type=IntRange(min=1), default=2, show_default=True, help="So many run on this machine.")
@click.option("--turns", type=IntRange(min=1), default=3, show_default=True, help="Each has probes of its own.")
def main(programs: tuple[str, ...], ranks: int, turns: int) -> None:
    """Record, predict and run each program, in turns; print the seconds of a step and the errors."""
    rows = [["program", "turn", "predicted ms", "measured ms", "error"]]
    for turn in range(turns):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            network = calibrated(ranks, folder)
            for text in programs:
                program = shlex.split(text)
                predicted, measured = predicted_s(program, ranks, network, folder), measured_s(program, ranks, folder)
                times = f"{predicted * 1e3:.1f}", f"{measured * 1e3:.1f}", f"{predicted / measured - 1:+.0%}"
                rows.append([text, str(turn + 1), *times])
                click.echo("  ".join(rows[-1]), err=True)
    click.echo("\n".join(align_columns(rows)))


if __name__ == "__main__":
    if sys.argv[1:2] == [TIMED]:
        run_timed(*sys.argv[2:])
    main(prog_name="program_fidelity")
