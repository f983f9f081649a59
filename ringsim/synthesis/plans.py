"""`Plan`: one way to make a schedule, and `build_plan`, which makes it."""

from dataclasses import dataclass, replace

import numpy as np

from ringsim.analysis import Links
from ringsim.network import Ints
from ringsim.schedule import OWNED, Bools, Collective, Schedule
from ringsim.synthesis.assembly import Part, assemble
from ringsim.synthesis.matching import Copies, Matching
from ringsim.synthesis.overlay import Overlay

NUM_ROUNDS = 2  # in which either half makes room for what the other one uses


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """The collective to find a schedule for, its size, and the network as links. best_s: no time is below that."""

    collective: Collective
    size_bytes: int
    links: Links
    islands: list[Ints]
    best_s: float

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self.links.num_ranks

    def num_chunks(self, chunks_per_rank: int) -> int:
        """Return the number of all chunks: of a broadcast or reduce, those of its root."""
        is_rooted = self.collective in (Collective.BROADCAST, Collective.REDUCE)
        return chunks_per_rank if is_rooted else chunks_per_rank * self.num_ranks

    def num_transfers(self, plan: "Plan") -> int:
        """Return the number of transfers of a plan's schedule."""
        halves = 2 if self.collective is Collective.ALL_REDUCE else 1
        return halves * (self.num_ranks - 1) * self.num_chunks(plan.chunks_per_rank) * plan.num_waves


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """An overlay and in how many chunks what goes over it.

    num_waves: of an all_reduce, into so many each chunk is cut, so that its halves overlap. is_balanced: whether each
    half makes room for the other one.
    """

    overlay: Overlay
    chunks_per_rank: int
    num_waves: int = 1
    is_balanced: bool = False
    seed: int = 0

    def with_seed(self, seed: int) -> "Plan":
        """Return the same with other random numbers."""
        return replace(self, seed=seed)


def build_plan(problem: Problem, plan: Plan, name: str) -> Schedule:
    """Return the schedule. Raises NotConnectedError if the links of the overlay do not connect all ranks."""
    return _Builder(problem, plan).schedule(name)


class _Builder:
    def __init__(self, problem: Problem, plan: Plan) -> None:
        self._problem, self._plan = problem, plan
        self._num_chunks = problem.num_chunks(plan.chunks_per_rank)
        self._chunk_bytes = problem.size_bytes / self._num_chunks
        self._rng = np.random.default_rng([plan.seed, plan.chunks_per_rank])

    def schedule(self, name: str) -> Schedule:
        problem, plan = self._problem, self._plan
        gather, reduce = plan.overlay, plan.overlay.reversed()
        if problem.collective is Collective.ALL_REDUCE:
            parts = [self._part(reduce, is_reduced=True), self._part(gather)]
            for _ in range(NUM_ROUNDS if plan.is_balanced else 0):
                parts[1] = self._part(gather.beside(parts[0].busy_s / problem.best_s))
                parts[0] = self._part(reduce.beside(parts[1].busy_s / problem.best_s), is_reduced=True)
            if plan.num_waves > 1:
                parts[1] = parts[1].on_channels_after(parts[0])
        elif problem.collective.reduces:
            parts = [self._part(reduce, is_reduced=True)]
        else:
            parts = [self._part(gather)]
        return assemble(
            problem.collective, problem.num_ranks, self._num_chunks, parts, num_waves=plan.num_waves, name=name
        )

    def _part(self, overlay: Overlay, *, is_reduced: bool = False) -> Part:
        copies: Copies = Matching(overlay, self._problem.islands, self._chunk_bytes).spread_chunks(
            self._held(), self._rng
        )
        return Part.of(copies, overlay.links, self._chunk_bytes, reduce=is_reduced)

    def _held(self) -> Bools:
        """Return which rank has which chunk at the start of what is copied, (num_ranks, num_chunks)."""
        ranks = np.arange(self._problem.num_ranks)
        if self._problem.collective in (*OWNED, Collective.ALL_REDUCE):
            return np.asarray(ranks[:, None] == np.repeat(ranks, self._plan.chunks_per_rank))
        return np.asarray(np.broadcast_to(ranks[:, None] == 0, (len(ranks), self._num_chunks)))
