"""`examine`: what the readings of a machine mean for measurements on it, and what to do."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from ringsim.machine.reading import Readings, is_loopback
from ringsim.units import format_size, format_time

# Blocks of probes last 20 ms and their median counts, so that a core may be away for a tenth of them; a hypervisor that
# takes more than a hundredth of all time meets most blocks of several ranks.
MUCH_STEAL = 0.01
SLOW_CLOCK_S = 1e-6  # a message of a few bytes takes some 50 us; a clock that takes more than 1 us of them is seen
SLOW_SOURCES = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")  # read from a device, or only at each tick
STEADY = ("performance", "userspace")  # governors that keep the frequency
SHARED_BYTES = 64 * 2**20  # what Docker gives /dev/shm; PyTorch's data loaders pass their batches there
OLDEST_TORCH = (2, 6)
RANKS_OF_LEAST = 2  # ranks of the smallest measurement that sends anything


class Level(Enum):
    """How much a finding matters: problem: measuring is impossible."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """A fact, what it means for measurements, and what to do; the last is empty where there is nothing to do."""

    subject: str
    level: Level
    fact: str
    meaning: str
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {**asdict(self), "level": self.level.value}


def examine(readings: Readings) -> list[MachineFinding]:
    """Return a finding for each thing that measurements depend on."""
    examinations = (_cores, _load, _steal, _frequency, _clock, _interface, _torch, _memory, _testbed, _gpu)
    return [finding for examination in examinations for finding in examination(readings)]


def available_cores(readings: Readings) -> float:
    """Return the cores' worth of time that the process can have."""
    cpu = readings.cpu
    return min(cpu.usable, cpu.quota) if cpu.quota is not None else cpu.usable


def _cores(readings: Readings) -> Iterator[MachineFinding]:
    cpu, cores = readings.cpu, available_cores(readings)
    fact = f"{cpu.cores} core{'s' * (cpu.cores != 1)}"
    if cores < cpu.cores:
        fact += f", of which this process may use {cores:g}"
    whole = int(cores)
    if whole < RANKS_OF_LEAST:
        yield MachineFinding(
            "cores", Level.NOTE, fact, "Two ranks take turns on a core: times are those of the scheduler.",
            "Measure where there are at least two cores, or read every time as an upper bound.",
        )  # fmt: skip
        return
    apart = f"Up to {whole} ranks have a core each; with more, ranks wait for one another."
    beside = f"DDP hides communication behind the backward pass only with up to {whole // 2} rank{'s' * (whole > 3)}."
    level = Level.OK if cores == cpu.cores else Level.NOTE
    advice = (
        "" if level is Level.OK else f"Start at most {whole} ranks (taskset or the container's limit holds the rest)."
    )
    yield MachineFinding("cores", level, fact, f"{apart} {beside}", advice)


def _load(readings: Readings) -> Iterator[MachineFinding]:
    load, cores = readings.cpu.load, available_cores(readings)
    if load is None:
        return
    fact = f"load {load:.1f} in the last minute"
    if load > max(cores - RANKS_OF_LEAST, 0.5):  # half a core is what the system itself may need
        meaning = f"Fewer than {RANKS_OF_LEAST} of the {cores:g} cores were free: probes will be noisy."
        yield MachineFinding("load", Level.NOTE, fact, meaning, "Wait until nothing else runs (uptime, top).")
    else:
        yield MachineFinding("load", Level.OK, fact, "Nothing else takes the cores that two ranks need.")


def _steal(readings: Readings) -> Iterator[MachineFinding]:
    steal = readings.cpu.steal
    if steal is None:
        return
    fact = f"the hypervisor took {steal:.1%} of the last moment"
    if steal > MUCH_STEAL:
        meaning = "Cores are away while ranks wait for one another: long times that no model predicts."
        yield MachineFinding("steal", Level.NOTE, fact, meaning, "Measure at another time, or on a host of your own.")
    else:
        yield MachineFinding("steal", Level.OK, fact, "The cores are this machine's own, as far as it can tell.")


def _frequency(readings: Readings) -> Iterator[MachineFinding]:
    cpu = readings.cpu
    if cpu.governor is None:
        meaning = "Whether it changes during a measurement cannot be seen from here."
        yield MachineFinding("frequency", Level.OK, "not known, as in most virtual machines", meaning)
        return
    now = f", {cpu.mhz:.0f} MHz now" if cpu.mhz else ""
    most = f", at most {cpu.max_mhz:.0f} MHz" if cpu.max_mhz else ""
    fact = f"governor {cpu.governor}{now}{most}"
    if cpu.governor in STEADY:
        yield MachineFinding("frequency", Level.OK, fact, "The kernel keeps the frequency.")
    else:
        meaning = "Cores that wait for messages are clocked down, so that short messages take longer."
        advice = "For steady times: cpupower frequency-set -g performance, as root."
        yield MachineFinding("frequency", Level.NOTE, fact, meaning, advice)


def _clock(readings: Readings) -> Iterator[MachineFinding]:
    clock = readings.clock
    source = f"source {clock.source}, " if clock.source else ""
    fact = f"{source}resolution {format_time(clock.resolution_s)}, {format_time(clock.read_s)} a reading"
    if clock.source in SLOW_SOURCES or max(clock.read_s, clock.resolution_s) > SLOW_CLOCK_S:
        meaning = "Reading the clock takes a visible part of a short message."
        advice = "Boot with clocksource=tsc if the processor's counter is steady, or trust long messages only."
        yield MachineFinding("clock", Level.NOTE, fact, meaning, advice)
    else:
        yield MachineFinding("clock", Level.OK, fact, "Far below what a message takes.")


