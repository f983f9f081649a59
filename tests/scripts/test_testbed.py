"""The testbed for real: namespaces, shaped links, torchrun on each host; and what is left of it, which is nothing."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from syrupy.assertion import SnapshotAssertion

from netns_testbed.leftovers import NETNS, clean, signals_held
from netns_testbed.plan import owner
from netns_testbed.testbed import Testbed, why_not
from ringsim.measurements.measurements import Measurements
from ringsim.registry import ALGORITHMS
from ringsim.schedule import Collective
from testbed import main
from tests.processes import ROOT, TIMEOUT_S, environment, finish, left_of, run_python, start_python
from tests.refusals import refusals_in

SCRIPT, LINK_RATE = "scripts/testbed.py", "scripts/link_rate.py"
# Ranks say that they are there in files of their own; one of them may fail, when all are there, the others wait.
WAIT = """
import os, pathlib, sys, time
folder, failing = pathlib.Path(sys.argv[1]), sys.argv[2]
(folder / f"rank{os.environ['RANK']}.tmp").write_text(str(os.getpid()))
(folder / f"rank{os.environ['RANK']}.tmp").rename(folder / f"rank{os.environ['RANK']}")
while len(list(folder.glob("rank?"))) < 2:
    time.sleep(0.02)
if os.environ["RANK"] == failing:
    sys.exit(7)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def _possible() -> None:
    """Skips, with the reason, where no testbed can be made."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def _nothing_left(_possible: None) -> Iterator[None]:
    """No namespace is there after the test that was not there before, and the interfaces around us are the same."""
    namespaces_before, interfaces_before = around_us()
    yield
    namespaces_after, interfaces_after = around_us()
    assert set(namespaces_after) <= set(namespaces_before)
    assert interfaces_after == interfaces_before


needs_testbed = pytest.mark.usefixtures("_nothing_left")


def around_us() -> tuple[list[str], str]:
    """Namespaces, but for those of other living processes, and interfaces outside of them."""
    ours = [name for name in namespaces() if owner(name) is None or not alive_elsewhere(name)]
    return ours, subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout


def alive_elsewhere(name: str) -> bool:
    """Whether it is of another process that lives: another testbed on this machine is none of our business."""
    pid = owner(name)
    return pid is not None and pid != os.getpid() and Path(f"/proc/{pid}").exists()


def namespaces() -> list[str]:
    """Their names."""
    return sorted(os.listdir(NETNS)) if NETNS.exists() else []


def ranks_in(folder: Path) -> list[int]:
    """The processes of both waiting ranks, when they are there."""
    deadline = time.monotonic() + TIMEOUT_S
    while len(found := [int(path.read_text()) for path in folder.glob("rank?")]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def mentioning(word: str) -> list[str]:
    """The command lines of all processes with the word in it: torchruns too, not only ranks."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_text())
        except OSError:  # ended meanwhile
            continue
    return [line for line in lines if word in line]


@needs_testbed
@pytest.mark.slow
def test_all_reduces_on_hosts_with_two_ranks_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of one host share memory, those of several do not; the sums are right; arguments arrive as given."""
    monkeypatch.setenv("COLLECTIVES_SHM_SLOT_BYTES", "65536")  # so that a tensor is sent in several portions
    names = [name for collective, name in ALGORITHMS if collective is Collective.ALL_REDUCE]
    arguments = ["--algorithm", ",".join(names), "-o", str(tmp_path / "of two hosts.json")]
    options = "--hosts 2 --rate 1gbit --ranks-per-host 2 -- -m collectives.benchmark -b 256K -e 256K -n 1"
    done = run_python(SCRIPT, *options.split(), *arguments)
    assert done.returncode == 0, done.stderr  # 1 if an element is wrong
    measured = Measurements.load(tmp_path / "of two hosts.json")
    assert {times.algorithm for times in measured.collectives} == {"dist", *names}
    assert measured.provenance["transport"] == "auto"
    assert not mentioning(str(tmp_path))


@needs_testbed
@pytest.mark.slow
def test_a_slow_host_is_slow_both_ways() -> None:
    """Against a pair of the common rate: what one TCP connection gets, and never more than the rate."""
    with Testbed(3, "200mbit", {2: "50mbit"}) as bed:
        common, slow = link_rates(bed, 0, 1), link_rates(bed, 1, 2)
    assert len(common) == len(slow) == 4
    for way in range(4):
        assert common[way] < 200 * 1.05
        assert slow[way] < 50 * 1.05
    # Each way on its own; both at once depend more on who gets the cores.
    assert max(slow[:2]) < 0.5 * min(common[:2])


def link_rates(bed: Testbed, first: int, second: int) -> list[float]:
    """Between two hosts in Mbit/s: from first, from second, and both of both at once."""
    started = []
    for rank, host in enumerate((first, second)):
        inside = ["ip", "netns", "exec", bed.plan.namespace(host), sys.executable, LINK_RATE, "--size", "4MiB"]
        variables = environment() | {"RANK": str(rank), "MASTER_ADDR": f"10.0.0.{first + 1}"}
        started.append(subprocess.Popen(inside, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=variables))
    done = [finish(process) for process in started]
    assert [process.returncode for process in done] == [0, 0]
    rates = {line.partition(":")[0]: float(line.split()[-2]) for each in done for line in each.stdout.splitlines()}
    return [rates[way] for way in ("0 -> 1", "1 -> 0", "0 -> 1, both at once", "1 -> 0, both at once")]


@needs_testbed
@pytest.mark.slow
def test_when_a_host_fails_the_others_are_ended(tmp_path: Path) -> None:
    """Its exit code is the testbed's, and the last line says which it was."""
    (tmp_path / "wait.py").write_text(WAIT)
    done = run_python(SCRIPT, "--hosts", "2", "--", str(tmp_path / "wait.py"), str(tmp_path), "1")
    assert done.returncode == 1  # torchrun's, whatever the rank's
    assert done.stderr.splitlines()[-1] == "testbed: host 1 failed first, exit code 1"
    assert not mentioning(str(tmp_path))


