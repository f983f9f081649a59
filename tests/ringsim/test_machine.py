"""Findings about a machine, most from readings that are made up here."""

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from ringsim import machine
from ringsim.machine import Level, examine
from tests.ringsim.commands import invoke

Fake = Callable[..., None]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Make a machine on which all is well, of which the test changes readings by name."""

    def change(**readings: object) -> None:
        for name, value in readings.items():
            owner = {"getloadavg": machine.os, "disk_usage": machine.shutil, "which": machine.shutil}.get(name, machine)
            monkeypatch.setattr(owner, name, lambda *_, value=value: value)

    change(available_cores=8.0, getloadavg=(0.2, 0, 0), _steal_share=0.0, gloo_address="10.0.0.5", which=None)
    change(_ask_torch=("2.13.0+cpu gloo", True), disk_usage=SimpleNamespace(free=2**33))
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(machine.socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    return change


@pytest.mark.usefixtures("fake")
def test_a_good_machine_has_nothing_to_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is ok, also with an interface that exists; a reading that the system refuses is left out."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth0")
    subjects = ["cores", "load", "steal", "interface", "torch", "shared memory"]
    assert [(entry.subject, entry.level) for entry in examine()] == [(subject, Level.OK) for subject in subjects]
    monkeypatch.setattr(machine, "_steal", lambda: machine.Path("/nowhere").read_text())
    assert "steal" not in [entry.subject for entry in examine()]


DISTURBING = [
    ({"available_cores": 1.0}, "cores", "note", "8 cores, of which this process may use 1"),
    ({"available_cores": 2.5}, "cores", "note", "8 cores, of which this process may use 2.5"),
    ({"getloadavg": (7.5, 0, 0)}, "load", "note", "load 7.5 in the last minute"),
    ({"_steal_share": 0.05}, "steal", "note", "the hypervisor took 5.0% of the last moment"),
    ({"gloo_address": "127.0.1.1"}, "interface", "note", "resolves to 127.0.1.1"),
    ({"gloo_address": None}, "interface", "note", "resolves to no address of this host"),
    ({"disk_usage": SimpleNamespace(free=2**26)}, "shared memory", "note", "64 MiB free in /dev/shm"),
    ({"which": "/usr/bin/nvidia-smi"}, "torch", "note", "torch 2.13.0+cpu, backends gloo"),
    ({"_ask_torch": ("2.13.0 nccl", True)}, "torch", "problem", "torch 2.13.0, backends nccl"),
    ({"_ask_torch": ("No module named torch", False)}, "torch", "problem", "No module named torch"),
]


@pytest.mark.parametrize(("readings", "subject", "level", "words"), DISTURBING)
def test_what_disturbs_is_noted(fake: Fake, readings: dict[str, object], subject: str, level: str, words: str) -> None:
    """With its level and what to do; only a problem gives exit code 1."""
    fake(**readings)
    [entry] = [entry for entry in examine() if entry.subject == subject]
    assert (entry.level.value, entry.advice[-1:]) == (level, ".")
    assert words in entry.fact
    result = invoke("doctor")
    assert result.exit_code == (level == "problem")
    assert result.stdout.splitlines()[-1].endswith(f": {subject}.")


@pytest.mark.usefixtures("fake")
def test_the_command_has_a_line_for_each_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same in JSON; an interface that does not exist is a problem, and controls no terminal."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "\x1b[31meth0")
    text, data = invoke("doctor").stdout, json.loads(invoke("doctor", "--json").stdout)
    assert "\x1b" not in text
    lines = [line.split()[:2] for line in text.splitlines()[:-2] if not line.startswith(" ")]
    assert lines == [[entry["level"], entry["subject"].split()[0]] for entry in data["findings"]]
    assert ["problem", "interface"] in lines


def test_this_machine_can_be_read() -> None:
    """Torch is found with its backends, though it is not imported here; no machine steals more than all time."""
    code = (
        "import sys; from ringsim.machine import examine\n"
        "[found] = [one for one in examine() if one.subject == 'torch']\n"
        "assert 'torch' not in sys.modules; print(found.level.value, found.fact)"
    )
    done = machine.subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    level, *words = done.stdout.split()
    assert level != "problem"
    assert "gloo" in words
    assert 0 <= machine._steal_share() <= 1
