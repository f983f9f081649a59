"""`Catalogue`: gives resources their numbers while a topology is built."""

import json
from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np

from ringsim.network.spec import Failure, Link, SlowLink
from ringsim.network.topology import NONE, Floats, Ints, Resources


class Catalogue:
    """The resources of a topology so far.

    A resource that limits nothing gets no number, unless the network file says that it is slow or fails.
    """

    def __init__(self, slow_links: Sequence[SlowLink], failures: Sequence[Failure]) -> None:
        self._slow_links = slow_links
        self._failures = failures
        self._special = {slow.link for slow in slow_links} | {failure_name(failure) for failure in failures}
        self._offered: dict[str, None] = {}  # only kept if there is anything special to be found among them
        self._names: list[str] = []
        self._capacity: list[Floats] = []
        self._burst: list[Floats] = []

    def add(self, names: Sequence[str], capacity: Floats, burst_bytes: Floats | None = None) -> Ints:
        """Return the numbers of these resources, NONE for those that are not kept; shaped as `capacity`."""
        keep = np.isfinite(capacity)
        if self._special:
            self._offered.update(dict.fromkeys(names))
            keep |= np.array([name in self._special for name in names], dtype=bool)
        numbers = np.full(len(names), NONE, dtype=np.int64)
        kept = np.flatnonzero(keep)
        numbers[kept] = len(self._names) + np.arange(len(kept))
        self._names += [name for name, is_kept in zip(names, keep, strict=True) if is_kept]
        self._capacity.append(capacity[kept])
        self._burst.append(np.zeros(len(kept)) if burst_bytes is None else burst_bytes[kept])
        return numbers

    def add_ports(self, names: Sequence[str], links: Sequence[Link], half_duplex_suffix: str = "") -> tuple[Ints, Ints]:
        """Return the numbers of what goes out of each link and of what comes in; one and the same where half duplex."""
        half = np.array([link.half_duplex for link in links], dtype=bool)
        capacity = np.array([link.bandwidth_bytes_per_s for link in links])
        burst = np.array([float(link.burst_bytes) for link in links])
        named = list(zip(names, half, strict=True))
        out = self.add([name + (half_duplex_suffix if is_half else ".out") for name, is_half in named], capacity, burst)
        into = out.copy()
        into[~half] = self.add([f"{name}.in" for name, is_half in named if not is_half], capacity[~half], burst[~half])
        return out, into

    def resources(self) -> tuple[Resources, Floats]:
        """Return all resources that got a number, and the latency that each adds, (num_resources,).

        Raises ValueError if what is said to be slow or to fail does not exist.
        """
        number_of = {name: number for number, name in enumerate(self._names)}
        capacity = np.concatenate([*self._capacity, np.empty(0)])
        fails_at, latency = np.full(len(capacity), np.inf), np.zeros(len(capacity))
        for place, slow in enumerate(self._slow_links):
            number = number_of[self._found(slow.link, f"slow_link[{place}].link")]
            capacity[number] = _slowed(capacity[number], slow, f"slow_link[{place}]")
            latency[number] += slow.latency_s
        for place, failure in enumerate(self._failures):
            number = number_of[self._found(failure_name(failure), f"failure[{place}].link")]
            fails_at[number] = min(fails_at[number], failure.at_s)
        burst = np.concatenate([*self._burst, np.empty(0)])
        return Resources(tuple(self._names), capacity, fails_at, burst), latency

    def _found(self, name: str, place: str) -> str:
        if name in self._offered:
            return name
        nearest = ", ".join(get_close_matches(name, self._offered, n=3))
        near = f"; near: {nearest}" if nearest else ""
        raise ValueError(f"{place} = {json.dumps(name)}: there is none on this many ranks{near}")


def failure_name(failure: Failure) -> str:
    """Return the name of the resource that fails."""
    return f"rank{failure.rank}" if failure.link is None else failure.link


def _slowed(capacity: float, slow: SlowLink, place: str) -> float:
    if slow.bandwidth_bytes_per_s is not None:
        if slow.link.endswith(".cores"):
            raise ValueError(f'{place}.bandwidth: "{slow.link}" are cores: give a slowdown')
        capacity = slow.bandwidth_bytes_per_s
    if slow.slowdown != 1 and np.isinf(capacity):
        raise ValueError(f'{place}.slowdown = {slow.slowdown:g}: "{slow.link}" has no limit: give a bandwidth')
    return capacity / slow.slowdown
