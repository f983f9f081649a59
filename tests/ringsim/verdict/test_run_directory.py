"""Which files of a directory are read, and what is said of the others."""

import json
import os
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest
from syrupy.assertion import SnapshotAssertion

from ringsim import Collective, Network, run_sweep
from ringsim.files import encode
from ringsim.verdict.run_directory import read_directory
from tests.ringsim.commands import invoke, printed, refused, run, written
from tests.ringsim.made_probes import made_measurements
from tests.ringsim.verdict.made_jobs import PROFILE, made_job, made_strategy

pytestmark = pytest.mark.usefixtures("few_draws")

DOCS = Path(__file__).parents[3] / "docs"
LOG = '{"step": 1, "loss": 2.5, "samples_per_s": 100.0}\n{"step": 2, "loss": 2.0, "samples_per_s": 90.0}\n'
SESSION = {"format": "ringsim-session", "version": 1, "task": {"task": "mlp"}, "train_s": 1.5, "num_parameters": 10,
           "training": {"strategy": "ring", "num_ranks": 2}, "evaluation": {"accuracy": 0.5, "loss": None},
           "provenance": {"machine": "made up"}}  # fmt: skip
RUN = {"name": "ring", "num_ranks": 2, "losses": [2.0], "batch_s": 0.1, "sync_share": 0.4}
COMPARED = {"run": RUN, "speed_up": 1.5, "efficiency": 0.75, "loss_difference": 1e-7}
COMPARISON = {"format": "ringsim-comparison", "version": 1, "provenance": {}, "runs": [COMPARED]}
CELL = {"collective": "all_reduce", "algorithm": "ring", "size_bytes": 64, "num_ranks": 2, "num_nodes": 1,
        "predicted_s": 1e-3, "measured_s": 2e-3, "error": -0.5, "spread": 0.1, "used_in_calibration": False,
        "predicted_by": "simulating ring"}  # fmt: skip
SIMULATED = {"collective": "all_reduce", "algorithm": "ring", "num_ranks": 2, "size_bytes": 64, "num_steps": 2,
             "num_transfers": 4, "time_s": 1.0, "busbw_bytes_per_s": 1.0, "network": {}, "explained": None}  # fmt: skip
NO_KIND = "is JSON, but not of a kind that a report shows: use that of"


def fill(folder: Path) -> Path:
    """Writes one file of each kind, as the commands leave them."""
    (folder / "runs" / "mlp").mkdir(parents=True)
    measurements = made_measurements(2)
    measurements.save(folder / "measured.json")
    files = {
        "report.json": made_job(measurements, [made_strategy("ring", 2, 0.01, 0.1)]),
        "profile.json": PROFILE.as_dict(),
        "compare.json": {"network": "gbe", "cells": [CELL], "summary": []},
        "comparison.json": COMPARISON,
        "runs/mlp/result.json": SESSION,
    }
    for name, data in files.items():
        (folder / name).write_text(json.dumps(data))
    (folder / "runs" / "mlp" / "log.jsonl").write_text(LOG)
    run_sweep(Collective.ALL_REDUCE, ["ring"], [2], [64], {"fast": Network.uniform(1e-5, 1e9)}).to_csv(
        folder / "sweep.csv"
    )
    model = str(DOCS / "models" / "transformer.toml")
    commands = {
        "simulated.json": ("simulate", "--ranks", "4", "--size", "1MiB", "--network", "gbe", "--per-rank"),
        "explained.json": ("explain", "--ranks", "3", "--size", "1MiB"),
        "ddp.json": ("ddp", "--layers", model, "--ranks", "2", "--bucket-cap-mb", "32:128", "--scaling", "2:4"),
        "sweep.json": ("sweep", "--ranks", "2,4", "--sizes", "1KiB:16KiB", "--algorithm", "ring,direct"),
    }
    for name, command in commands.items():
        (folder / name).write_text(printed(*command, "--json"))
    shutil.copy(DOCS / "networks" / "racks.toml", folder / "racks.toml")
    by_products = "report.png", "checkpoint.pt", "compare.txt", "runs/mlp/checkpoint-100.pt", ".lock", "log.jsonl"
    for name in (*by_products, "events.out.tfevents.1.vm.2.0"):
        (folder / name).write_bytes(b"\x00")  # which are not looked at
    return folder


def test_a_file_of_each_kind(tmp_path: Path) -> None:
    """All are read, under their names; what our commands write beside them is left alone."""
    contents = read_directory(fill(tmp_path))
    assert contents.refused == {}
    read: dict[str, list[str]] = {}
    for kind, name, _ in contents.records():
        read.setdefault(kind, []).append(name)
    several = {"sweeps": ["sweep.csv", "sweep.json"], "simulated": ["explained.json", "simulated.json"]}
    assert read == several | {
        kind: [name]
        for kind, name in {
            "measurements": "measured.json", "jobs": "report.json", "profiles": "profile.json",
            "networks": "racks.toml", "cells": "compare.json", "sessions": "runs/mlp", "logs": "runs/mlp",
            "comparisons": "comparison.json", "predicted": "ddp.json",
        }.items()
    }  # fmt: skip
    assert contents.sessions["runs/mlp"].evaluation == {"accuracy": 0.5, "loss": None}
    assert contents.jobs["report.json"].profile == PROFILE
    assert contents.simulated["simulated.json"].bottleneck == "host0.nic0.out"
    assert (contents.simulated["explained.json"].network, contents.predicted["ddp.json"].network) == ("uniform",) * 2
    for name, simulated in contents.simulated.items():  # as written, but for a few keys of the command's own
        as_written = json.loads((tmp_path / name).read_text())
        assert as_written | json.loads(json.dumps(simulated.as_dict())) == as_written
    rows = [encode(step) for step in contents.predicted["ddp.json"].steps[1:]]
    ddp = json.loads((tmp_path / "ddp.json").read_text())
    assert rows == ddp["sweep"] + ddp["scaling"]


