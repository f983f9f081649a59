"""`examine`: what the readings of a machine mean for measurements on it, and what to do."""

from collections.abc import Callable
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


Opinion = tuple[Level, str, str] | tuple[Level, str, str, str]  # all of a finding but its subject


def examine(readings: Readings) -> list[MachineFinding]:
    """Return a finding for each thing that measurements depend on, and of which something is known."""
    opinions = ((subject, opinion_of(readings)) for subject, opinion_of in _SUBJECTS.items())
    return [MachineFinding(subject, *opinion) for subject, opinion in opinions if opinion is not None]


def _cores(readings: Readings) -> Opinion:
    all_cores, cores = readings.cpu.cores, readings.cpu.available
    fact = f"{all_cores} core{'s' * (all_cores != 1)}"
    if cores < all_cores:
        fact += f", of which this process may use {cores:g}"
    whole = int(cores)
    if whole < RANKS_OF_LEAST:
        meaning = "Two ranks share a core: the scheduler determines their times."
        advice = "Measure where there are at least two cores, or read every time as an upper bound."
        return Level.NOTE, fact, meaning, advice
    apart = (
        f"Up to {whole} ranks have a core each, and poll while they wait, or up to {whole // 2} if they compute "
        "meanwhile; with more, a waiting rank gives its core up."
    )
    beside = f"DDP hides communication behind the backward pass only with up to {whole // 2} rank{'s' * (whole > 3)}."
    if cores == all_cores:
        return Level.OK, fact, f"{apart} {beside}"
    advice = f"Start at most {whole} ranks (taskset or the container's limit holds back the rest)."
    return Level.NOTE, fact, f"{apart} {beside}", advice


def _load(readings: Readings) -> Opinion | None:
    load, cores = readings.cpu.load, readings.cpu.available
    if load is None:
        return None
    fact = f"load {load:.1f} in the last minute"
    if load <= max(cores - RANKS_OF_LEAST, 0.5):  # half a core is what the system itself may need
        return Level.OK, fact, "The cores that two ranks need are free."
    meaning = f"Fewer than {RANKS_OF_LEAST} of the {cores:g} cores were free: probes will be noisy."
    return Level.NOTE, fact, meaning, "Wait until nothing else runs (uptime, top)."


def _steal(readings: Readings) -> Opinion | None:
    steal = readings.cpu.steal
    if steal is None:
        return None
    fact = f"the hypervisor took {steal:.1%} of the last moment"
    if steal <= MUCH_STEAL:
        return Level.OK, fact, "As far as can be seen from here, no other machine shares the cores."
    meaning = "The hypervisor takes cores away while ranks wait for each other; no model predicts these long times."
    return Level.NOTE, fact, meaning, "Measure at another time, or on a dedicated host."


def _frequency(readings: Readings) -> Opinion:
    cpu = readings.cpu
    if cpu.governor is None:
        meaning = "Whether it changes during a measurement cannot be seen from here."
        return Level.OK, "not known, as in most virtual machines", meaning
    now = f", {cpu.mhz:.0f} MHz now" if cpu.mhz else ""
    most = f", at most {cpu.max_mhz:.0f} MHz" if cpu.max_mhz else ""
    fact = f"governor {cpu.governor}{now}{most}"
    if cpu.governor in STEADY:
        return Level.OK, fact, "The kernel keeps the frequency."
    meaning = "Cores that wait for messages are clocked down, so that short messages take longer."
    return Level.NOTE, fact, meaning, "For steady times: cpupower frequency-set -g performance, as root."


def _clock(readings: Readings) -> Opinion:
    clock = readings.clock
    source = f"source {clock.source}, " if clock.source else ""
    fact = f"{source}resolution {format_time(clock.resolution_s)}, {format_time(clock.read_s)} a reading"
    if clock.source not in SLOW_SOURCES and max(clock.read_s, clock.resolution_s) <= SLOW_CLOCK_S:
        return Level.OK, fact, "Far below the time of a message."
    advice = "Boot with clocksource=tsc if the processor's counter is steady, or trust long messages only."
    return Level.NOTE, fact, "Reading the clock takes a significant part of the time of a short message.", advice


