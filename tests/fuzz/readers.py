"""The readers of files: every command and function that reads one, each with a valid example."""

import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

from click.testing import CliRunner
from msgspec.structs import replace

from generated_part import GeneratedPart
from ringsim.analysis import Sweep, run_sweep
from ringsim.calibration.comparison import compare_run
from ringsim.cli import main
from ringsim.console.one_line import message_of
from ringsim.measurements.measurements import Measurements, Probe
from ringsim.network import load_network, network_text
from ringsim.report.pages.report_page import report_page
from ringsim.schedule.collective import Collective
from ringsim.traces import Group, Operator, TracedStep
from ringsim.training_step.profile import Parameter, StepProfile
from ringsim.verdict import judge, read_directory
from tests.ringsim.made_logs import nccl_log
from tests.ringsim.made_probes import SIZES, hosts, made_measurements
from tests.ringsim.made_run import NETWORK, made_run
from tests.ringsim.traces.made_trace import ALL, all_reduce, call, compute, read, traced, wait
from tests.ringsim.verdict.made_jobs import made_job, made_strategy
from tests.ringsim.verdict.test_run_directory import CELL, COMPARISON, SESSION
from trainers.checkpoints.output import read_log
from trainers.cli.options import _as_it_reads

ROOT = Path(__file__).parents[2]
PART = GeneratedPart("<!-- begin -->", "<!-- end -->")
_TAG = re.compile(r"<style>.*?</style>|<script>.*?</script>|<[^>]*>", re.DOTALL)
_RESAMPLED = 3  # instead of some hundred times: what the bootstrap does is the same each time


