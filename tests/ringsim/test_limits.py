"""The cores and the memory that a process can have, in control groups that are made up here."""

from pathlib import Path

import pytest

from ringsim import limits

MIB = 2**20


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process in the group /job/step, of a machine with 4 cores and 1 GiB of free memory: the groups' folder."""
    (tmp_path / "cgroup").write_text("1:cpu:/elsewhere\n0::/job/step\n")
    (tmp_path / "meminfo").write_text("MemTotal:  2097152 kB\nMemAvailable:  1048576 kB\n")
    folder = tmp_path / "groups"
    (folder / "job" / "step").mkdir(parents=True)
    monkeypatch.setattr(limits, "PROCESS", tmp_path / "cgroup")
    monkeypatch.setattr(limits, "MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(limits, "GROUPS", folder)
    monkeypatch.setattr(limits, "_usable_cores", lambda: 4)
    return folder


def limit_memory(group: Path, most: str, used: int, files: int) -> None:
    """Write what a group may have, what it uses, and how much of that is of files that can be read again."""
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(
        f"anon 5\ninactive_file {files // 2}\nactive_file {files // 4}\nslab_reclaimable {files // 4}\nslab 9\n"
    )


CORES = [
    ("200000 100000", "max 100000", 2.0),
    ("max 100000", "50000 100000", 0.5),
    ("900000 100000", "300000 100000", 3.0),
    ("900000 100000", "900000 100000", 4),
    ("", "unreadable", 4),
    ("100000 0", "max", 4),
]


@pytest.mark.parametrize(("step", "job", "cores"), CORES)
def test_cores(groups: Path, step: str, job: str, cores: float) -> None:
    """The least of what the groups around the process are given."""
    (groups / "job" / "step" / "cpu.max").write_text(step)
    (groups / "job" / "cpu.max").write_text(job)
    assert limits.available_cores() == cores


def test_a_container_that_sees_its_group_as_the_outermost(groups: Path) -> None:
    """The folder of the path that it is told of is not there; the outermost one has its limits."""
    (groups / "job" / "step").rmdir()
    (groups / "job").rmdir()
    (groups / "cpu.max").write_text("150000 100000")
    assert limits.available_cores() == 1.5


def test_free_memory(groups: Path) -> None:
    """Memory that holds files counts as free, since the kernel gives it away; without a limit there is none."""
    assert limits.free_bytes() == 2**30
    limit_memory(groups / "job" / "step", "max", 900 * MIB, 0)
    assert limits.free_bytes() == 2**30
    limit_memory(groups / "job", str(600 * MIB), 200 * MIB, 50 * MIB)
    assert limits.free_bytes() == 450 * MIB
    (groups / "job" / "memory.stat").unlink()
    assert limits.free_bytes() == 400 * MIB
    limit_memory(groups, str(600 * MIB), 700 * MIB, 0)
    assert limits.free_bytes() == 0


def test_a_system_that_says_nothing(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cores are usable, and memory is not limited."""
    for name in ("PROCESS", "MACHINE"):
        monkeypatch.setattr(limits, name, groups / "nothing")
    monkeypatch.setattr(limits, "_pages_bytes", lambda _: float("inf"))
    assert (limits.available_cores(), limits.free_bytes()) == (4, float("inf"))


def test_this_machine() -> None:
    """It has a core and some memory; otherwise nothing could be run here."""
    assert limits.available_cores() > 0
    assert 2**20 < limits.free_bytes() <= limits.installed_bytes()