NOT_OURS = {
    "notes.txt": ("hello",),
    "a.json": (
        [1, 2], {"format": "ringsim-sweep", "version": 2}, '{"format": "ringsim-report", "ver',
        {"format": "ringsim-session", "version": 1}, {"network": "n", "cells": [{}], "summary": []},
        SIMULATED | {"collective": "all"}, SIMULATED | {"network": "gbe"}, SIMULATED | {"explained": []},
    ),
    "log.jsonl": ("nonsense\n", LOG + '{"step": 3, "lo'),
    "a.csv": ("a,b\n1,2\n",),
    "a.toml": ("x = [",),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_OURS)
def test_what_is_not_ours_is_named_in_one_line(tmp_path: Path, name: str, snapshot: SnapshotAssertion) -> None:
    """With what is wrong; the others are read all the same."""
    made_measurements(2).save(tmp_path / "measured.json")
    for content in NOT_OURS[name]:
        written(tmp_path / name, content if isinstance(content, str) else json.dumps(content))
        contents = read_directory(tmp_path)
        assert list(contents.refused) == [name]
        assert "\n" not in contents.refused[name]
        assert contents.refused[name] == snapshot
        assert list(contents.measurements) == ["measured.json"]


def test_a_sweep_is_the_same_from_json_and_from_csv(tmp_path: Path) -> None:
    """Cell by cell, and so is what is derived from them."""
    sweep = run_sweep(Collective.ALL_REDUCE, ["ring", "direct"], [2, 300], [64], {"fast": Network.uniform(1e-5, 1e9)},
                      max_transfers=1000)  # fmt: skip
    sweep.to_csv(tmp_path / "a.csv")
    (tmp_path / "b.json").write_text(json.dumps(sweep.as_dict()))
    contents = read_directory(tmp_path)
    assert contents.sweeps["a.csv"].cells == contents.sweeps["b.json"].cells == sweep.cells
    assert contents.sweeps["b.json"].networks == sweep.networks


def test_one_file_alone_has_a_report(tmp_path: Path) -> None:
    """A network answers nothing but names commands; of a kind that there is no report for, one line says so."""
    output = tmp_path / "out.html"
    shutil.copy(DOCS / "networks" / "racks.toml", tmp_path / "racks.toml")
    (tmp_path / "other.json").write_text(printed("networks", "--json"))
    result = run("report", tmp_path / "racks.toml", "-o", output)
    assert result.stderr == f"wrote {output}\n"
    told = " ".join(result.stdout.split())
    assert "To find out: ringsim ddp --layers LAYERS.toml --network racks.toml" in told
    assert "To find out: ringsim sweep --network racks.toml" in told
    assert "other.json" not in output.read_text()
    assert refused("report", tmp_path / "other.json", "-o", output).startswith(
        f"ringsim: {tmp_path / 'other.json'}: {NO_KIND}"
    )


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Nor a link that leads nowhere."""
    os.mkfifo(tmp_path / "a.json")
    (tmp_path / "b.json").symlink_to(tmp_path / "nowhere")
    assert read_directory(tmp_path).refused == {"a.json": "is not a regular file", "b.json": "is not a regular file"}


def test_an_empty_directory_is_one_line(tmp_path: Path) -> None:
    """And exit code 2; so is a directory that is not there. Files that are not ours have a line each before it."""
    output = tmp_path / "report.html"
    (tmp_path / "empty").mkdir()
    told = refused("report", tmp_path / "empty", "-o", output)
    assert told.startswith(f"ringsim: {tmp_path / 'empty'}: holds none of measurements, ")
    assert told.endswith(": ringsim measure --ranks 2 -o measured.json makes a file of measurements\n")
    refused("report", tmp_path / "missing", "-o", output)
    (tmp_path / "empty" / "a\nb.txt").write_text("x")
    (tmp_path / "empty" / "log.jsonl").write_text('{"step": 10, "strategies": {"ring": {"loss": 2.5}}}\n')
    result = invoke("report", str(tmp_path / "empty"), "-o", str(output))
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 3)
    assert not output.exists()


def test_a_fit_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    """Probes that are too few make no network; collectives, and a loss of any size, are shown all the same."""
    data = made_measurements(2).as_dict()
    data["probes"] = [probe for probe in data["probes"] if probe["kind"] == "shift"]
    (tmp_path / "measured.json").write_text(json.dumps(data))
    strategy = made_strategy("ring", 2, 0.01, 0.1) | {"losses": [5.5, 1e30, -1.7e308, 1.7e308], "final_loss": 1e300}
    (tmp_path / "report.json").write_text(json.dumps(made_job(made_measurements(2), [strategy])))
    output = tmp_path / "out.html"
    with patch("ringsim.verdict.predictions._sizes", lambda last: [last]):
        told = run("report", tmp_path, "-o", output).stderr.splitlines()
    assert len(told) == 2
    assert "measured.json: no network can be fitted to it: the measurements have too few shift" in told[0]
    assert 'data-name="collectives"' in output.read_text()
    assert "Loss by step (report.json)" in output.read_text()
