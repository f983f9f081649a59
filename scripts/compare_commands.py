"""Compare exit codes, numbers and files of some 400 commands before and after a change, to the bit.

    python scripts/compare_commands.py record before      # in the old tree
    python scripts/compare_commands.py record after       # in the new tree, perhaps with the same --files
    python scripts/compare_commands.py compare before after

All printed and written numbers must be equal. Words may differ; --words shows them. Pictures and pages are not
compared.
"""

import difflib
import json
import os
import re
import shutil
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from ringsim.cli import main as ringsim

ROOT = Path(__file__).parent.parent
MODELS = ("dgx-h100-cluster", "gbe-racks", "docs/networks/shared-memory.toml", "docs/networks/calibrated.toml")
COMPARED = (".json", ".csv", ".toml", ".xml", ".goal", ".trace")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")
# How long it took, and when and where: what differs between two runs of one tree.
PASSING = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.+Z]*|(?<=in )[\d.]+ m?s\b|/tmp/\S+")


def commands() -> Iterator[list[str]]:
    """Yield each command with its arguments; the commands write files to the current folder."""
    algorithms = _algorithms_of_each_collective()
    yield from _algorithms(algorithms)
    yield from _simulations(algorithms)
    yield from _explanations(algorithms)
    yield from _networks_and_logs()
    yield from _steps_and_formats()
    yield from _mistakes()


def _algorithms_of_each_collective() -> dict[str, list[str]]:
    listed = json.loads(_answer(["algorithms", "--ranks", "8", "--json"])["output"])
    names: dict[str, list[str]] = defaultdict(list)
    for algorithm in listed["algorithms"]:
        names[algorithm["collective"]].append(algorithm["algorithm"])
    return names


def _algorithms(algorithms: dict[str, list[str]]) -> Iterator[list[str]]:
    for ranks in ("2", "7", "8", "64"):
        yield ["algorithms", "--ranks", ranks]
        yield ["algorithms", "--ranks", ranks, "--json"]
    for collective, names in algorithms.items():
        for name in [*names, "ring/4"]:
            for ranks in ("6", "8"):
                yield ["verify", "--collective", collective, "--algorithm", name, "--ranks", ranks]


def _simulations(algorithms: dict[str, list[str]]) -> Iterator[list[str]]:
    for collective, names in algorithms.items():
        for name in [*names, "ring/4"]:
            chosen = ["simulate", "--collective", collective, "--algorithm", name, "--json"]
            yield [*chosen, "--ranks", "8", "--size", "1MB", "--reduce-bandwidth", "3GB/s", "--trace", "run.trace"]
            yield [*chosen, "--ranks", "6", "--size", "100KB", "--in-order"]
            for network in MODELS:
                yield [*chosen, "--ranks", "16" if "rack" in network else "8", "--size", "3MB", "--network", network]
    yield ["simulate", "--ranks", "65536", "--size", "1GiB"]
    yield ["simulate", "--ranks", "8", "--per-rank", "--wide"]
    yield ["simulate", "--ranks", "64", "--algorithm", "nccl", "--network", "dgx-h100-cluster", "--size", "1GiB"]
    yield ["simulate", "--ranks", "8", "--network", "docs/networks/cables.toml"]
    yield ["simulate", "--ranks", "4", "--network", "docs/networks/failing.toml"]
    yield ["simulate", "--ranks", "8", "--network", "docs/networks/trouble.toml", "--per-rank"]


