"""Predict the steps of the programs in the logs of modded-nanogpt's records, and compare them with the logs' times.

    git clone https://github.com/KellerJordan/modded-nanogpt
    python scripts/speedruns.py modded-nanogpt 2024-10-18_PyTorch25 2025-01-26_BatchSize

A log there contains the program that wrote it. Each is recorded unchanged as one of 8 ranks, with random tokens, and
its step predicted for 8 H100 of one host. The first steps are recorded, so that they are compared with the mean of the
steps 15 to 150: some programs attend to more tokens, or have larger batches, later on.
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from program_fidelity import RINGSIM, output_of

FROM_STEP, TO_STEP = 15, 150
SHARD = "data/fineweb10B/fineweb_{}_000000.bin"
TOKENS = {"train": 20_000_000, "val": 12_000_000}
MAGIC, VERSION, SEPARATOR, VOCABULARY = 20240520, 1, 50256, 50257  # of a shard's header; and of GPT-2's tokens
DOCUMENT = 700  # tokens
TRACE = ("trace", "--fake", "--ranks", "8", "--ranks-per-host", "8", "-o", "step.json", "train.py")
STEP = ("step", "step.json", "--network", "dgx-h100-cluster", "--gpu", "h100", "--json")
_BEGINNING = re.compile(r'^(import|from|"""|#)', re.MULTILINE)  # of a program


class Log(NamedTuple):
    """The program and the times of a log. times_s: since the beginning of the training, by step."""

    code: str
    times_s: dict[int, float]

    @property
    def bounds(self) -> list[int]:
        """Return the first and the last of the compared steps; one step if there is no other time."""
        return sorted({min(step for step in self.times_s if step >= bound) for bound in (FROM_STEP, TO_STEP)})

    @property
    def step_s(self) -> float:
        """Return the mean time of the compared steps."""
        first, last = self.bounds
        return (self.times_s[last] - self.times_s[first]) / (last - first)


def read_log(text: str) -> Log:
    """Read the program, which ends with a line of "=", and the times of its steps. Raise ValueError for others."""
    begin = _BEGINNING.search(text)
    code, line, rest = text[begin.start() if begin else 0 :].partition("\n" + "=" * 100)
    found = re.findall(r"step:(\d+)/\d+.*?train_time:([\d.]+)(m?s)", rest)
    times_s = {int(step): float(time) / (1e3 if unit == "ms" else 1) for step, time, unit in found}
    if not line or max(times_s, default=0) < TO_STEP or len(Log(code, times_s).bounds) < 2:
        raise ValueError(f"no program, or no times up to step {TO_STEP}")
    return Log(code, times_s)


def find_log(record: Path) -> Log:
    """Return the first log of a record that contains a program."""
    for path in sorted([*record.rglob("*.txt"), *record.rglob("*.log")]):
        try:
            return read_log(path.read_text(errors="replace"))
        except ValueError:
            continue
    raise click.ClickException(f"{record}: no log with a program and its times up to step {TO_STEP}")


def write_shard(path: Path, num_tokens: int) -> None:
    """Write random tokens in the format of these programs: a header of 256 integers, and 16 bits a token."""
    header = np.zeros(256, np.int32)
    header[:3] = MAGIC, VERSION, num_tokens
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, num_tokens).astype(np.uint16)
    tokens[::DOCUMENT] = SEPARATOR
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header.tobytes() + tokens.tobytes())


def predict(log: Log) -> dict[str, Any]:
    """Return the step as `ringsim step --json` has it."""
    with tempfile.TemporaryDirectory() as folder:
        for part, num_tokens in TOKENS.items():
            write_shard(Path(folder) / SHARD.format(part), num_tokens)
        Path(folder, "train.py").write_text(log.code)
        output_of(*RINGSIM, *TRACE, cwd=Path(folder))
        step: dict[str, Any] = json.loads(output_of(*RINGSIM, *STEP, cwd=Path(folder)))
    return step


@click.command()
@click.argument("clone", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("records", nargs=-1, required=True)
def main(clone: Path, records: tuple[str, ...]) -> None:
    """Print a row for each of RECORDS, folders of CLONE/records."""
    click.echo("| record | predicted ms | expected to 80 % | measured ms | error |\n| --- | --- | --- | --- | --- |")
    for name in records:
        folders = sorted((clone / "records").rglob(name))
        if not folders:
            raise click.ClickException(f"{clone / 'records'}: no record {name}")
        log = find_log(folders[0])
        step = predict(log)
        bounds = step["compiled_between_s"] or (step["predicted_low_s"], step["predicted_high_s"])
        low, high, value, measured = (1e3 * seconds for seconds in (*bounds, step["step_s"], log.step_s))
        click.echo(f"| {name} | {value:.1f} | {low:.1f} to {high:.1f} | {measured:.1f} | {value / measured - 1:+.1%} |")


if __name__ == "__main__":
    main()
