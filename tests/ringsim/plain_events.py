"""A schedule on a topology that shares things, in plain Python: one clock, and every transfer looked at every time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ringsim.network.topology import NONE, Topology
from ringsim.schedule import Ints, Schedule, Transfer
from tests.ringsim.plain_sharing import Work, filled_one_at_a_time

Phase = Literal["", "overhead", "bytes", "latency", "arrived", "applying", "applied"]


@dataclass
class Message:
    """A transfer and how far it is: `left` of the work of its phase, which is seconds where it needs no resource."""

    step: int
    transfer: Transfer
    size: float
    latency_factor: float
    compute_factor: float
    phase: Phase = ""
    work: Work = field(default_factory=lambda: Work({}, 1.0))
    left: float = 0.0
    times: dict[str, float] = field(default_factory=dict)

    def has(self, what: str) -> bool:
        return what in self.times


COLUMNS = ("start_s", "sent_s", "arrived_s", "apply_s", "applied_s")


class PlainRun:
    """The rule of execution read aloud, with a look at all messages whenever anything has happened."""

    def __init__(self, schedule: Schedule, topology: Topology, chunk_bytes: Ints, in_order: bool) -> None:
        self.topology, self.in_order = topology, in_order
        self.messages = list(_messages(schedule, topology, chunk_bytes))
        self.now = 0.0
        # What limits a message whatever else happens limits the channels between two ranks together.
        pairs = sorted({message.transfer[:2] for message in self.messages})
        numbers = range(len(topology.resources.names), len(topology.resources.names) + len(pairs))
        self.link_of = dict(zip(pairs, numbers, strict=True))
        paths = topology.paths(*(np.array([pair[end] for pair in pairs], dtype=np.int64) for end in (0, 1)))
        self.capacity = [*topology.resources.capacity.tolist(), *paths.bytes_per_s.tolist()]
        self.fails_at_s = [*topology.resources.fails_at_s.tolist(), *[math.inf] * len(pairs)]
        self.burst = [*topology.resources.burst_bytes.tolist(), *[0.0] * len(pairs)]
        self.saved = self.burst.copy()

    def times(self) -> list[list[float]]:
        """A row for each transfer, COLUMNS; infinite for what never happens."""
        while True:
            while any(self._go_on(number) for number in range(len(self.messages))):
                pass
            if not self._wait():
                return [[message.times.get(name, math.inf) for name in COLUMNS] for message in self.messages]

    def _may_start(self, number: int) -> bool:
        """Rules 1 and 2."""
        message, before = self.messages[number], self.messages[:number]
        src, dst, chunk, _, channel = message.transfer
        on_channel = [m for m in before if (m.transfer.src, m.transfer.channel) == (src, channel)]
        may_block = self.in_order and any(m.transfer.dst != dst for m in on_channel[-1:])
        to_src = [m for m in before if m.transfer.dst == src and m.step < message.step]
        ready = all(m.has("applied_s") for m in to_src if may_block or m.transfer.chunk == chunk)
        return ready and all(m.has("sent_s") for m in on_channel)

    def _may_be_applied(self, number: int) -> bool:
        """Rules 3 and 4."""
        message, before = self.messages[number], self.messages[:number]
        src, dst, chunk, _, channel = message.transfer
        sends = [m for m in self.messages if m.transfer.src == dst and m.step <= message.step]
        free = all(m.has("sent_s") for m in sends if m.transfer.chunk == chunk)
        received = [m for m in before if m.transfer.dst == dst]
        if not self.in_order:
            received = [
                m
                for m in received
                if m.transfer.chunk == chunk or (m.transfer.src, m.transfer.channel) == (src, channel)
            ]
        return free and all(m.has("applied_s") for m in received)

    def _go_on(self, number: int) -> bool:
        """Whether this message could take up its next phase; it does."""
        message = self.messages[number]
        src, dst, _, reduce, _ = message.transfer
        ranks = self.topology.processors
        if message.phase == "" and self._may_start(number):
            message.times["start_s"] = self.now
            self._compute(message, "overhead", src, float(ranks.send_overhead_s[src]))
        elif message.phase == "arrived" and self._may_be_applied(number):
            message.times["apply_s"] = self.now
            reduce_s = message.size / ranks.reduce_bytes_per_s[dst] if reduce else 0.0
            self._compute(message, "applying", dst, float(ranks.receive_overhead_s[dst] + reduce_s))
        else:
            return False
        return True

    def _compute(self, message: Message, phase: Phase, rank: int, seconds: float) -> None:
        """On a core of its own, or on shared ones, where a second weighs as many bytes as could be copied in it."""
        seconds *= message.compute_factor
        cores, copies = (
            int(self.topology.processors.cores[rank]),
            float(self.topology.processors.copy_bytes_per_s[rank]),
        )
        weight = copies if copies < math.inf else 1.0
        work = Work({cores: 1 / weight}, weight) if cores != NONE else Work({}, 1.0)
        self._take(message, phase, work, seconds * work.most)

    def _take(self, message: Message, phase: Phase, work: Work, amount: float) -> None:
        message.phase, message.work, message.left = phase, work, amount
        if amount == 0 and phase != "bytes":  # an empty message must find its way all the same
            self._finish(message)

    def _finish(self, message: Message) -> None:
        """Begin the next phase."""
        path = self.topology.paths(np.array([message.transfer.src]), np.array([message.transfer.dst]))
        if message.phase == "overhead":
            uses = {int(r): float(u) for r, u in zip(path.resource[0], path.use_per_byte[0], strict=True) if r != NONE}
            uses[self.link_of[message.transfer[:2]]] = 1.0
            self._take(message, "bytes", Work(uses, min(float(path.bytes_per_s[0]), 1e30)), message.size)
        elif message.phase == "bytes":
            message.times["sent_s"] = self.now
            self._take(message, "latency", Work({}, 1.0), float(path.latency_s[0]) * message.latency_factor)
        elif message.phase == "latency":
            message.times["arrived_s"], message.phase = self.now, "arrived"
        elif message.phase == "applying":
            message.times["applied_s"], message.phase = self.now, "applied"

    def _wait(self) -> bool:
        """Let time pass until some work is done or something fails; False if that is never."""
        busy = [m for m in self.messages if m.phase in ("overhead", "bytes", "latency", "applying")]
        fails = self.fails_at_s
        in_time = [0.0 if at <= self.now else limit for at, limit in zip(fails, self.capacity, strict=True)]
        capacity = [limit * (1000 if saved else 1) for limit, saved in zip(in_time, self.saved, strict=True)]
        rates = filled_one_at_a_time([m.work for m in busy], capacity)
        ends = [self.now + m.left / rate if rate else math.inf for m, rate in zip(busy, rates, strict=True)]
        grows = [self._grows(number, limit, busy, rates) for number, limit in enumerate(in_time)]
        empty = [
            self.now - saved / more if saved and more < 0 else math.inf
            for saved, more in zip(self.saved, grows, strict=True)
        ]
        then = min([*ends, *empty, *(fails_at for fails_at in fails if fails_at > self.now)], default=math.inf)
        if then == math.inf:
            return False
        for number, more in enumerate(grows):
            saved = self.saved[number] + more * (then - self.now)
            self.saved[number] = 0.0 if empty[number] <= then * (1 + 1e-13) else min(saved, self.burst[number])
        for m, rate, end in zip(busy, rates, ends, strict=True):
            m.left = max(0.0, m.left - rate * (then - self.now))
            if end <= then * (1 + 1e-13):
                m.left = 0.0
        self.now = then
        for m, end in zip(busy, ends, strict=True):
            if end <= then * (1 + 1e-13):
                self._finish(m)
        return True

    def _grows(self, number: int, limit: float, busy: list[Message], rates: list[float]) -> float:
        """How much more the bucket of a resource has in it a second from now, if nothing changes."""
        if not self.burst[number]:
            return 0.0
        more = limit - sum(m.work.uses.get(number, 0.0) * rate for m, rate in zip(busy, rates, strict=True))
        return more if abs(more) > 1e-9 * limit else 0.0


def _messages(schedule: Schedule, topology: Topology, chunk_bytes: Ints) -> Iterator[Message]:
    for index, step in enumerate(schedule.steps):
        ones = np.ones(len(step))
        of_latency, of_compute = topology.jitter.factors(index, len(step)) if topology.jitter else (ones, ones)
        for row, transfer in enumerate(step):
            size = float(chunk_bytes[transfer.chunk])
            yield Message(index, transfer, size, float(of_latency[row]), float(of_compute[row]))