@needs_testbed
@pytest.mark.slow
def test_signals_in_the_middle_leave_nothing(tmp_path: Path) -> None:
    """Neither ranks, nor torchruns, nor namespaces, however many come; the exit code names one of them."""
    (tmp_path / "wait.py").write_text(WAIT)
    options = ["--hosts", "2", "--rate", "1gbit", "--"]
    process = start_python(SCRIPT, *options, str(tmp_path / "wait.py"), str(tmp_path), "")
    ranks = ranks_in(tmp_path)
    assert len([name for name in namespaces() if owner(name) == process.pid]) == 3
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
    done = finish(process)
    assert done.returncode in (128 + signal.SIGTERM, 128 + signal.SIGINT), done.stderr
    assert left_of(ranks) == []
    assert not mentioning(str(tmp_path))


def test_signals_are_held_whichever_thread_takes_them() -> None:
    """A mask would leave them to another thread, for which Python interrupts the main one; the first comes last."""
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    steps = []

    def interrupted_twice() -> None:
        with signals_held():
            for step in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)
                steps.append(step)

    with pytest.raises(KeyboardInterrupt):
        interrupted_twice()
    ended.set()
    other.join()
    assert steps == [0, 1]


@needs_testbed
@pytest.mark.parametrize("delay_s", [0.02, 0.1])
def test_two_signals_while_a_testbed_is_made_leave_no_namespace(delay_s: float) -> None:
    """Also of one that only finds out whether there can be any."""
    program = "import os; from netns_testbed import why_not; print(os.getpid(), flush=True)\nwhile True: why_not()"
    with start_python("-c", program, folder=ROOT / "scripts") as process:
        assert process.stdout
        process.stdout.readline()
        time.sleep(delay_s)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.005)
        process.wait(TIMEOUT_S)
    assert [name for name in namespaces() if owner(name) == process.pid] == []


@needs_testbed
def test_clean_removes_what_a_killed_testbed_left() -> None:
    """With what runs in it; what belongs to a living process stays."""
    program = "; ".join([
        "import os, subprocess",
        "from netns_testbed import Testbed",
        "bed = Testbed(1).__enter__()",
        "inside = ['ip', 'netns', 'exec', bed.plan.namespace(0), 'sleep', '600']",
        "subprocess.Popen(inside, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)",
        "os.kill(os.getpid(), 9)",
    ])  # fmt: skip
    with Testbed(1) as bed:
        killed = start_python("-c", program, folder=ROOT / "scripts")
        assert finish(killed).returncode == -signal.SIGKILL
        # What others left on this machine is removed as well: only what this process left is counted.
        removed = [name for name in clean() if owner(name) == killed.pid]
        assert [re.sub(r"\d+-\d+", "N", name) for name in removed] == ["ringsim-N-host0", "ringsim-N-switch"]
        assert bed.plan.switch in namespaces()
    done = run_python(SCRIPT, "--clean")
    assert (done.returncode, done.stdout) == (0, "nothing left behind\n")


@needs_testbed
def test_what_cannot_be_made_is_taken_away_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without tbf: one line says what is missing, in whose words, and by which command."""
    (tmp_path / "tc").write_text("#!/bin/sh\necho 'Error: Specified qdisc kind is unknown.' >&2\nexit 2\n")
    (tmp_path / "tc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = run_python(SCRIPT, *["--hosts", "1", "--rate", "1gbit", "--", "never.py"])
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"testbed: cannot make a rate limit \(tbf\) here: Error: Specified qdisc kind is unknown. "
        r"\(tc -n ringsim-\d+-0-host0 qdisc add dev eth0 root tbf rate .*\)\n",
        done.stderr,
    )


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Before anything is made, with what to do: one who is not root, or no iproute2."""
    monkeypatch.setenv("PATH", str(tmp_path))
    said = []
    for user in (1000, 0):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        said.append(why_not())
    assert said == snapshot


def test_mistakes_are_refused_in_one_line(snapshot: SnapshotAssertion) -> None:
    """Before anything is made, and whether or not this is root."""
    assert refusals_in(Path(__file__).with_name("testbed_mistakes.txt"), main) == snapshot


def test_the_network_file_alone_needs_no_root(tmp_path: Path) -> None:
    """And no COMMAND: it is for the simulator."""
    file = tmp_path / "testbed.toml"
    done = CliRunner().invoke(main, ["--hosts", "4", "--rate", "1gbit", "--network", str(file)])
    assert (done.exit_code, done.output) == (0, "")
    assert 'bandwidth = "1Gbit/s"' in file.read_text()
