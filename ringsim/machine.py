"""`examine`: the state of this machine on which measurements depend, and advice."""

import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ringsim.limits import available_cores
from ringsim.units import format_size, plural

MIN_RANKS = 2  # of the smallest measurement that sends anything
# Blocks of probes last 20 ms and their median counts, so that a core may be away for a tenth of them; a hypervisor that
# takes more than a hundredth of all time meets most blocks of several ranks.
MAX_STEAL = 0.01
STEAL_SAMPLE_S = 0.5  # fifty ticks of the kernel's accounting
SHARED_BYTES = 64 * 2**20  # the size of /dev/shm in Docker; PyTorch's data loaders pass their batches there
TORCH_TIMEOUT_S = 120.0  # importing torch takes seconds, on a busy machine with a cold disk many
ASK_TORCH = (
    "import torch, torch.distributed as d\n"
    "print(torch.__version__, *(n for n in ('gloo', 'nccl') if d.is_available() and getattr(d, f'is_{n}_available')()))"
)


class Level(StrEnum):
    """The severity of a finding; a problem prevents measurements."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """A fact about the machine, and advice for measurements."""

    subject: str
    level: Level
    fact: str
    advice: str = ""


def examine() -> list[MachineFinding]:
    """Return the findings that the system allows; a child process imports torch."""
    findings = []
    for check in (_cores, _load, _steal, _interface, _torch, _shared_memory):
        with suppress(OSError):
            findings.append(check())
    return findings


def _cores() -> MachineFinding:
    all_cores, cores = os.cpu_count() or 1, available_cores()
    whole, is_limited = int(cores), cores < all_cores
    fact = plural(all_cores, "core") + (f", of which this process may use {cores:g}" if is_limited else "")
    if whole < MIN_RANKS:
        advice = "Two ranks share a core, and the scheduler determines their times: measure on at least two cores."
        return MachineFinding("cores", Level.NOTE, fact, advice)
    advice = (
        f"Up to {whole} ranks have a core each, and poll while they wait, or up to {whole // 2} if they compute "
        "meanwhile, as with DDP; with more, a waiting rank gives its core up."
    )
    return MachineFinding("cores", Level.NOTE if is_limited else Level.OK, fact, advice)


def _judged(subject: str, is_ok: bool, fact: str, advice: str, level: Level = Level.NOTE) -> MachineFinding:
    return MachineFinding(subject, Level.OK if is_ok else level, fact, "" if is_ok else advice)


def _load() -> MachineFinding:
    load, cores = os.getloadavg()[0], available_cores()
    is_ok = load <= max(cores - MIN_RANKS, 0.5)  # the system itself may need half a core
    advice = f"Fewer than {MIN_RANKS} of the {cores:g} cores were free: wait until nothing else runs (uptime, top)."
    return _judged("load", is_ok, f"load {load:.1f} in the last minute", advice)


def _steal() -> MachineFinding:
    steal = _steal_share()
    advice = "It takes cores away while ranks wait for each other: measure at another time, or on a dedicated host."
    return _judged("steal", steal <= MAX_STEAL, f"the hypervisor took {steal:.1%} of the last moment", advice)


def _steal_share() -> float:
    before = _ticks()
    time.sleep(STEAL_SAMPLE_S)
    spent = [late - early for early, late in zip(before, _ticks(), strict=True)]
    return spent[7] / max(sum(spent), 1)


def _ticks() -> list[int]:
    """Return the ticks of all cores: user, nice, system, idle, iowait, irq, softirq, steal (proc(5))."""
    return [int(number) for number in Path("/proc/stat").read_text().split()[1:9]]


def _interface() -> MachineFinding:
    if named := os.environ.get("GLOO_SOCKET_IFNAME"):
        interfaces = [name for _, name in socket.if_nameindex()]
        advice = f"Gloo cannot start, because there is no such interface: choose of {', '.join(interfaces)}."
        is_ok = set(named.split(",")) <= set(interfaces)
        return _judged("interface", is_ok, f"GLOO_SOCKET_IFNAME={named}", advice, Level.PROBLEM)
    name = socket.gethostname()
    address = gloo_address(name)
    fact = f"the host's name, {name}, resolves to {address or 'no address of this host'}"
    advice = (
        "Gloo uses loopback, which no other host reaches: on several hosts set GLOO_SOCKET_IFNAME to the interface "
        "between them (ip -br address)."
    )
    return _judged("interface", address is not None and not is_loopback(address), fact, advice)


def gloo_address(host_name: str) -> str | None:
    """Return Gloo's choice: the first address of the name to which a socket can be bound; None without one."""
    try:
        addresses = socket.getaddrinfo(host_name, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, kind, protocol, _, place in addresses:
        with suppress(OSError), socket.socket(family, kind, protocol) as tried:
            tried.bind(place)
            return str(place[0])
    return None


def is_loopback(address: str) -> bool:
    """Return whether an address, or the name localhost, leads to this host alone."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:  # a name
        return address == "localhost"


def _torch() -> MachineFinding:
    said, is_imported = _ask_torch()
    if not is_imported:
        advice = "Nothing can be measured: install torch; ringsim simulate, sweep and ddp need none."
        return MachineFinding("torch", Level.PROBLEM, said, advice)
    version, *backends = said.split()
    fact = f"torch {version}, backends {', '.join(backends) or 'none'}"
    if "gloo" not in backends:
        advice = "Measuring starts Gloo: install a build of torch that has it, as pip's has."
        return MachineFinding("torch", Level.PROBLEM, fact, advice)
    advice = "Tensors of the GPUs go through host memory without NCCL: install a build of torch for CUDA."
    return _judged("torch", "nccl" in backends or not shutil.which("nvidia-smi"), fact, advice)


def _ask_torch() -> tuple[str, bool]:
    command = [sys.executable, "-P", "-c", ASK_TORCH]  # -P: not a torch.py of the current directory
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TORCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"torch was not imported in {TORCH_TIMEOUT_S:g} s", False
    lines = (done.stdout or done.stderr).splitlines()
    return (lines[-1] if lines else f"importing torch ended with code {done.returncode}"), done.returncode == 0


def _shared_memory() -> MachineFinding:
    free_bytes = shutil.disk_usage("/dev/shm").free
    advice = "Data loaders with workers need more: docker run --shm-size, or mount -o remount,size=1G /dev/shm."
    fact = f"{format_size(free_bytes)} free in /dev/shm"
    return _judged("shared memory", free_bytes > SHARED_BYTES, fact, advice)
