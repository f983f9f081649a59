"""`Chooser`: choose the algorithm for each size by simulating all candidates on the group's network."""

import hashlib
import os

import numpy as np
import torch.distributed as dist

from collectives import runtime
from collectives.probes import Blocks, probe
from ringsim.calibration import calibrate_host, calibrate_hosts, calibrate_uniform, num_hosts
from ringsim.files import quoted
from ringsim.libraries import OURS
from ringsim.limits import available_cores
from ringsim.measurements import Measurements
from ringsim.network import Network, load_network
from ringsim.registry import ALGORITHMS, build, build_proved, is_built_in
from ringsim.schedule import Collective, Schedule
from ringsim.simulation import predict_time

# Algorithms that are fastest on some network, with whole chunks and, where that can help, segments.
CANDIDATES: dict[Collective, tuple[str, ...]] = {
    Collective.ALL_REDUCE: ("recursive_doubling", "two_shot", "halving_doubling", "ring", "ring/4", "ring/16"),
    Collective.REDUCE_SCATTER: ("direct", "halving_doubling", "ring", "ring/4", "ring/16"),
    Collective.ALL_GATHER: ("direct", "recursive_doubling", "ring", "ring/4", "ring/16"),
    Collective.BROADCAST: ("binomial_tree", "binomial_tree/4", "ring"),
    Collective.REDUCE: ("binomial_tree", "binomial_tree/4", "ring"),
    Collective.GATHER: ("binomial_tree", "direct"),
    Collective.SCATTER: ("binomial_tree", "direct"),
    Collective.ALL_TO_ALL: ("direct", "pairwise", "bruck"),
}
PROBED_BYTES = 4 * 2**20  # enough to see what a byte costs, and over in a fraction of a second
PROBED_MEMORY_BYTES = 16 * 2**20
PROBED_BLOCKS = Blocks(turns=2, number=2)
PROBED_SIZES = (64, 32 * 2**10, 128 * 2**10, 512 * 2**10)  # and half of the above
ROUNDING = 1e-9  # predicted times that differ by this fraction are the same