@dataclass(frozen=True, slots=True)
class Outcome:
    """How reading ended: with an exit code as of the command line, and with what was said."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Reader:
    """read: the file of this path; what it raises other than by an exit code is a fault."""

    name: str
    suffix: str
    example: Callable[[], bytes]
    read: Callable[[Path], Outcome]


def _command(line: str) -> Callable[[Path], Outcome]:
    """A command line of ringsim, in which FILE stands for the file, and ROOT for this repository."""

    def read(path: Path) -> Outcome:
        given = [each.replace("FILE", str(path)).replace("ROOT", str(ROOT)) for each in line.split()]
        with patch("ringsim.calibration.from_probes._RESAMPLED", _RESAMPLED):
            result = CliRunner().invoke(main, given)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return read


def _function(function: Callable[[Path], object]) -> Callable[[Path], Outcome]:
    """A function, whose ValueError and OSError a command would show."""

    def read(path: Path) -> Outcome:
        try:
            function(path)
        except (ValueError, OSError) as error:
            return Outcome(2, "", f"{message_of(error)}\n")
        return Outcome(0, "", "")

    return read


def _report(path: Path) -> Outcome:
    """The page of the directory that holds the file; one in which nothing can be read is refused by its reasons."""
    with patch("ringsim.calibration.from_probes._RESAMPLED", _RESAMPLED):
        verdict = judge(read_directory(path.parent))
        text = report_page(verdict, "attacked")
    if verdict.contents.is_empty:
        reasons = list(verdict.contents.refused.values()) or ["holds nothing"]
        return Outcome(2, "", "".join(f"{reason}\n" for reason in reasons))
    return Outcome(0, _TAG.sub("", text), "")


@cache
def _printed(command: tuple[str, ...]) -> bytes:
    """What a command prints with --json."""
    return CliRunner().invoke(main, [*command, "--json"], catch_exceptions=False).stdout.encode()


@cache
def _measurements(num_hosts: int = 1) -> bytes:
    """Of four ranks on one host or on two: probes, the times of a collective, a recorded run."""
    made = made_measurements(4, cluster=hosts())
    probes = [Probe("reduce", size, 1, (size / 9e9,)) for size in SIZES]
    probes += [Probe("shift", 64, 4, (5e-4,)), Probe("call", 64, 1, (3e-4,)), Probe("call/dist", 64, 1, (1e-5,))]
    times = made.collectives[0], replace(made.collectives[0], algorithm="dist")
    of_rank = [rank * num_hosts // 4 for rank in range(4)]
    made = replace(made, provenance=made.provenance | {"hosts": of_rank, "machines": of_rank})
    runs = (made_run(num_ranks=4, size_bytes=4096),)
    return _json(replace(made, probes=(*made.probes, *probes), collectives=times, runs=runs).as_dict())


def _compare_runs(path: Path) -> None:
    for run in Measurements.load(path).runs:
        if not run.algorithm.partition(":")[0].endswith((".py", ".xml")):  # which would be another file
            compare_run(run, NETWORK)


@cache
def _job() -> bytes:
    return _json(made_job(made_measurements(2), [made_strategy("ring", 2, 0.01, 0.1)]))


def _json(data: object) -> bytes:
    return json.dumps(data).encode()


@cache
def _profile() -> bytes:
    parameters = Parameter("a", 300, 0.5), Parameter("b", 400, 0.25, "float16", "cuda:0")
    return json.dumps(StepProfile(parameters, 0.5, 1.0, 0.25, 8, {"by": "x"}).as_dict()).encode()


@cache
def _trace() -> bytes:
    """A step with a call of each kind of waiting, on all ranks and on half of them."""
    watched = compute(0.25, Operator("aten.mm", "float32", 4096, 2**20, 2))
    on_its_own = replace(all_reduce(8), on_side_stream=True, after=0, after_calls=(1,))
    calls = all_reduce(2**20), all_reduce(4096, True, 1), on_its_own
    events = watched, call(0), call(1), compute(0.5), wait(1), call(2), read(2)
    trace = traced(TracedStep(events, calls), groups=(ALL, Group((0, 2), "ring")))
    return _json(replace(trace, ranks_per_host=4).as_dict())


@cache
def _sweep() -> bytes:
    sweep = run_sweep(Collective.ALL_REDUCE, ["ring", "direct"], [2, 4], [1024, 4096], {"fast": NETWORK})
    with tempfile.TemporaryDirectory() as folder:
        sweep.to_csv(Path(folder) / "sweep.csv")
        return (Path(folder) / "sweep.csv").read_bytes()


def _file(name: str) -> Callable[[], bytes]:
    return (ROOT / name).read_bytes


def _example(name: str) -> Callable[[], bytes]:
    return _file(f"tests/fuzz/examples/{name}")


def _text(text: str) -> Callable[[], bytes]:
    return text.encode


def _loopback() -> bytes:
    return network_text(load_network("loopback")).encode()


def _task_setting(path: Path) -> None:
    _as_it_reads(path.read_bytes().decode(errors="replace"))


REPORTED: dict[str, object] = {
    "session": SESSION, "comparison": COMPARISON, "cells": {"network": "gbe", "cells": [CELL], "summary": []},
}  # fmt: skip
NETWORKS = ("cables", "calibrated", "interleaved", "racks", "three-hosts", "trouble")
MSCCL = "tests/ringsim/formats/msccl"
PROGRAMS = ("allpairs_4", "fused_ring_4", "hierarchical_all_gather_4")
SIMULATE, CALIBRATE = "simulate --size 64KiB --ranks", "calibrate FILE --json"
COMPARE = "compare FILE --network ROOT/docs/networks/calibrated.toml --json"
LAYERS = str(ROOT / "docs/models/transformer.toml")
PREDICTIONS = (
    ("simulate", "--ranks", "4", "--network", "gbe"),
    ("ddp", "--layers", LAYERS, "--ranks", "2", "--bucket-cap-mb", "32:128"),
    ("sweep", "--ranks", "2,4", "--sizes", "1KiB", "--algorithm", "ring,direct"),
)
INTERLEAVED = _file("docs/networks/interleaved.toml")
READERS = (
    *(Reader(f"networks {n}", ".toml", _file(f"docs/networks/{n}.toml"), _command("networks FILE")) for n in NETWORKS),
    Reader("simulate", ".toml", INTERLEAVED, _command(f"{SIMULATE} 8 --network FILE --per-rank")),
    Reader("simulate on cores", ".toml", _loopback, _command(f"{SIMULATE} 4 --network FILE")),
    Reader("order", ".toml", INTERLEAVED, _command("order --ranks 8 --size 64KiB --budget 3 --network FILE")),
    *(Reader(f"import {n}", ".xml", _file(f"{MSCCL}/{n}.xml"), _command("import FILE")) for n in PROGRAMS),
    Reader("verify", ".py", _example("algorithm.txt"), _command("verify --ranks 2 --algorithm FILE:ring")),
    *(
        Reader(f"calibrate {model}", ".json", partial(_measurements, hosts), _command(f"{CALIBRATE} --model {model}"))
        for model, hosts in (("auto", 1), ("host", 1), ("hosts", 2), ("network", 1))
    ),
    Reader("compare", ".json", _measurements, _command("compare FILE --network loopback --json")),
    Reader("compared runs", ".json", _measurements, _function(_compare_runs)),
    Reader("calibrate nccl-tests", ".log", lambda: nccl_log("all_reduce", 4, 2).encode(), _command(CALIBRATE)),
    Reader("compare nccl-tests", ".log", lambda: nccl_log("all_gather", 4, 2).encode(), _command(COMPARE)),
    Reader("calibrate OSU", ".log", _example("osu.log"), _command(CALIBRATE)),
    Reader("calibrate Gloo", ".log", _example("gloo.log"), _command(CALIBRATE)),
    Reader("sweep", ".csv", _sweep, _function(Sweep.from_csv)),
    Reader("ddp --layers", ".toml", _file("docs/models/transformer.toml"), _command("ddp --layers FILE --ranks 2")),
    Reader("ddp --profile", ".json", _profile, _command("ddp --profile FILE --ranks 2 --json")),
    Reader("step loopback", ".json", _trace, _command("step FILE --network loopback")),
    Reader(
        "step cluster", ".json", _trace, _command("step FILE --network dgx-h100-cluster --gpu h100 --roofline --json")
    ),
    Reader("order numbers", ".txt", _text("0,2,1,3\n"), _command(f"{SIMULATE} 4 --order FILE")),
    Reader("order JSON", ".json", _text('{"order": [0, 2, 1, 3]}'), _command(f"{SIMULATE} 4 --order FILE")),
    Reader("generated part", ".md", _example("page.txt"), _function(lambda path: PART.write(path, "new"))),
    *(Reader(f"report {name}", ".json", partial(_json, data), _report) for name, data in REPORTED.items()),
    *(Reader(f"report {each[0]}", ".json", partial(_printed, each), _report) for each in PREDICTIONS),
    Reader("report job", ".json", _job, _report),
    Reader("report measurements", ".json", _measurements, _report),
    Reader("report log", ".jsonl", _example("steps.jsonl"), _report),
    Reader("step log", ".jsonl", _example("steps.jsonl"), _function(read_log)),
    Reader("task setting", ".json", _text("2.5"), _function(_task_setting)),
)
BY_NAME = {reader.name: reader for reader in READERS}
