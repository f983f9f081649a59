"""`AllReduces`: how a process group all-reduces the buckets of a step, each by what its size calls for.

NCCL has several algorithms and protocols. On a network that describes it, a bucket is sent by what NCCL's own formula
says is over first (see `choose`), over the network with the latencies and the bandwidth of that protocol.
"""

from typing import NamedTuple

from ringsim.calibration import LibraryChoice, choose, given_name, why_unknown
from ringsim.native import Backend, all_reduce_by_size
from ringsim.network import AnyNetwork
from ringsim.schedule import Collective, Schedule
from ringsim.simulation import QueuedCall, has_steady_times

MAX_TRANSFERS = 2**22  # of a schedule of the library, which then takes about ten seconds to simulate


class BucketCall(NamedTuple):
    """The call for `size_bytes` of gradients, and the protocol that the library takes; None if it is not known."""

    size_bytes: int
    protocol: str | None
    call: QueuedCall


class AllReduces:
    """The all-reduces of a process group on a network.

    why_not: why some are not what the backend's library would take; "" if all are, or if it has one algorithm only.

    Raises ValueError for an algorithm that there is not.
    """

    def __init__(self, network: AnyNetwork, num_ranks: int, backend: Backend) -> None:
        self._num_ranks = num_ranks
        self._plain = all_reduce_by_size(backend.all_reduce, num_ranks)
        self._call_s = [backend.runtime.call_s(network, cold=cold) for cold in (False, True)]
        self.why_not = _why_not_chosen(network, num_ranks, backend)
        self._library_network = network if backend.chooses and not self.why_not else None
        self._choices: dict[int, LibraryChoice | None] = {}

    def call(self, size_bytes: int, element_bytes: int, ready_s: float, cold: bool = False) -> BucketCall:
        """Return the call for a bucket that is ready then. cold: see `Runtime.call_s`."""
        called_s = self._call_s[cold]
        choice = self._choice(size_bytes)
        if choice is None:
            schedule = self._plain(size_bytes)
            return BucketCall(size_bytes, None, QueuedCall(schedule, size_bytes, element_bytes, ready_s, called_s))
        even_bytes = in_even_chunks(choice.schedule, size_bytes, element_bytes)
        call_s = called_s + choice.start_s
        call = QueuedCall(choice.schedule, even_bytes, element_bytes, ready_s, call_s, choice.network)
        return BucketCall(size_bytes, choice.protocol, call)

    def _choice(self, size_bytes: int) -> LibraryChoice | None:
        if self._library_network is None:
            return None
        if size_bytes not in self._choices:
            choice = choose(self._library_network, Collective.ALL_REDUCE, self._num_ranks, size_bytes, MAX_TRANSFERS)
            self._choices[size_bytes] = choice
            if choice is None:
                self.why_not = f"{self._library_network.name}: it has more than {MAX_TRANSFERS:,} transfers"
        return self._choices[size_bytes]


def in_even_chunks(schedule: Schedule, size_bytes: int, element_bytes: int) -> int:
    """Return the size, rounded up so that all chunks have the same number of elements.

    NCCL rounds up what it cuts, too (runRing in src/device/all_reduce.h); only its last chunk is shorter.
    """
    unit = schedule.num_chunks * element_bytes
    return -(-size_bytes // unit) * unit


def _why_not_chosen(network: AnyNetwork, num_ranks: int, backend: Backend) -> str:
    if not backend.chooses:
        return ""
    why = why_unknown(network, num_ranks)
    if not why and backend.runtime.num_workers > 1:
        why = "several workers would be under way over one protocol only"
    if not why and not has_steady_times(network.topology(num_ranks)):
        why = "its times are drawn at random, or some of it fails"
    return f"{given_name(network)}: {why}" if why else ""
