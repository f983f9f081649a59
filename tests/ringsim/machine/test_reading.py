"""Readings of the machine that the tests run on, and of texts of the kernel."""

import subprocess
import sys
from unittest.mock import patch

import pytest

from ringsim.machine import reading
from ringsim.machine.reading import read_machine


def test_this_machine_can_be_read() -> None:
    """Torch is found with its backends, though it is not imported here."""
    check = (
        "import sys; from ringsim.machine.reading import read_machine; readings = read_machine();"
        "print('torch' in sys.modules, readings.torch.backends, readings.torch.trouble, readings.cpu.cores >= 1)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False ('gloo',")
    assert done.stdout.endswith(" True\n")


@pytest.mark.parametrize(("text", "quota"), [("200000 100000", 2.0), ("max 100000", None), ("", None), (None, None)])
def test_the_quota_of_a_cgroup(text: str | None, quota: float | None) -> None:
    """Of cpu.max; without a limit, or without the file, there is none."""
    assert reading._quota(text) == quota


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
