"""`SweepPlan`: what a sweep is to simulate; kept in the file of a sweep that is not finished."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Self

from ringsim.analysis.candidates import LIBRARY, PLAIN, Timing, has
from ringsim.files import (
    MAX_RANKS,
    as_tuple,
    finite_or_none,
    is_number,
    quoted,
    require_name,
    require_object,
    require_whole,
)
from ringsim.network import AnyNetwork
from ringsim.registry import file_hash
from ringsim.schedule import Collective

MAX_TRANSFERS = 10**7  # of a schedule; one that is listed takes about 1 GB then


class Place(NamedTuple):
    """Which cell of a sweep."""

    algorithm: str
    num_ranks: int
    network: str
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class SweepPlan:
    """All combinations of algorithms, numbers of ranks, networks and sizes.

    file_hashes: by algorithm, of a user's own, `file_hash` of its file.
    max_transfers: a schedule that has more is skipped. timing: how the others are timed.
    """

    collective: Collective
    algorithms: tuple[str, ...]
    ranks: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    networks: Mapping[str, AnyNetwork]
    max_transfers: float
    file_hashes: Mapping[str, str]
    timing: Timing = PLAIN

    @classmethod
    def of(
        cls,
        collective: Collective,
        algorithms: Sequence[str],
        ranks: Collection[int],
        sizes_bytes: Collection[int],
        networks: Mapping[str, AnyNetwork],
        max_transfers: float = MAX_TRANSFERS,
        timing: Timing = PLAIN,
    ) -> Self:
        """Each once, numbers from small to large.

        Raises ValueError if there is nothing to do, a size is below 1 or a number of ranks below 2.
        """
        if not (algorithms and ranks and sizes_bytes and networks):
            raise ValueError("a sweep needs at least one algorithm, number of ranks, size and network")
        if min(sizes_bytes) < 1:
            raise ValueError(f"size {min(sizes_bytes)}: a sweep needs sizes of at least 1 byte")
        if min(ranks) < 2:
            raise ValueError(f"num_ranks {min(ranks)}: a sweep needs at least 2 ranks, since one alone takes no time")
        names = tuple(dict.fromkeys(algorithms))
        hashes = {name: sha256 for name in names if (sha256 := file_hash(collective, name))}
        numbers = tuple(sorted(set(ranks))), tuple(sorted(set(sizes_bytes)))
        return cls(collective, names, *numbers, networks, max_transfers, hashes, timing)

    def places(self) -> list[Place]:
        """Those of all cells, in the order in which the file has them."""
        return [
            Place(algorithm, num_ranks, network, size_bytes)
            for algorithm, num_ranks, network, size_bytes in product(
                self.algorithms, self.ranks, self.networks, self.sizes_bytes
            )
        ]

    def as_dict(self) -> dict[str, Any]:
        """What is to be simulated, for JSON; networks and collective are beside it in a sweep's file."""
        return {
            "algorithms": list(self.algorithms),
            "ranks": list(self.ranks),
            "sizes_bytes": list(self.sizes_bytes),
            "max_transfers": finite_or_none(self.max_transfers),
            "file_hashes": dict(self.file_hashes),
            "timing": self.timing.name,
        }

    @classmethod
    def from_dict(
        cls,
        data: Any,
        collective: Collective,
        networks: Mapping[str, AnyNetwork],
        timing: Timing = PLAIN,
    ) -> Self:
        """What `as_dict` wrote. Raises ValueError, in one line, for anything else, and for what has changed since."""
        require_plan(data)
        if data.get("timing", PLAIN.name) != timing.name and any(has(net, LIBRARY) for net in networks.values()):
            raise ValueError("its times leave out NCCL's protocols, as those of older versions do: sweep anew")
        limit = math.inf if data["max_transfers"] is None else data["max_transfers"]
        plan = cls.of(collective, data["algorithms"], data["ranks"], data["sizes_bytes"], networks, limit, timing)
        for algorithm in plan.algorithms:
            if plan.file_hashes.get(algorithm, "") != data["file_hashes"].get(algorithm, ""):
                raise ValueError(f"algorithm {algorithm!r}: its file has changed since the sweep began: sweep anew")
        return plan


def require_plan(data: Any) -> None:
    """Raises ValueError, in one line, unless `data` is what `SweepPlan.as_dict` makes."""
    require_object("planned", data)
    for algorithm in as_tuple("algorithms", data.get("algorithms")):
        require_name("algorithm", algorithm)
    for num_ranks in as_tuple("ranks", data.get("ranks")):
        require_whole("num_ranks", num_ranks, 2, MAX_RANKS)
    for size_bytes in as_tuple("sizes_bytes", data.get("sizes_bytes")):
        require_whole("size_bytes", size_bytes, 1)
    if (limit := data.get("max_transfers")) is not None and not (is_number(limit) and limit >= 1):
        raise ValueError(f"max_transfers {quoted(limit)}: must be a number of at least 1, or null for no limit")
    require_object("file_hashes", data.get("file_hashes"))