class Chooser:
    """Chooses for one group, once per collective and power of four, on rank 0, which tells the others."""

    def __init__(self, _: dist.ProcessGroup) -> None:
        self._network: Network | None = None
        self._candidates = {collective: list(names) for collective, names in CANDIDATES.items()}
        self._chosen: dict[tuple[Collective, int], str] = {}
        self._names: runtime.TextAllGather | None = None

    @property
    def network(self) -> Network | None:
        return self._network

    def use(self, network: Network) -> None:
        self._network = network
        self._chosen.clear()

    def add(self, collective: Collective, algorithm: str) -> None:
        if algorithm not in self._candidates[collective]:
            self._candidates[collective].append(algorithm)
        self._chosen.clear()

    def choose(self, collective: Collective, size_bytes: int, group: dist.ProcessGroup) -> str:
        """Return the algorithm for `size_bytes`; collective."""
        key = collective, (size_bytes.bit_length() + 1) // 2
        if group.size() == 1:
            return self._candidates[collective][0]
        if key not in self._chosen:
            network = self._network or self._probed(group)
            best = self._best(collective, 4 ** key[1] // 2, group.size(), network) if group.rank() == 0 else ""
            self._names = self._names or runtime.TextAllGather(group, runtime.Tag.ALGORITHM_CHOICE)
            self._chosen[key] = self._names.gather(best)[0]
        return self._chosen[key]

    def _probed(self, group: dist.ProcessGroup) -> Network:
        measurements = probe(group, PROBED_BYTES, PROBED_MEMORY_BYTES, blocks=PROBED_BLOCKS, sizes=PROBED_SIZES)
        self._network = _calibrated(measurements, max(int(available_cores()), 1))
        return self._network

    def _best(self, collective: Collective, size_bytes: int, num_ranks: int, network: Network) -> str:
        names = [*self._candidates[collective], *_of_several_hosts(collective, num_ranks, network)]
        schedules = {name: build(collective, name, num_ranks) for name in names}
        times_s = {name: OURS.predict_call(schedules[name], network, size_bytes) for name in names}
        fastest = [name for name in names if times_s[name] <= min(times_s.values()) * (1 + ROUNDING)]
        # Where a link's bandwidth alone decides, several are equally fast; the time without bytes then decides.
        return min(fastest, key=lambda name: predict_time(schedules[name], network, 0, runtime=OURS.runtime))


def _calibrated(measurements: Measurements, num_cores: int) -> Network:
    if num_hosts(measurements) == 1:
        return calibrate_host(measurements, num_cores)
    try:
        return calibrate_hosts(measurements, num_cores, links_alike=True)
    except ValueError:  # hosts of several sizes, or whose ranks do not follow one another
        return calibrate_uniform(measurements)


def _of_several_hosts(collective: Collective, num_ranks: int, network: Network) -> list[str]:
    per_host = network.spec.ranks_per_host
    if (collective, "hierarchical") not in ALGORITHMS or per_host is None or not 1 < per_host < num_ranks:
        return []
    return [f"hierarchical@{per_host}"] if num_ranks % per_host == 0 else []


def chooser_of(group: dist.ProcessGroup) -> Chooser:
    """Return the chooser of `group`, which lives as long as the group."""
    return runtime.state_of(group).part(Chooser)


def require_network(group: dist.ProcessGroup) -> None:
    """Raise ValueError if `group` can neither be probed nor has a network."""
    if group.size() > 1 and not runtime.has_backend(group, runtime.CPU) and chooser_of(group).network is None:
        raise ValueError(
            "algorithm 'auto': the probes time tensors on the CPU, for which the group has no backend; name an "
            "algorithm, or calibrate and call collectives.use_network(network, group) first"
        )


def use_network(network: Network | str | os.PathLike[str], group: dist.ProcessGroup | None = None) -> None:
    """Let the algorithm "auto" choose by simulating on `network`, from now on, instead of probing the group first.

    Every rank of the group calls this, with the same network.

    network: a Network, or a preset or file as in `ringsim.load_network`.

    Raises ValueError for a wrong group, network or file.

        >>> collectives.use_network(ringsim.Network.uniform(latency_s=20e-6, bandwidth_bytes_per_s=1e9))
        >>> collectives.all_reduce(torch.ones(3), algorithm="auto")
    """
    chosen = load_network(os.fspath(network)) if isinstance(network, str | os.PathLike) else network
    if not isinstance(chosen, Network):
        raise ValueError(f"network {quoted(network)}: must be a ringsim.Network, or a preset or FILE.toml")
    chooser_of(runtime.resolve(group)).use(chosen)


def add_candidate(
    algorithm: str, collective: Collective | str = Collective.ALL_REDUCE, group: dist.ProcessGroup | None = None
) -> None:
    """Add `algorithm` to the candidates of "auto", which chooses it from now on where it is fastest in the simulator.

    Every rank of the group calls this, with the same arguments.

    algorithm: FILE.py:FUNCTION, MSCCL's FILE.xml, or another built-in algorithm. It is proved here.

    Raises ValueError for an unknown algorithm, collective or group, or a name of more than 256 bytes; ScheduleError for
    an incorrect algorithm; MismatchError, on every rank, if ranks differ in the name or the schedule.

        >>> collectives.add_candidate("double_binary_tree")
    """
    group, collective = runtime.resolve(group), _collective(collective)
    if not isinstance(algorithm, str) or len(algorithm.encode()) > runtime.TEXT_BYTES:
        rule = f"must be a name, such as FILE.py:FUNCTION, of at most {runtime.TEXT_BYTES} bytes"
        raise ValueError(f"algorithm {quoted(algorithm)}: {rule}")  # as rank 0 tells the name to the others
    schedule = build_proved(collective, algorithm, group.size())
    state = runtime.state_of(group)
    words = f"add_candidate to {collective.value}: {named_with_digest(algorithm, schedule)}"
    state.part(runtime.CollectiveQueue).run(lambda: state.part(runtime.FingerprintCheck).compare(words))
    chooser_of(group).add(collective, algorithm)


def _collective(name: Collective | str) -> Collective:
    known = [collective.value for collective in Collective]
    if not isinstance(name, Collective) and name not in known:
        raise ValueError(f"collective {quoted(name)}: must be one of {', '.join(known)}")
    return Collective(name)


def named_with_digest(algorithm: str, schedule: Schedule) -> str:
    """Return an algorithm's name as ranks compare it, with a digest of the schedule if it is a user's own.

    The digest tells apart files of the same name with different content.
    """
    if is_built_in(schedule.collective, algorithm):
        return algorithm
    digest = hashlib.blake2b(np.asarray(schedule.bounds(10 * schedule.num_chunks + 1)).tobytes(), digest_size=6)
    for step in schedule.steps:
        digest.update(len(step).to_bytes(8, "little"))
        for column in (step.src, step.dst, step.chunk, step.reduce, step.channel):
            digest.update(np.ascontiguousarray(column).tobytes())
    return f"{algorithm} (schedule {digest.hexdigest()})"
