"""`read_machine`: the readings of this machine, from Python, /proc, /sys and a few programs; torch is not imported."""

import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from ringsim.limits import available_cores

_Answer = TypeVar("_Answer")


def gloo_address(host_name: str) -> str | None:
    """Return the first address of the name to which a socket can be bound here: Gloo's choice; None without one."""
    try:
        addresses = socket.getaddrinfo(host_name, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, kind, protocol, _, place in addresses:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.bind(place)
        except OSError:
            continue
        return str(place[0])
    return None


def is_loopback(address: str) -> bool:
    """Return whether an address, or the name localhost, leads to this host alone."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:  # a name
        return False


@dataclass(frozen=True, slots=True)
class CpuReadings:
    """available: cores' worth of time that this process can have.

    load: runnable threads, the mean of the last minute. steal: the share of the time that a hypervisor took.
    governor: how the kernel chooses the frequency. mhz, max_mhz: of the first core.
    """

    cores: int
    available: float
    load: float | None = None
    steal: float | None = None
    governor: str | None = None
    mhz: float | None = None
    max_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class ClockReadings:
    """resolution_s, read_s: of time.perf_counter, as it says, and what reading it takes. source: of the kernel."""

    resolution_s: float
    read_s: float
    source: str | None = None


@dataclass(frozen=True, slots=True)
class GlooReadings:
    """The settings that decide where Gloo listens.

    named: of GLOO_SOCKET_IFNAME, empty if it is not set. interfaces: of this host, by name. address: of the host's
    name, None if that leads to no address of this host.
    """

    named: str
    interfaces: tuple[str, ...]
    hostname: str
    address: str | None


@dataclass(frozen=True, slots=True)
class TorchReadings:
    """version: None if torch is not installed. backends: of torch.distributed; trouble: why they are not known."""

    version: str | None
    backends: tuple[str, ...] = ()
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class SharingReadings:
    """shm_bytes, shm_free_bytes: of /dev/shm. memfd: whether anonymous shared memory can be made.

    is_root, tools: whether this is root, and which of ip and tc are there, which the testbed needs.
    """

    shm_bytes: int | None
    shm_free_bytes: int | None
    memfd: bool
    is_root: bool
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Readings:
    """All of them. gpus: by name, as nvidia-smi tells; None where there is no nvidia-smi."""

    cpu: CpuReadings
    clock: ClockReadings
    gloo: GlooReadings
    torch: TorchReadings
    sharing: SharingReadings
    gpus: tuple[str, ...] | None = None


SAMPLE_S = 0.5  # over which steal is counted: fifty ticks of the kernel's accounting
TORCH_TIMEOUT_S = 120.0  # importing torch takes seconds, on a busy machine with a cold disk many
GPU_TIMEOUT_S = 20.0
CLOCK_READS = 10_000
ASK_TORCH = (
    "import torch.distributed as d\n"
    "names = ('gloo', 'nccl', 'mpi', 'ucc')\n"
    "print(*(n for n in names if d.is_available() and getattr(d, f'is_{n}_available', lambda: False)()))"
)


def read_machine() -> Readings:
    """Return what this machine says of itself; takes the time that importing torch takes, in another process."""
    return Readings(_cpu(), _clock(), _gloo(), _torch(), _sharing(), _gpus())


def _cpu() -> CpuReadings:
    folder = Path("/sys/devices/system/cpu/cpu0/cpufreq")
    return CpuReadings(
        cores=os.cpu_count() or 1,
        available=available_cores(),
        load=_told(lambda: os.getloadavg()[0]),
        steal=_steal(),
        governor=_text(folder / "scaling_governor"),
        mhz=_mhz(folder / "scaling_cur_freq"),
        max_mhz=_mhz(folder / "cpuinfo_max_freq"),
    )


def _steal() -> float | None:
    """Return the share of the sample that the hypervisor gave to others while a core had something to do here."""
    before = _ticks()
    time.sleep(SAMPLE_S)
    after = _ticks()
    if before is None or after is None:
        return None
    spent = [late - early for early, late in zip(before, after, strict=False)]
    return spent[7] / sum(spent[:8]) if len(spent) > 7 and sum(spent[:8]) > 0 else None


def _ticks() -> list[int] | None:
    """Of all cores together: user, nice, system, idle, iowait, irq, softirq, steal, ... (proc(5))."""
    first = (_text("/proc/stat") or "").partition("\n")[0].split()
    return [int(number) for number in first[1:]] if first[:1] == ["cpu"] else None


def _clock() -> ClockReadings:
    begin = time.perf_counter()
    for _ in range(CLOCK_READS):
        time.perf_counter()
    read_s = (time.perf_counter() - begin) / CLOCK_READS
    source = _text("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    return ClockReadings(time.get_clock_info("perf_counter").resolution, read_s, source)


def _gloo() -> GlooReadings:
    name = socket.gethostname()
    interfaces = tuple(interface for _, interface in _told(socket.if_nameindex) or ())
    return GlooReadings(os.environ.get("GLOO_SOCKET_IFNAME", ""), interfaces, name, gloo_address(name))


def _torch() -> TorchReadings:
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return TorchReadings(None)
    done = _run([sys.executable, "-P", "-c", ASK_TORCH], TORCH_TIMEOUT_S)  # not a torch.py of the current directory
    if done is None or done.returncode:
        said = (done.stderr.strip().splitlines() if done else []) or ["it did not answer in time"]
        return TorchReadings(installed, trouble=said[-1])
    return TorchReadings(installed, tuple(done.stdout.split()))


def _sharing() -> SharingReadings:
    size = _told(lambda: shutil.disk_usage("/dev/shm"))
    memory = _told(lambda: os.memfd_create("ringsim-doctor"))
    if memory is not None:
        os.close(memory)
    return SharingReadings(
        shm_bytes=size.total if size else None,
        shm_free_bytes=size.free if size else None,
        memfd=memory is not None,
        is_root=os.geteuid() == 0,
        tools=tuple(tool for tool in ("ip", "tc") if shutil.which(tool)),
    )


def _gpus() -> tuple[str, ...] | None:
    program = shutil.which("nvidia-smi")
    done = _run([program, "--query-gpu=name", "--format=csv,noheader"], GPU_TIMEOUT_S) if program else None
    if done is None:
        return None
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip()) if not done.returncode else ()


def _run(command: list[str], timeout_s: float) -> "subprocess.CompletedProcess[str] | None":
    """None if it cannot be started or does not end in time."""
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None


def _mhz(path: Path) -> float | None:
    text = _text(path)
    return int(text) / 1000 if text and text.isdecimal() else None


def _text(path: str | Path) -> str | None:
    """Return what a file of the kernel says."""
    return _told(lambda: Path(path).read_text().strip())


def _told(ask: Callable[[], _Answer]) -> _Answer | None:
    """Return what the system says; None where it has no such file, call or function."""
    try:
        return ask()
    except (AttributeError, OSError):
        return None
