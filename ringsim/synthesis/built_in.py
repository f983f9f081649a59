"""`BuiltInAlgorithms`: simulated times of the algorithms with which a search is compared."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ringsim.analysis import candidates, find_placement
from ringsim.limits import CHOSEN_TRANSFERS, FORM_TRANSFERS, require_few_transfers
from ringsim.network import Network
from ringsim.registry import base_name, build
from ringsim.schedule import Collective, Schedule, permute_ranks
from ringsim.simulation import Runtime, lists_more_than

SEGMENTS = (4, 16)  # in which built-in algorithms are tried
LEAST_GAIN = 0.98  # times the time of the plain form, below which another form of an algorithm is listed
NUM_PLACED = 3  # built-in algorithms for which placements are searched
MAX_PLACED_RANKS = 16
NUM_PLACEMENTS = 24  # simulated for a built-in algorithm: all orders of four ranks
INTERRUPTED = "interrupted"  # why an algorithm was skipped


@dataclass(frozen=True, slots=True)
class NamedTime:
    """A built-in algorithm and its seconds, or None and the reason for skipping it.

    algorithm: with its number of segments if there are several. order: the rank placement, if changed.
    """

    algorithm: str
    time_s: float | None = None
    skipped: str = ""
    order: tuple[int, ...] | None = None

    @property
    def options(self) -> str:
        return self.algorithm if self.order is None else f"{self.algorithm} --order {','.join(map(str, self.order))}"

    @property
    def is_interrupted(self) -> bool:
        return self.skipped == INTERRUPTED

    @property
    def sorting_s(self) -> float:
        return np.inf if self.time_s is None else self.time_s

    def schedule(self, collective: Collective, num_ranks: int, size_bytes: int) -> Schedule:
        """Build it. Raises ValueError if that is impossible or takes too many transfers."""
        make = partial(build, collective, self.algorithm, size_bytes=size_bytes)
        require_few_transfers(make, num_ranks)
        schedule = replace(make(num_ranks), algorithm=self.options)
        return schedule if self.order is None else permute_ranks(schedule, self.order)


@dataclass(frozen=True, slots=True)
class BuiltInAlgorithms:
    """The built-in algorithms of a collective on a network, each simulated for at most `seconds`.

    say: called with the phase. time_s: returns a schedule's simulated seconds, or raises TimeoutError at the given
    `time.monotonic`.
    """

    collective: Collective
    network: Network
    num_ranks: int
    size_bytes: int
    seconds: float
    runtime: Runtime
    time_s: Callable[[Schedule, float], float]
    say: Callable[[str], object]

    def unchanged(self, *, is_interrupted: bool = False) -> list[NamedTime]:
        """Return all algorithms by time; a KeyboardInterrupt skips the rest.

        is_interrupted: whether there was an earlier interrupt; then all together have `seconds`.
        """
        ends_at, is_ended = time.monotonic() + self.seconds if is_interrupted else np.inf, False
        named: list[NamedTime] = []
        for name in candidates(self.collective, [self.network]):
            try:
                self.say(f"simulating {name}")
                seconds = min(self.seconds, ends_at - time.monotonic())
                is_ended |= seconds <= 0
                named.append(NamedTime(name, skipped=INTERRUPTED) if is_ended else self._timed(name, seconds))
            except KeyboardInterrupt:
                is_ended = True
                named.append(NamedTime(name, skipped=INTERRUPTED))
        return sorted(named, key=lambda one: one.sorting_s)

    def with_forms(self, named: list[NamedTime]) -> list[NamedTime]:
        """Return the algorithms and their faster forms by time: in segments, and for the fastest other placements.

        All forms together have `seconds`, or until a KeyboardInterrupt.
        """
        ends_at, known = time.monotonic() + self.seconds, list(named)
        try:
            simulated = [one for one in known if one.time_s is not None]
            for one in sorted(simulated, key=lambda one: self._schedule(one).num_transfers):  # so that most are reached
                known += self._gaining(one, self._in_segments, ends_at)
            for one in fastest_of_each(known)[:NUM_PLACED]:
                known += self._gaining(one, self._placed, ends_at)
        except KeyboardInterrupt:
            pass
        return sorted(known, key=lambda one: one.sorting_s)

    def _gaining(
        self, one: NamedTime, forms: Callable[[NamedTime, float], Iterator[NamedTime]], ends_at: float
    ) -> list[NamedTime]:
        if one.time_s is None or time.monotonic() >= ends_at:
            return []
        self.say(f"simulating forms of {one.algorithm}")
        gaining = [form for form in forms(one, ends_at) if form.sorting_s < LEAST_GAIN * one.time_s]
        return sorted(gaining, key=lambda form: form.sorting_s)[:1]

    def _in_segments(self, plain: NamedTime, ends_at: float) -> Iterator[NamedTime]:
        num_transfers = self._schedule(plain).num_transfers
        for segments in SEGMENTS:
            if segments * num_transfers <= FORM_TRANSFERS:
                yield self._timed(f"{plain.algorithm}/{segments}", ends_at - time.monotonic())

    def _placed(self, one: NamedTime, ends_at: float) -> Iterator[NamedTime]:
        schedule = self._schedule(one)
        if self.num_ranks <= MAX_PLACED_RANKS and schedule.num_transfers <= FORM_TRANSFERS:
            placed = find_placement(
                schedule, self.network, self.size_bytes, budget=NUM_PLACEMENTS, seconds=ends_at - time.monotonic(),
                runtime=self.runtime,
            )  # fmt: skip
            yield NamedTime(one.algorithm, placed.time_s, order=placed.order)

    def _timed(self, name: str, seconds: float) -> NamedTime:
        try:
            schedule = self._schedule(NamedTime(name))
            if lists_more_than(CHOSEN_TRANSFERS, schedule, self.network, self.size_bytes, runtime=self.runtime):
                return NamedTime(name, skipped=f"more than {CHOSEN_TRANSFERS:,} transfers")
            return NamedTime(name, self.time_s(schedule, time.monotonic() + seconds))
        except ValueError as error:
            return NamedTime(name, skipped=str(error))
        except TimeoutError:
            if seconds < self.seconds:
                return NamedTime(name, skipped=INTERRUPTED)
            return NamedTime(name, skipped=f"its simulation takes longer than {seconds:g} s (--seconds)")

    def _schedule(self, one: NamedTime) -> Schedule:
        return one.schedule(self.collective, self.num_ranks, self.size_bytes)


def fastest_of_each(known: list[NamedTime]) -> list[NamedTime]:
    """Return the fastest form of each algorithm, by time."""
    fastest: dict[str, NamedTime] = {}
    for one in sorted(known, key=lambda one: one.sorting_s):
        fastest.setdefault(base_name(one.algorithm), one)
    return list(fastest.values())
