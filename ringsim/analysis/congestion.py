"""`Congestion`: how good an order of the ranks looks on a topology, without simulating it.

An estimate in microseconds of work instead of milliseconds, so that thousands of orders can be compared. It treats
steps with the same senders and receivers as one, adds up what each resource has to carry, and takes for granted that
nothing waits but for the busiest resource. Simulation has the last word; see `order`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringsim.network import NONE, Floats, Ints, Topology
from ringsim.schedule import Schedule

MAX_PATTERNS = 256  # more are taken together with their neighbours: a resource has a sum for each
MAX_KNOWN_RANKS = 128  # whose pairs are all looked at once
FAILED_S = 1e6  # what a hop over something that fails counts as, whenever it fails
_OTHER = 1e-2  # of the lesser of two limits: among orders with the same greater one it decides


@dataclass(frozen=True, slots=True, eq=False)
class Hops:
    """Pairs of ranks, a row each: (num_pairs,), and of shape (num_pairs, width) what they share.

    s_per_byte: of a message that shares nothing.
    busy_s_per_byte: for which the resource is busy; 0 where there is none.
    """

    latency_s: Floats
    s_per_byte: Floats
    resource: Ints
    busy_s_per_byte: Floats

    @classmethod
    def of(cls, topology: Topology, src: Ints, dst: Ints) -> "Hops":
        """Those from each `src` to its `dst`."""
        paths, resources = topology.paths(src, dst), topology.resources
        used = paths.resource != NONE
        resource = np.where(used, paths.resource, 0)
        busy, fails = np.zeros(used.shape), np.zeros(used.shape, dtype=np.bool_)
        busy[used] = paths.use_per_byte[used] / resources.capacity[resource[used]]
        fails[used] = np.isfinite(resources.fails_at_s[resource[used]])
        latency_s = paths.latency_s + FAILED_S * fails.any(axis=1)
        return cls(latency_s, np.asarray(1 / paths.alone_bytes_per_s(resources)), resource, busy)

    def at(self, row: Ints) -> "Hops":
        """Return some of them."""
        return Hops(self.latency_s[row], self.s_per_byte[row], self.resource[row], self.busy_s_per_byte[row])


class Congestion:
    """A schedule in which the ranks can be put in any order, on one topology.

    order: where it is asked for, as in `permute_ranks`; (num_ranks,).
    """

    def __init__(self, schedule: Schedule, topology: Topology, chunk_bytes: Ints) -> None:
        self._topology = topology
        self._rows = _rows_of(schedule, chunk_bytes)
        self._num_resources = len(topology.resources.names)
        self._all_pairs = None if topology.num_ranks > MAX_KNOWN_RANKS else _all_pairs(topology)

    def __len__(self) -> int:
        """How many pairs of ranks an estimate looks at."""
        return len(self._rows.src)

    @property
    def mean_bytes(self) -> float:
        """Of a message."""
        return float(self._rows.num_bytes.sum() / max(self._rows.num_messages.sum(), 1))

    def estimate_s(self, order: npt.ArrayLike) -> float:
        """About how long it takes.

        Of steps that go on side by side, as those of a ring do, the greater of two limits: how long the busiest
        resource is at work, and how long a message takes on average with all that belongs to it.
        """
        rows, (src, dst) = self._rows, self._placed(order)
        hops, processors = self.hops(src, dst), self._topology.processors
        link_s = rows.num_bytes * hops.s_per_byte
        overhead_s = hops.latency_s + processors.send_overhead_s[src] + processors.receive_overhead_s[dst]
        hop_s = rows.num_messages * overhead_s + link_s + rows.num_reduced / processors.reduce_bytes_per_s[dst]
        mean_s = np.bincount(rows.pattern, hop_s) / np.bincount(rows.pattern)
        busiest_s = np.zeros(len(mean_s))
        np.maximum.at(busiest_s, rows.pattern, link_s)
        if self._num_resources:
            busiest_s = np.maximum(busiest_s, self._busy_s(hops).max(axis=1))
        return float((np.maximum(mean_s, busiest_s) + _OTHER * np.minimum(mean_s, busiest_s)).sum())

    def busiest(self, order: npt.ArrayLike) -> tuple[str, float] | None:
        """Return the resource that has most to carry, and how long that takes; None where nothing is limited by any."""
        if not self._num_resources or not len(self):
            return None
        busy_s = self._busy_s(self.hops(*self._placed(order))).sum(axis=0)
        number = int(busy_s.argmax())
        return self._topology.resources.names[number], float(busy_s[number])

    def message_s(self, order: npt.ArrayLike) -> dict[tuple[int, int], float]:
        """How long one average message takes, if it shares nothing, for each pair (src, dst) that is used."""
        src, dst = self._placed(order)
        hops = self.hops(src, dst)
        takes_s = hops.latency_s + self._rows.num_bytes / self._rows.num_messages * hops.s_per_byte
        return dict(zip(zip(src.tolist(), dst.tolist(), strict=True), takes_s.tolist(), strict=True))

    def hops(self, src: Ints, dst: Ints) -> Hops:
        """Return the hops of these pairs, in which `src` and `dst` differ."""
        if self._all_pairs is None:
            return Hops.of(self._topology, src, dst)
        return self._all_pairs.at(src * (self._topology.num_ranks - 1) + dst - (dst > src))

    def _placed(self, order: npt.ArrayLike) -> tuple[Ints, Ints]:
        rank = np.asarray(order, dtype=np.int64)
        return rank[self._rows.src], rank[self._rows.dst]

    def _busy_s(self, hops: Hops) -> Floats:
        """(num_patterns, num_resources)."""
        pattern, num_resources = self._rows.pattern, self._num_resources
        place = pattern[:, None] * num_resources + hops.resource
        weights = (self._rows.num_bytes[:, None] * hops.busy_s_per_byte).ravel()
        num_patterns = int(pattern[-1]) + 1
        total: Floats = np.bincount(place.ravel(), weights, num_patterns * num_resources)  # type: ignore[assignment]  # weights make floats
        return total.reshape(num_patterns, num_resources)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Who sends how much to whom, in all steps of one pattern together; a row for each of its transfers.

    num_bytes, num_reduced: of all messages of the row, and of those that are reduced.
    """

    pattern: Ints
    src: Ints
    dst: Ints
    num_messages: Floats
    num_bytes: Floats
    num_reduced: Floats


