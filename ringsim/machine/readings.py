"""`Readings`: what is known of a machine, without any judgement; None for what the system does not tell."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CpuReadings:
    """usable: cores that this process may run on; quota: cores' worth of time that its cgroup is given.

    load: runnable threads, the mean of the last minute. steal: the share of the time that a hypervisor took.
    governor: how the kernel chooses the frequency. mhz, max_mhz: of the first core.
    """

    cores: int
    usable: int
    quota: float | None = None
    load: float | None = None
    steal: float | None = None
    governor: str | None = None
    mhz: float | None = None
    max_mhz: float | None = None
    omp_num_threads: str | None = None


@dataclass(frozen=True, slots=True)
class ClockReadings:
    """resolution_s, read_s: of time.perf_counter, as it says, and what reading it takes. source: of the kernel."""

    resolution_s: float
    read_s: float
    source: str | None = None


@dataclass(frozen=True, slots=True)
class GlooReadings:
    """What decides where Gloo listens.

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
    gpus: tuple[str, ...] | None = field(default=None)