def _explanations(algorithms: dict[str, list[str]]) -> Iterator[list[str]]:
    for name in ("ring", "halving_doubling", "double_binary_tree", "hierarchical", "nvls"):
        yield ["explain", "--algorithm", name, "--ranks", "8", "--size", "1MiB"]
        yield ["explain", "--algorithm", name, "--ranks", "8", "--size", "1MiB", "--network", "dgx-h100", "--json"]
        yield ["animate", "--algorithm", name, "--ranks", "8", "--size", "1MiB", "-o", "page.html"]
        yield ["plot", "--algorithm", name, "--ranks", "8", "--size", "1MiB", "-o", "picture.svg"]
    yield ["explain", "--ranks", "8", "--network", "docs/networks/slow-nic.toml"]
    yield ["animate", "--ranks", "8", "--compare", "ring,halving_doubling", "-o", "two.html"]
    for collective in algorithms:
        yield ["sweep", "--collective", collective, "--ranks", "2,6,8", "--sizes", "1KiB:16MiB", "--csv", "cells.csv"]
    for network in MODELS:
        ranks = "16,32" if "cluster" in network else "4,8"
        yield ["sweep", "--ranks", ranks, "--sizes", "1KiB:1MiB", "--network", network, "--json", "-o", "picture.png"]
    interleaved = ["--network", "docs/networks/interleaved.toml", "--budget", "50"]
    yield ["order", "--ranks", "12", *interleaved, "-o", "order.json"]
    yield ["order", "--ranks", "6", "--network", "docs/networks/ring-of-six.toml", "--budget", "50", "--json"]


def _networks_and_logs() -> Iterator[list[str]]:
    yield ["networks"]
    presets = (path.stem for path in sorted((ROOT / "ringsim/network/presets").glob("*.toml")))
    files = (f"docs/networks/{path.name}" for path in sorted((ROOT / "docs/networks").glob("*.toml")))
    for name in [*presets, *files]:
        yield ["networks", name, "--wide"]
        yield ["networks", name, "--json"]
    logs = [f"examples/logs/{name}.log" for name in ("all_gather-1node", "all_gather-2nodes", "all_reduce-1node")]
    yield ["calibrate", *logs, "examples/logs/all_reduce-2nodes.log", "-o", "fitted.toml"]
    yield ["calibrate", "examples/logs/all_reduce-2nodes.log", "--nic", "4x200Gbit/s", "-o", "fitted.toml"]
    for network in ("dgx-h100-cluster", "docs/networks/calibrated.toml"):
        yield ["compare", *logs, "--network", network, "--json"]
        yield ["compare", "examples/logs/all_reduce-8nodes.log", "--network", network, "--wide", "-o", "compared"]


def _steps_and_formats() -> Iterator[list[str]]:
    layers = ["ddp", "--layers", "docs/models/transformer.toml"]
    for backend in ("gloo", "nccl", "ring"):
        yield [*layers, "--backend", backend, "--ranks", "4", "--network", "gbe", "--json"]
    yield [*layers, "--bucket-cap-mb", "1:50", "--network", "dgx-h100-cluster", "--ranks", "16"]
    yield [*layers, "--scaling", "2:32", "--phase", "first", "--wire-dtype", "bfloat16", "-o", "picture.png"]
    yield [*layers, "--no-overlap", "--bucket-view", "--copy-bandwidth", "2GB/s", "--json"]
    for name in ("ring", "halving_doubling", "two_shot", "binomial_tree", "double_binary_tree"):
        yield ["export", "--algorithm", name, "--ranks", "8", "--format", "goal", "-o", "schedule.goal"]
        yield ["export", "--algorithm", name, "--ranks", "8", "--format", "msccl", "-o", "schedule.xml"]
    for file in sorted((ROOT / "tests/ringsim/formats/msccl").glob("*.xml")):
        yield ["import", str(file.relative_to(ROOT)), "--json"]
        yield ["simulate", "--algorithm", str(file.relative_to(ROOT)), "--ranks", "4", "--json"]


def _mistakes() -> Iterator[list[str]]:
    yield ["simulate", "--algorithm", "rign"]
    yield ["simulate", "--algorithm", "halving_doubling", "--ranks", "0"]
    yield ["simulate", "--network", "docs/models/transformer.toml"]
    yield ["simulate", "--size", "-1"]
    yield ["calibrate", "docs/index.md"]
    yield ["compare", "examples/logs/all_reduce-1node.log", "--network", "nowhere.toml"]
    yield ["import", "docs/index.md"]
    yield ["ddp", "--layers", "docs/networks/star.toml"]
    yield ["report", "docs/models"]


