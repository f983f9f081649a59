"""Readings of a machine, and findings about it, most by faked readings."""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from ringsim.cli import main
from ringsim.machine import reading
from ringsim.machine.examination import Level, MachineFinding, examine
from ringsim.machine.reading import (
    ClockReadings,
    CpuReadings,
    GlooReadings,
    Readings,
    SharingReadings,
    TorchReadings,
    read_machine,
)

GOOD = Readings(
    CpuReadings(8, 8.0, load=0.2, steal=0.0, governor="performance", mhz=3000.0, max_mhz=3000.0),
    ClockReadings(1e-9, 5e-8, "tsc"),
    GlooReadings("", ("lo", "eth0"), "node", "10.0.0.5"),
    TorchReadings("2.13.0+cpu", ("gloo",)),
    SharingReadings(2**33, 2**33, memfd=True, is_root=True, tools=("ip", "tc")),
)


def with_readings(part: str, **values: Any) -> Readings:
    """GOOD, with other values in one of its parts."""
    return replace(GOOD, **{part: replace(getattr(GOOD, part), **values)})


def finding(readings: Readings, subject: str) -> MachineFinding:
    """Return the finding on one subject."""
    return next(entry for entry in examine(readings) if entry.subject == subject)


def test_a_good_machine_has_nothing_to_note() -> None:
    """Every finding has its fact and its meaning, and none asks for anything."""
    findings = examine(GOOD)
    assert [entry.subject for entry in findings] == [
        "cores", "load", "steal", "frequency", "clock", "interface", "torch", "shared memory", "testbed", "gpu",
    ]  # fmt: skip
    for entry in findings:
        assert (entry.level, entry.advice) == (Level.OK, "")
        assert entry.fact
        assert entry.meaning.endswith(".")


@pytest.mark.parametrize(
    ("part", "values", "subject", "words"),
    [
        ("cpu", {"available": 1.0}, "cores", "8 cores, of which this process may use 1"),
        ("cpu", {"available": 2.5}, "cores", "8 cores, of which this process may use 2.5"),
        ("cpu", {"load": 7.5}, "load", "load 7.5 in the last minute"),
        ("cpu", {"steal": 0.05}, "steal", "the hypervisor took 5.0% of the last moment"),
        ("cpu", {"governor": "powersave"}, "frequency", "governor powersave, 3000 MHz now, at most 3000 MHz"),
        ("clock", {"source": "hpet"}, "clock", "source hpet, resolution 1 ns, 50 ns a reading"),
        ("clock", {"read_s": 2e-6}, "clock", "source tsc, resolution 1 ns, 2 us a reading"),
        ("gloo", {"address": "127.0.1.1"}, "interface", "the host's name, node, resolves to 127.0.1.1"),
        ("gloo", {"address": None}, "interface", "the host's name, node, resolves to no address of this host"),
        ("torch", {"version": "2.5.1"}, "torch", "torch 2.5.1, backends gloo"),
        ("sharing", {"shm_free_bytes": 2**26}, "shared memory", "/dev/shm 8 GiB, 64 MiB free, memfd"),
        ("sharing", {"shm_bytes": None}, "shared memory", "no /dev/shm, memfd"),
        ("sharing", {"is_root": False}, "testbed", "not root, ip, tc"),
        ("sharing", {"tools": ()}, "testbed", "root, neither ip nor tc"),
    ],
)
def test_what_disturbs_is_noted(part: str, values: dict[str, Any], subject: str, words: str) -> None:
    """With what to do about it."""
    entry = finding(with_readings(part, **values), subject)
    assert (entry.level, entry.fact) == (Level.NOTE, words)
    assert entry.advice.endswith((".", ")."))


@pytest.mark.parametrize(
    ("part", "values", "subject", "words"),
    [
        ("gloo", {"named": "eth7"}, "interface", "There is no interface eth7 here"),
        ("torch", {"version": None}, "torch", "Nothing can be measured."),
        ("torch", {"trouble": "libgomp is missing"}, "torch", "It cannot be imported"),
        ("torch", {"backends": ("nccl",)}, "torch", "which this build does not have"),
    ],
)
def test_what_makes_measuring_impossible(part: str, values: dict[str, Any], subject: str, words: str) -> None:
    """Is a problem, and the exit code is 1."""
    readings = with_readings(part, **values)
    entry = finding(readings, subject)
    assert entry.level is Level.PROBLEM
    assert words in entry.meaning
    with patch("ringsim.cli.commands.doctor.read_machine", return_value=readings):
        result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == f"You cannot measure here until this is fixed: {subject}."


def test_gpus_need_a_torch_that_can_use_them() -> None:
    """They are named; without NCCL it is said what to install."""
    with_gpus = replace(GOOD, gpus=("H100", "H100"))
    assert finding(with_gpus, "gpu").level is Level.NOTE
    both = replace(with_gpus, torch=TorchReadings("2.13.0", ("gloo", "nccl")))
    assert (finding(both, "gpu").level, finding(both, "gpu").fact) == (Level.OK, "2: H100")
    assert finding(replace(GOOD, gpus=()), "gpu").fact == "no GPU answers"


def test_the_command_has_a_line_for_each_finding() -> None:
    """The level first; as JSON one object with the same; nothing of the environment can control a terminal."""
    readings = with_readings("gloo", named="\x1b[31meth0")
    with patch("ringsim.cli.commands.doctor.read_machine", return_value=readings):
        text = CliRunner().invoke(main, ["doctor"]).stdout
        data = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)
    *lines, _, _ = [line for line in text.splitlines() if not line.startswith(" ")]  # without what was wrapped
    assert "\x1b" not in text
    for line, entry in zip(lines, data["findings"], strict=True):
        assert line.split()[0] == entry["level"]
    with patch("ringsim.cli.commands.doctor.read_machine", return_value=with_readings("cpu", load=9.0)):
        result = CliRunner().invoke(main, ["doctor"])
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "You can measure here; note: load.")


def test_this_machine_can_be_read() -> None:
    """Torch is found with its backends, though it is not imported here."""
    check = (
        "import sys; from ringsim.machine.reading import read_machine; readings = read_machine();"
        "print('torch' in sys.modules, readings.torch.backends, readings.torch.trouble, readings.cpu.cores >= 1)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False ('gloo',")
    assert done.stdout.endswith(" True\n")


def test_what_the_system_does_not_tell_is_none() -> None:
    """No /proc, no /sys, no programs: nothing is raised."""
    with (
        patch.object(reading, "_text", return_value=None),
        patch.object(reading, "_run", return_value=None),
        patch.object(reading.os, "getloadavg", side_effect=OSError),
        patch.object(reading.socket, "getaddrinfo", side_effect=OSError),
        patch.object(reading.shutil, "disk_usage", side_effect=OSError),
        patch.object(reading.shutil, "which", return_value=None),
        patch.object(reading.socket, "if_nameindex", side_effect=OSError),
    ):
        readings = read_machine()
    assert (readings.cpu.steal, readings.cpu.load, readings.cpu.governor, readings.clock.source) == (None,) * 4
    assert (readings.gloo.address, readings.gloo.interfaces, readings.gpus) == (None, (), None)
    assert readings.sharing.shm_bytes is None
    assert readings.torch.trouble == "it did not answer in time"
