"""Output of commands: tables of 80 columns, files named -, and completion in the shell."""

import json
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from collectives.benchmark.command import main as benchmark
from ringsim.cli import main
from ringsim.console import Progress
from ringsim.measurements import Measurements
from ringsim.network.file import load_network, read_network
from tests.ringsim.calibration.test_comparison import TIMES
from tests.ringsim.commands import as_json, printed, run
from tests.ringsim.made_run import made_run
from trainers.cli.group import main as trainers

ROOT = Path(__file__).parents[3]


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A measurements file with a recorded run."""
    path = tmp_path / "measured.json"
    Measurements(3, {}, (), (TIMES,), (made_run(),)).save(path)
    return path


def test_comparisons_fit_80_columns_too(measured: Path) -> None:
    """A row has no name of an algorithm, which stands above."""
    command = ["compare", measured, "--network", "loopback"]
    assert [line for line in printed(*command).splitlines() if len(line) > 80] == []
    assert "collective" in printed(*command, "--wide")


def test_import_as_json(tmp_path: Path) -> None:
    """With the options that use the file."""
    path = tmp_path / "my ring.xml"
    run("export", "--ranks", "3", "--format", "msccl", "-o", path)
    told = as_json("import", path)
    assert (told["num_steps"], told["correct"]) == (4, True)
    assert told["options"] == f"--collective all_reduce --algorithm '{path}' --ranks 3"


def test_a_file_named_minus_is_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which then holds nothing else; and no file of that name is made."""
    monkeypatch.chdir(tmp_path)
    assert "traceEvents" in json.loads(printed("simulate", "--ranks", "3", "--trace", "-"))
    assert json.loads(printed("order", "--ranks", "4", "--budget", "1", "-o", "-"))["num_ranks"] == 4
    assert printed("export", "--ranks", "2", "--format", "goal", "-o", "-").startswith("num_ranks 2\n")
    cells = run("sweep", "--ranks", "2", "--sizes", "8", "--csv", "-")
    assert (cells.stdout[:2], cells.stdout.splitlines()[1][:10], cells.stderr) == ("# ", "collective", "")
    assert list(tmp_path.iterdir()) == []


WRITING = (
    "simulate --ranks 3 --trace t.json", "plot --ranks 3 -o ring.png", "order --ranks 4 --budget 1 --json -o o.json",
    "export --ranks 2 --format goal -o o.goal", "sweep --ranks 2 --sizes 8 --csv c.csv",
    "sweep --ranks 2 --sizes 8 -o p.png", f"ddp --layers {ROOT}/docs/models/transformer.toml -o d.png",
)  # fmt: skip


def test_every_written_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr, so that stdout holds the result alone; a file that was there is replaced."""
    monkeypatch.chdir(tmp_path)
    Path("t.json").write_text("old")
    for command in WRITING:
        done = run(*command.split())
        assert done.stderr == f"wrote {command.split()[-1]}\n"
        assert "wrote" not in done.stdout
    assert json.loads(Path("t.json").read_text())["traceEvents"]


PROGRAMS = {"ringsim": main, "trainers": trainers, "benchmark": benchmark}


COMPLETED = {
    "ringsim sim": "simulate",
    "ringsim simulate --per": "--per-rank",
    "ringsim simulate --algorithm gloo": "gloo_ring",
    "ringsim simulate --collective reduce --algorithm tw": "tw",  # a file, perhaps
    "ringsim networks gbe": "gbe gbe-racks",
    "ringsim simulate --network ib-": "ib-100g ib-400g",
    "ringsim sweep --algorithm ring,two": "ring,two_shot",
    "ringsim ddp --backend g": "gloo",
    "trainers train --strategy buck": "bucketed bucketed_bf16",
    "trainers train --task w": "wine",
    "benchmark --collective all_reduce,bro": "all_reduce,broadcast",
}


@pytest.mark.parametrize("typed", COMPLETED)
def test_the_shell_completes_names(typed: str) -> None:
    """Of commands, options, algorithms of the collective, networks, strategies, tasks and choices."""
    program, *words, last = typed.split()
    shell = BashComplete(PROGRAMS[program], {}, program, f"_{program.upper()}_COMPLETE")
    assert " ".join(item.value for item in shell.get_completions(words, last)) == COMPLETED[typed]


@pytest.mark.parametrize(
    ("network", "num_transfers"),
    [([], 480), (["--network", "dgx-h100-cluster"], 15360), (["--network", "loopback"], 480)],
)
def test_how_far_it_is_is_shown(network: list[str], num_transfers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the engine: all transfers are counted, and nothing is left of the line at the end."""
    shown: list[str] = []

    class Seen(Progress):
        def __exit__(self, *_: object) -> None:
            shown.append(self.line())

    monkeypatch.setattr("ringsim.console.one_line.Progress", Seen)
    run("simulate", "--ranks", "16", *network)
    assert [line.split()[0] for line in shown] == ["simulating"]
    assert shown[0].endswith(f" {num_transfers}/{num_transfers}")


def test_a_network_is_printed_as_a_file_to_be_changed() -> None:
    """The file describes the same network."""
    preset = load_network("dgx-h100-cluster")
    assert read_network(printed("networks", "dgx-h100-cluster", "--toml"), "mine.toml").spec == preset.spec
