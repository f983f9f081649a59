"""Measure, calibrate, compare: the whole chain, as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from collectives.probes import Blocks
from collectives.probes.workloads import CALLS_PER_BLOCK
from ringsim.cli import main
from ringsim.measurements.measurements import Measurements, ProbeKind

# Of the probes, which take half a minute; how good they are is not asked.
SHORT = Blocks(turns=1, number=2, least_s=1e-3)
DRAWS = 8  # of the bootstrap, instead of some hundred
# The benchmark and the command that starts it, but for the length of the probes and of the bootstrap.
SHORT_BENCHMARK = f"""
from collectives.benchmark import job
from collectives.benchmark.command import main
from collectives.probes import Blocks
job.BLOCKS = {SHORT}
main(prog_name="benchmark")
"""
MEASURING = f"""
import sys
from ringsim.calibration import from_probes
from ringsim.cli import main
from ringsim.cli.commands import measure
from_probes._RESAMPLED = {DRAWS}
measure.BENCHMARK = (sys.argv.pop(1), "--probes")
main()
"""


def ringsim(*arguments: str) -> str:
    """Return the output of a command that must end well."""
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_from_measuring_to_comparing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two local ranks: probes and collectives in one file, a network of the probes, all cells predicted by it."""
    measured, network = str(tmp_path / "measured.json"), str(tmp_path / "network.toml")
    benchmark = tmp_path / "short.py"
    benchmark.write_text(SHORT_BENCHMARK)
    start = [sys.executable, "-c", MEASURING, str(benchmark)]
    few = ["-b", "64KiB", "-e", "256KiB", "-n", "2", "--calls", "2", "--algorithm", "ring,recursive_doubling"]
    subprocess.run(
        [*start, "measure", "--ranks", "2", "-o", measured, *few, "--record"], check=True, capture_output=True
    )
    measurements = Measurements.load(Path(measured))
    assert (measurements.provenance["hosts"], measurements.provenance["machines"]) == ([0, 0], [0, 0])
    kinds = {probe.kind for probe in measurements.probes}
    assert kinds > {"shift", "shift_cpu", "ping/0", "exchange/1", "reduce", "reduce/bfloat16", "reduce/float16"}
    assert kinds > {"call", "call/dist", "call/cold", "call/warm"}
    # Half of them were made after the collectives.
    blocks = 2 * SHORT.turns * SHORT.number
    for probe in measurements.probes:
        calls = CALLS_PER_BLOCK if ProbeKind.read(probe.kind).warmth in ("cold", "warm", "async") else 1
        assert len(probe.times_s) == blocks * calls, probe.kind
    assert measurements.provenance["calm_polling"] is True
    monkeypatch.setattr("ringsim.calibration.from_probes._RESAMPLED", DRAWS)
    assert "rank.copy_bandwidth" in ringsim("calibrate", measured, "-o", network)
    report = tmp_path / "report"
    found = json.loads(ringsim("compare", measured, "--network", network, "--json", "-o", str(report)))
    num_runs = 3 + 2  # the ring of three, recursive doubling of two
    assert len(measurements.runs) == len(list(report.glob("run-*.png"))) == num_runs
    assert (report / "runs.json").exists()
    assert {cell["collective"] for cell in found["cells"]} == {"all_reduce", "reduce_scatter", "all_gather"}
    assert all(cell["predicted_s"] > 0 and not cell["used_in_calibration"] for cell in found["cells"])
    assert len(found["cells"]) == 2 * (3 + 2 + 3)


def test_a_wrong_option_of_the_benchmark_is_one_line(tmp_path: Path) -> None:
    """Without a traceback, although it is the ranks that refuse it."""
    output = tmp_path / "m.json"
    options = ("--algorithm", "nope")  # the tests of the benchmark have other mistakes
    result = CliRunner().invoke(main, ["measure", "--ranks", "2", "-o", str(output), "--", *options])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("ringsim: algorithm 'nope': all_reduce has ring, ")
    assert not output.exists()