def _interface(readings: Readings) -> Iterator[MachineFinding]:
    gloo = readings.gloo
    if gloo.named:
        fact = f"GLOO_SOCKET_IFNAME={gloo.named}"
        names = gloo.named.split(",")
        if missing := [name for name in names if name not in gloo.interfaces]:
            there = ", ".join(gloo.interfaces) or "none"
            meaning = f"There is no interface {missing[0]} here, so Gloo cannot start; there are: {there}."
            yield MachineFinding("interface", Level.PROBLEM, fact, meaning, "Set it to one of those, or unset it.")
        else:
            meaning = "Gloo sends through that interface, also between ranks of this host."
            yield MachineFinding("interface", Level.OK, fact, meaning)
        return
    named = f"the host's name, {gloo.hostname}, "
    several = "On several hosts set GLOO_SOCKET_IFNAME to the interface between them (ip -br address)."
    if gloo.address is None:
        meaning = "Gloo takes loopback instead: ranks of this host can meet, those of others cannot."
        yield MachineFinding("interface", Level.NOTE, f"{named}leads to no address of it", meaning, several)
    elif is_loopback(gloo.address):
        meaning = "Gloo listens on loopback: ranks of this host can meet, those of others cannot."
        yield MachineFinding("interface", Level.NOTE, f"{named}leads to {gloo.address}", meaning, several)
    else:
        meaning = "Gloo listens there, and ranks of other hosts must be able to reach it."
        yield MachineFinding("interface", Level.OK, f"{named}leads to {gloo.address}", meaning)


def _torch(readings: Readings) -> Iterator[MachineFinding]:
    torch = readings.torch
    install = "Install it, such as pip install torch; ringsim simulate, sweep and ddp need none."
    if torch.version is None:
        yield MachineFinding("torch", Level.PROBLEM, "torch is not installed", "Nothing can be measured.", install)
        return
    if torch.trouble:
        meaning = "It cannot be imported, so nothing can be measured."
        fact = f"torch {torch.version}: {torch.trouble}"
        yield MachineFinding(
            "torch", Level.PROBLEM, fact, meaning, "Install it anew; the message says what is missing."
        )
        return
    fact = f"torch {torch.version}, backends {', '.join(torch.backends) or 'none'}"
    if "gloo" not in torch.backends:
        meaning = "ringsim measure and the main job start Gloo, which this build does not have."
        yield MachineFinding("torch", Level.PROBLEM, fact, meaning, "Install a build of torch with Gloo, as pip's has.")
    elif _numbers(torch.version) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        yield MachineFinding("torch", Level.NOTE, fact, f"Older than {oldest}, which the code needs.", "Upgrade torch.")
    else:
        yield MachineFinding("torch", Level.OK, fact, "Ranks can be started on Gloo.")


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.partition("+")[0].split(".")[:2]
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in parts)


def _memory(readings: Readings) -> Iterator[MachineFinding]:
    sharing = readings.sharing
    memfd = "memfd" if sharing.memfd else "no memfd"
    if sharing.shm_bytes is None or sharing.shm_free_bytes is None:
        meaning = "Ranks here talk over loopback, which needs none; data loaders with workers do need it."
        fact = f"no /dev/shm, {memfd}"
        yield MachineFinding("shared memory", Level.NOTE, fact, meaning, "Mount a tmpfs there for data loaders.")
        return
    free, total = format_size(sharing.shm_free_bytes), format_size(sharing.shm_bytes)
    fact = f"/dev/shm {total}, {free} free, {memfd}"
    if sharing.shm_free_bytes <= SHARED_BYTES:
        meaning = "Data loaders with workers pass their batches there, and fail when it is full."
        advice = "Give it more: docker run --shm-size, or mount -o remount,size=1G /dev/shm."
        yield MachineFinding("shared memory", Level.NOTE, fact, meaning, advice)
    else:
        yield MachineFinding("shared memory", Level.OK, fact, "Enough for data loaders; ranks talk over loopback.")


def _testbed(readings: Readings) -> Iterator[MachineFinding]:
    sharing = readings.sharing
    missing = [tool for tool in ("ip", "tc") if tool not in sharing.tools]
    fact = f"{'root' if sharing.is_root else 'not root'}, {', '.join(sharing.tools) or 'neither ip nor tc'}"
    if missing:
        meaning = "scripts/testbed.py cannot make hosts of network namespaces; everything else works."
        yield MachineFinding("testbed", Level.NOTE, fact, meaning, "Install iproute2.")
    elif not sharing.is_root:
        meaning = "scripts/testbed.py needs root to make hosts of network namespaces; everything else works."
        yield MachineFinding("testbed", Level.NOTE, fact, meaning, "Start the testbed with sudo.")
    else:
        yield MachineFinding("testbed", Level.OK, fact, "scripts/testbed.py can try to make hosts of namespaces.")


def _gpu(readings: Readings) -> Iterator[MachineFinding]:
    if readings.gpus is None:
        meaning = "Tensors are those of the CPU, over Gloo."
        yield MachineFinding("gpu", Level.OK, "no nvidia-smi", meaning)
    elif not readings.gpus:
        meaning = "nvidia-smi is there but names no GPU: its driver does not answer."
        yield MachineFinding("gpu", Level.NOTE, "no GPU answers", meaning, "Run nvidia-smi and see what it says.")
    else:
        nccl = "nccl" in readings.torch.backends
        meaning = "NCCL can be used." if nccl else "This torch has no NCCL: tensors of a GPU go through host memory."
        fact = f"{len(readings.gpus)}: {', '.join(dict.fromkeys(readings.gpus))}"
        advice = "" if nccl else "Install a build of torch for CUDA."
        yield MachineFinding("gpu", Level.OK if nccl else Level.NOTE, fact, meaning, advice)
