"""Measure, calibrate, compare: the whole chain, as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from ringsim.cli import main
from ringsim.measurements import Measurements


def ringsim(*arguments: str) -> str:
    """What the command prints; it must end well."""
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_from_measuring_to_comparing(tmp_path: Path) -> None:
    """On two local ranks: probes and collectives in one file, a network of the probes, all cells predicted by it."""
    measured, network = str(tmp_path / "measured.json"), str(tmp_path / "network.toml")
    start = [sys.executable, "-c", "from ringsim.cli import main; main()"]
    few = [
        "-b",
        "64KiB",
        "-e",
        "256KiB",
        "-n",
        "2",
        "--calls",
        "2",
        "--algorithm",
        "ring,recursive_doubling",
        "--record",
    ]
    subprocess.run([*start, "measure", "--ranks", "2", "-o", measured, *few], check=True, capture_output=True)
    measurements = Measurements.load(Path(measured))
    assert (measurements.provenance["hosts"], measurements.provenance["machines"]) == ([0, 0], [0, 0])
    kinds = {probe.kind for probe in measurements.probes}
    assert kinds > {"shift", "shift_cpu", "ping/0", "exchange/1", "reduce", "reduce/bfloat16", "reduce/float16"}
    assert kinds > {"call", "call/dist"}
    assert measurements.provenance["calm_polling"] is True
    assert "rank.copy_bandwidth" in ringsim("calibrate", measured, "-o", network)
    report = tmp_path / "report"
    found = json.loads(ringsim("compare", measured, "--network", network, "--json", "-o", str(report)))
    assert (
        len(measurements.runs) == len(list(report.glob("run-*.png"))) == 5
    )  # the ring of three, recursive doubling of two
    assert (report / "runs.json").exists()
    assert {cell["collective"] for cell in found["cells"]} == {"all_reduce", "reduce_scatter", "all_gather"}
    assert all(cell["predicted_s"] > 0 and not cell["used_in_calibration"] for cell in found["cells"])
    assert len(found["cells"]) == 2 * (3 + 2 + 3)


def test_a_benchmark_that_fails_is_one_line(tmp_path: Path) -> None:
    """What it was told wrong it says itself; then what measure makes of it."""
    start = [sys.executable, "-c", "from ringsim.cli import main; main()", "measure", "--ranks", "1"]
    command = [*start, "-o", str(tmp_path / "m.json"), "--op", "none"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    last = run.stderr.splitlines()[-1]
    assert last.startswith("ringsim: torchrun --nproc-per-node 1 -m collectives.benchmark --probes ")
    assert last.endswith(f" --op none -o {tmp_path / 'm.json'} ended with exit code 1; what it said is above")
    assert not (tmp_path / "m.json").exists()
