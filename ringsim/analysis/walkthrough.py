"""`Walkthrough`: a schedule step by step in words, and what it costs beside what no algorithm can undercut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ringsim.analysis.candidates import cost_of
from ringsim.analysis.holdings import find_phases, walk_holdings
from ringsim.analysis.run_view import hosts_of_network
from ringsim.analysis.sentences import ToldStep, common_offset, goal_sentence, near, plus, tell_step
from ringsim.network import AnyNetwork
from ringsim.schedule import Collective, Schedule, verify
from ringsim.units import format_size, plural

MAX_COUNTS = 2**24  # chunks of all ranks, times ranks: tens of MiB, and a few seconds
FIRST_STEPS = 3  # told of a larger schedule


class ToldPhase(NamedTuple):
    """The steps `first` to `last`, and their rule; empty if no formula holds for all of them.

    steps: those that are told, all of them unless there are too many shares to follow.
    """

    name: str
    first: int
    last: int
    rule: str
    steps: tuple[ToldStep, ...]


@dataclass(frozen=True, slots=True)
class Walkthrough:
    """A schedule in words. costs: sentences. skipped: why not all steps are told; empty if they are."""

    goal: str
    phases: tuple[ToldPhase, ...]
    costs: tuple[str, ...]
    skipped: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        phases = [phase._asdict() | {"steps": [step._asdict() for step in phase.steps]} for phase in self.phases]
        return {"goal": self.goal, "phases": phases, "costs": list(self.costs), "skipped": self.skipped or None}


def walk_through(schedule: Schedule, network: AnyNetwork, size_bytes: int) -> Walkthrough:
    """Return the schedule in words, of a very large one the first steps. Raises ScheduleError if it is not correct."""
    if schedule.num_ranks**2 * schedule.num_chunks > MAX_COUNTS:
        phases, skipped = _first_steps(schedule)
        return Walkthrough(goal_sentence(schedule), phases, _costs(schedule, size_bytes, phases), skipped)
    verify(schedule)
    steps = list(walk_holdings(schedule))
    host_of_rank = hosts_of_network(network, schedule.num_ranks)[1]
    phases = tuple(
        ToldPhase(
            *phase,
            _rule(schedule, phase.first, phase.last),
            tuple(tell_step(schedule, held) for held in steps[phase.first : phase.last + 1]),
        )
        for phase in find_phases(schedule, steps, host_of_rank)
    )
    return Walkthrough(goal_sentence(schedule), phases, _costs(schedule, size_bytes, phases))


def _first_steps(schedule: Schedule) -> tuple[tuple[ToldPhase, ...], str]:
    """Return the first steps alone, and why.

    Where all steps follow the rule of a ring, its phases are known all the same.
    """
    shares = (
        f"the contributions of {schedule.num_ranks:,} ranks in {schedule.num_chunks:,} chunks are too many to examine"
    )
    if schedule.num_ranks * max(schedule.num_ranks, schedule.num_chunks) > MAX_COUNTS // 4:
        return (), f"no step is listed, because {shares}: use fewer ranks"
    told = tuple(tell_step(schedule, held) for held in walk_holdings(schedule, FIRST_STEPS))
    skipped = f"only the first {len(told)} steps are listed, because {shares}: use fewer ranks to see all"
    halves = _halves_of_ring(schedule)
    if not halves:
        return (ToldPhase("the first steps", 0, len(told) - 1, "", told),), skipped
    return tuple(half._replace(steps=() if half.first else told) for half in halves), skipped


def _halves_of_ring(schedule: Schedule) -> tuple[ToldPhase, ...]:
    """Return the phases of a ring, without steps; nothing for any other schedule."""
    reduces = [bool(step.reduce.all()) for step in schedule.steps]
    num_adding = sum(reduces)
    spans = [("reduce-scatter", 0, num_adding - 1), ("all-gather", num_adding, len(reduces) - 1)]
    halves = tuple(
        ToldPhase(name, first, last, _rule(schedule, first, last), ()) for name, first, last in spans if first <= last
    )
    in_order = all(reduces[:num_adding])
    return halves if in_order and all(half.rule for half in halves) else ()


def _ring_offset(schedule: Schedule, index: int) -> tuple[int, int] | None:
    """By how much receiver and chunk are ahead of each sender, modulo the ranks; None if it is not the same for all."""
    step, num_ranks = schedule.steps[index], schedule.num_ranks
    if schedule.num_chunks != num_ranks or not np.array_equal(np.sort(step.src), np.arange(num_ranks)):
        return None
    hop, offset = (common_offset(column, step.src, num_ranks) for column in (step.dst, step.chunk))
    return None if hop is None or offset is None else (hop, offset)


def _rule(schedule: Schedule, first_step: int, last_step: int) -> str:
    """Return the one formula by which every rank goes round a ring in all of these steps, and why it is that."""
    first, num_ranks = _ring_offset(schedule, first_step), schedule.num_ranks
    if first is None or first[0] not in (1, num_ranks - 1) or last_step == first_step:
        return ""
    ahead = 1 if first[0] == 1 else -1
    # One step later a rank passes on what came from the rank behind it: the chunk one further back.
    for later in range(last_step - first_step + 1):
        if _ring_offset(schedule, first_step + later) != (first[0], (first[1] - ahead * later) % num_ranks):
            return ""
    constant = near(first[1] + ahead * (first_step + 1), num_ranks)  # people count steps from 1
    signs = ("-", "+") if ahead > 0 else ("+", "-")
    step = schedule.steps[first_step]
    did = "received and added its contribution to" if step.reduce.all() else "received"
    always = first_step > 0 and (step.data_dependency == first_step - 1).all()
    when = "" if always else "after the first step, "
    return (
        f"in step s = {first_step + 1} to {last_step + 1} rank r sends chunk "
        f"(r {signs[0]} s{plus(constant)}) mod {num_ranks} "
        f"to rank (r {signs[1]} 1) mod {num_ranks}: {when}the chunk that it {did} in the step before"
    )


def _costs(schedule: Schedule, size_bytes: int, phases: Sequence[ToldPhase]) -> tuple[str, ...]:
    cost, num_ranks = cost_of(schedule), schedule.num_ranks
    if num_ranks == 1:
        return ("a single rank has nothing to send",)
    parts = ", ".join(f"{phase.last - phase.first + 1} of {phase.name}" for phase in phases) if len(phases) > 1 else ""
    steps = f"{plural(schedule.num_steps, 'step')}{f', {parts}' if parts else ''}"
    sentences = [
        f"{steps}; an algorithm in which a rank sends to one other in a step needs at least {cost.steps_bound}, since "
        f"the number of ranks that hold a contribution at most doubles in each step"
    ]
    if phases and all(phase.rule for phase in phases):
        back = f", and {num_ranks - 1} more until it has reached all other ranks" if len(phases) > 1 else ""
        kind = "a chunk is complete" if schedule.collective.reduces else "a chunk has reached all ranks"
        sentences.append(
            f"in a ring a chunk moves by one rank per step: n - 1 = {num_ranks - 1} steps until {kind}{back}"
        )
    size = format_size(cost.sent * size_bytes)
    beside = (
        "which equals this bound"
        if cost.sent <= cost.sent_bound * (1 + 1e-9)
        else f"which is {cost.sent / cost.sent_bound:.3g} times the bound"
    )
    sentences.append(
        f"the busiest sender sends {size}, {cost.sent:.4g} times the data; every algorithm needs at least "
        f"{_bound(schedule)} = {cost.sent_bound:.4g} times (Patarasuk and Yuan 2009), {beside}"
    )
    return tuple(sentences)


def _bound(schedule: Schedule) -> str:
    bounds = {
        Collective.ALL_REDUCE: "2(n - 1)/n",
        Collective.BROADCAST: "1",
        Collective.REDUCE: "1",
        Collective.GATHER: "1/n",
    }
    return bounds.get(schedule.collective, "(n - 1)/n")