def commands_on(folder: Path) -> Iterator[list[str]]:
    """Yield the commands on measured results. folder: files of `ringsim measure` and outputs of `trainers`."""
    yield ["report", str(folder), "--json", "-o", "report.html"]
    for file in sorted(folder.glob("*measurements*.json")):
        yield ["calibrate", str(file), "-o", "fitted.toml"]
        yield ["compare", str(file), "--network", "loopback", "--json", "-o", "compared"]
        yield ["animate", "--measured", str(file), "--network", "loopback", "-o", "page.html"]
    for file in sorted(folder.rglob("*profile*.json")):
        yield ["ddp", "--profile", str(file), "--ranks", "4", "--network", "loopback", "--json"]


@click.group()
def main() -> None:
    """Compare what commands answer before a change and after it."""


@main.command()
@click.argument("output", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--files",
    type=click.Path(exists=True, path_type=Path),
    help="Folder with measurements of a machine; adds commands that read them.",
)
@click.option("--jobs", default=2, show_default=True, help="Number of processes that run commands.")
def record(output: Path, files: Path | None, jobs: int) -> None:
    """Run every command, with the ringsim that is installed in this environment, and keep what it answers in OUTPUT."""
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    asked = [*commands(), *(commands_on(files.absolute()) if files else ())]
    with ProcessPoolExecutor(jobs) as pool:
        for number, answer in enumerate(pool.map(_answer, asked)):
            (output / f"{number:04}.json").write_text(json.dumps(answer, indent=1))
    click.echo(f"{len(asked)} commands in {output}")


def _answer(arguments: list[str]) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    inputs = [str(ROOT / text) if "/" in text else text for text in arguments]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        result = CliRunner().invoke(ringsim, inputs, prog_name="ringsim")
        written = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        texts = {str(path.relative_to(folder)): path.read_text() if path.suffix in COMPARED else "" for path in written}
        os.chdir(ROOT)
    output = result.output.replace(str(ROOT) + "/", "")
    return {"command": arguments, "exit_code": result.exit_code, "output": output, "files": texts}


@main.command()
@click.argument("before", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--words", is_flag=True, help="Show differences in wording as well.")
def compare(before: Path, after: Path, words: bool) -> None:
    """Show where two recordings differ; the exit code is 1 if exit codes, files or numbers do."""
    old, new = _read(before), _read(after)
    wrong = 0
    for command in sorted(old.keys() | new.keys()):
        if command not in old or command not in new:
            click.echo(f"only {'after' if command in new else 'before'}: {command}")
            continue
        differences = list(_differences(old[command], new[command]))
        wrong += bool(differences)
        for difference in differences:
            click.echo(f"ringsim {command}: {difference}")
        if words:
            click.echo(_diff(*(PASSING.sub("", answers[command]["output"]) for answers in (old, new))), nl=False)
    click.echo(f"{len(old.keys() & new.keys())} commands, {wrong} differ")
    raise SystemExit(wrong > 0)


def _read(folder: Path) -> dict[str, dict[str, Any]]:
    answers = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {" ".join(answer["command"]): answer for answer in answers}


def _differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    if old["exit_code"] != new["exit_code"]:
        yield f"exit code {old['exit_code']}, now {new['exit_code']}: {new['output'].strip()[-300:]}"
    if old["files"].keys() != new["files"].keys():
        yield f"files {sorted(old['files'])}, now {sorted(new['files'])}"
    pairs = {"output": (old["output"], new["output"])} if old["exit_code"] == 0 else {}
    pairs |= {name: (old["files"][name], new["files"][name]) for name in old["files"].keys() & new["files"].keys()}
    for name, (text, other) in pairs.items():
        numbers, others = _numbers(text), _numbers(other)
        if numbers != others:
            yield f"{name}: other numbers:\n{_diff(chr(10).join(numbers), chr(10).join(others))}"


def _numbers(text: str) -> list[str]:
    return NUMBER.findall(PASSING.sub("", "\n".join(map(_in_one_order, text.splitlines()))))


def _in_one_order(line: str) -> str:
    """Sort the keys of a line that is a JSON object, perhaps after a # as in CSV files."""
    try:
        return json.dumps(json.loads(line.removeprefix("# ")), sort_keys=True)
    except ValueError:
        return line


def _diff(old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "before", "after", lineterm="", n=1)
    return "".join(f"{line[:200]}\n" for line in list(lines)[:40])


if __name__ == "__main__":
    main()