def _rows_of(schedule: Schedule, chunk_bytes: Ints) -> _Rows:
    patterns: dict[tuple[bytes, bytes], list[npt.NDArray[Any]]] = {}
    known: dict[tuple[int, int], tuple[Any, list[npt.NDArray[Any]]]] = {}  # by identity: quicker for large rings
    for step in schedule.steps:
        same = id(step.src), id(step.dst)
        if same not in known:
            if len(known) == MAX_PATTERNS:
                known.clear()
            sums = patterns.setdefault(
                (step.src.tobytes(), step.dst.tobytes()), [step.src, step.dst, *np.zeros((3, len(step)))]
            )
            known[same] = (step.src, step.dst), sums  # the columns are kept, so that their ids stay theirs
        num_bytes = chunk_bytes[step.chunk]
        sums = known[same][1]
        sums[2] += 1
        sums[3] += num_bytes
        sums[4] += num_bytes * step.reduce
    return _joined([sums for sums in patterns.values() if len(sums[0])])


def _joined(patterns: Sequence[Sequence[npt.NDArray[Any]]]) -> _Rows:
    number = np.repeat(np.arange(len(patterns)), [len(columns[0]) for columns in patterns])
    number = number * min(MAX_PATTERNS, len(patterns)) // max(len(patterns), 1)
    empty = np.empty(0, dtype=np.int64)
    columns = [np.concatenate([empty, *column]) for column in zip(*patterns, strict=True)] or [empty] * 5
    return _Rows(number.astype(np.int64), *columns)


def _all_pairs(topology: Topology) -> Hops:
    """By src, then by dst."""
    src, dst = np.nonzero(~np.eye(topology.num_ranks, dtype=np.bool_))
    return Hops.of(topology, src, dst)