def _interface(readings: Readings) -> Opinion:
    gloo = readings.gloo
    if gloo.named:
        fact = f"GLOO_SOCKET_IFNAME={gloo.named}"
        missing = [name for name in gloo.named.split(",") if name not in gloo.interfaces]
        if not missing:
            return Level.OK, fact, "Gloo sends through that interface, also between ranks of this host."
        there = ", ".join(gloo.interfaces) or "none"
        meaning = f"There is no interface {missing[0]} here, so Gloo cannot start. The interfaces are: {there}."
        return Level.PROBLEM, fact, meaning, "Set it to one of those, or unset it."
    fact = f"the host's name, {gloo.hostname}, resolves to {gloo.address or 'no address of this host'}"
    if gloo.address and not is_loopback(gloo.address):
        return Level.OK, fact, "Gloo listens there, and ranks of other hosts must be able to reach it."
    listens = "listens on loopback" if gloo.address else "uses loopback instead"
    meaning = f"Gloo {listens}: ranks of this host can meet, those of others cannot."
    advice = "On several hosts set GLOO_SOCKET_IFNAME to the interface between them (ip -br address)."
    return Level.NOTE, fact, meaning, advice


def _torch(readings: Readings) -> Opinion:
    torch = readings.torch
    if torch.version is None:
        install = "Install it, such as pip install torch; ringsim simulate, sweep and ddp need none."
        return Level.PROBLEM, "torch is not installed", "Nothing can be measured.", install
    if torch.trouble:
        fact, meaning = f"torch {torch.version}: {torch.trouble}", "It cannot be imported, so nothing can be measured."
        return Level.PROBLEM, fact, meaning, "Install it again; the message names the missing part."
    fact = f"torch {torch.version}, backends {', '.join(torch.backends) or 'none'}"
    if "gloo" not in torch.backends:
        meaning = "ringsim measure and the strategy comparison start Gloo, which this build does not have."
        return Level.PROBLEM, fact, meaning, "Install a build of torch with Gloo, as pip's has."
    if _numbers(torch.version) < OLDEST_TORCH:
        meaning = f"Older than {'.'.join(map(str, OLDEST_TORCH))}, which the code needs."
        return Level.NOTE, fact, meaning, "Upgrade torch."
    return Level.OK, fact, "Ranks can be started on Gloo."


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.partition("+")[0].split(".")[:2]
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in parts)


def _memory(readings: Readings) -> Opinion:
    sharing = readings.sharing
    memfd = "memfd" if sharing.memfd else "no memfd"
    ways = "Ranks here read each other's memory" if sharing.memfd else "Ranks here send over loopback"
    if sharing.shm_bytes is None or sharing.shm_free_bytes is None:
        meaning = f"{ways}, which needs none; data loaders with workers do need it."
        return Level.NOTE, f"no /dev/shm, {memfd}", meaning, "Mount a tmpfs there for data loaders."
    fact = f"/dev/shm {format_size(sharing.shm_bytes)}, {format_size(sharing.shm_free_bytes)} free, {memfd}"
    if sharing.shm_free_bytes > SHARED_BYTES:
        return Level.OK, fact, f"{ways}, which needs none of it; enough for data loaders."
    meaning = "Data loaders with workers pass their batches there, and fail when it is full."
    return Level.NOTE, fact, meaning, "Give it more: docker run --shm-size, or mount -o remount,size=1G /dev/shm."


def _testbed(readings: Readings) -> Opinion:
    sharing = readings.sharing
    fact = f"{'root' if sharing.is_root else 'not root'}, {', '.join(sharing.tools) or 'neither ip nor tc'}"
    hosts = "make hosts of network namespaces; everything else works."
    if not {"ip", "tc"} <= set(sharing.tools):
        return Level.NOTE, fact, f"scripts/testbed.py cannot {hosts}", "Install iproute2."
    if not sharing.is_root:
        return Level.NOTE, fact, f"scripts/testbed.py needs root to {hosts}", "Start the testbed with sudo."
    return Level.OK, fact, "scripts/testbed.py can try to make hosts of namespaces."


def _gpu(readings: Readings) -> Opinion:
    if readings.gpus is None:
        return Level.OK, "no nvidia-smi", "Tensors are those of the CPU, over Gloo."
    if not readings.gpus:
        meaning = "nvidia-smi is there but names no GPU: its driver does not answer."
        return Level.NOTE, "no GPU answers", meaning, "Run nvidia-smi to see the error."
    fact = f"{len(readings.gpus)}: {', '.join(dict.fromkeys(readings.gpus))}"
    if "nccl" in readings.torch.backends:
        return Level.OK, fact, "NCCL can be used."
    meaning = "This torch has no NCCL: tensors of a GPU go through host memory."
    return Level.NOTE, fact, meaning, "Install a build of torch for CUDA."


_SUBJECTS: dict[str, Callable[[Readings], Opinion | None]] = {
    "cores": _cores,
    "load": _load,
    "steal": _steal,
    "frequency": _frequency,
    "clock": _clock,
    "interface": _interface,
    "torch": _torch,
    "shared memory": _memory,
    "testbed": _testbed,
    "gpu": _gpu,
}
