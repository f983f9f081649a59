"""`Animation`: everything that a moving picture of one run shows, worked out before anything is drawn."""

from __future__ import annotations  # so that help() shows the names of array types, not what they stand for

from dataclasses import dataclass

import numpy as np

from ringsim.analysis.graph_layout import GraphLayout, lay_out_graph
from ringsim.analysis.holdings import HeldStep, num_shares, walk_holdings
from ringsim.analysis.phases import SchedulePhase, find_phases
from ringsim.analysis.sentences import actions, step_sentence
from ringsim.analysis.stall import Stall, find_stall
from ringsim.analysis.troubles import Troubles, find_troubles
from ringsim.network import AnyNetwork, Cluster, lay_out
from ringsim.schedule import Bools, Ints, Schedule, initial_counts, required, verify
from ringsim.simulation import Seconds, Timeline, simulate

MAX_RANKS = 128  # more can neither be told apart nor be counted in little memory
MAX_TRANSFERS = 12_000  # about a megabyte of a page; a ring of 64 ranks has 8,064
MAX_CELLS = 2**15  # chunks of all ranks


@dataclass(frozen=True, slots=True, eq=False)
class Animation:
    """One run of a schedule: its timeline, and what its steps mean.

    name: of the run, to tell it from another beside it. size_bytes: of the whole tensor.
    sent, result: whose shares each transfer carries, and its receiver's chunk holds then, (num_transfers, num_ranks).
    action, held, finished: of each transfer in the order of the timeline: what its receiver does (see `Action`), how
    many shares are in the receiver's chunk then, and whether that is all; (num_transfers,).
    initial: whose share a rank holds of each chunk before the first step, -1 for none; (num_ranks, num_chunks).
    wanted: which rank must hold which chunk in the end, (num_ranks, num_chunks).
    sentences: one for each step. step_end_s: when each step and all before it are applied; for one that never is, the
    time at which the run came to its stop.
    """

    name: str
    schedule: Schedule
    network: AnyNetwork
    size_bytes: int
    timeline: Timeline
    sent: Bools
    result: Bools
    action: Ints
    held: Ints
    finished: Bools
    initial: Ints
    wanted: Bools
    phases: tuple[SchedulePhase, ...]
    sentences: tuple[str, ...]
    step_end_s: Seconds
    graph: GraphLayout
    troubles: Troubles
    stall: Stall | None

    @property
    def needed(self) -> int:
        """How many shares a finished chunk holds."""
        return num_shares(self.schedule)


def make_animation(
    schedule: Schedule, network: AnyNetwork, size_bytes: int, *, name: str = "", timeline: Timeline | None = None
) -> Animation:
    """Work out what there is to show of one run of `schedule` on `network`; a run may also never finish.

    name: the algorithm's, if none is given. timeline: of a run that has been simulated, or measured, already; its rows
    may be in any order within a step.

    Raises ValueError for more ranks, chunks or transfers than a page can show, ScheduleError for a schedule that is
    not correct.

        >>> from ringsim import Network, make_animation, ring_all_reduce
        >>> animation = make_animation(ring_all_reduce(4), Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9), 2**20)
        >>> animation.phases[0].name, animation.sentences[1]
        ('reduce-scatter', 'every rank r sends chunk (r - 2) mod 4 to rank (r + 1) mod 4, which adds its share: 3 of 4')
    """
    _require_showable(schedule)
    verify(schedule)
    timeline = timeline or simulate(schedule, network, size_bytes)
    steps = list(walk_holdings(schedule))
    host_names, host_of_rank = hosts_of_network(network, schedule.num_ranks)
    order = _rows_of_timeline(steps, timeline)
    return Animation(
        name=name or schedule.algorithm,
        schedule=schedule,
        network=network,
        size_bytes=size_bytes,
        timeline=timeline,
        sent=_rows(schedule, [held.sent for held in steps])[order],
        result=_rows(schedule, [held.result for held in steps])[order],
        action=_joined([actions(held) for held in steps])[order],
        held=_joined([held.after for held in steps])[order],
        finished=_joined([held.finished for held in steps])[order].astype(np.bool_),
        initial=_initial(schedule),
        wanted=required(schedule.collective, schedule.num_ranks, schedule.num_chunks)[1],
        phases=find_phases(schedule, steps, host_of_rank),
        sentences=tuple(step_sentence(schedule, held) for held in steps),
        step_end_s=_step_ends(timeline, schedule.num_steps),
        graph=lay_out_graph(schedule, host_names, host_of_rank),
        troubles=find_troubles(schedule, network, size_bytes),
        stall=find_stall(timeline, network.topology(schedule.num_ranks)),
    )


def _require_showable(schedule: Schedule) -> None:
    quantities = (
        ("ranks", schedule.num_ranks, MAX_RANKS),
        ("transfers", schedule.num_transfers, MAX_TRANSFERS),
        ("chunks on all ranks", schedule.num_ranks * schedule.num_chunks, MAX_CELLS),
    )
    for quantity, value, limit in quantities:
        if value > limit:
            raise ValueError(
                f"{schedule} has {value:,} {quantity}: an animation shows at most {limit:,}; take fewer ranks or "
                f"segments, or ringsim simulate --trace, which holds more"
            )


def hosts_of_network(network: AnyNetwork, num_ranks: int) -> tuple[tuple[str, ...], Ints | None]:
    """Returns the names of the hosts and the host of each rank; nothing where there are no hosts that share ranks."""
    if not isinstance(network, Cluster):
        return (), None
    layout = lay_out(network.spec, num_ranks)
    grouped = 1 < len(np.unique(layout.host_of_rank)) < num_ranks
    return (layout.names, layout.host_of_rank) if grouped else ((), None)


def _joined(columns: list[Ints] | list[Bools]) -> Ints:
    return np.concatenate([np.empty(0, dtype=np.int64), *columns])


def _rows(schedule: Schedule, tables: list[Bools]) -> Bools:
    return np.concatenate([np.empty((0, schedule.num_ranks), dtype=np.bool_), *tables])


def _rows_of_timeline(steps: list[HeldStep], timeline: Timeline) -> Ints:
    """For each row of the timeline the number of that transfer in step order."""
    step = _joined([np.full(len(held.step), held.index) for held in steps])
    src, dst, chunk = (_joined([getattr(held.step, name) for held in steps]) for name in ("src", "dst", "chunk"))
    ours = np.lexsort((chunk, dst, src, step))
    theirs = np.lexsort((timeline.chunk, timeline.dst, timeline.src, timeline.step))
    order = np.empty(len(timeline), dtype=np.int64)
    order[theirs] = ours
    return order


def _initial(schedule: Schedule) -> Ints:
    counts = initial_counts(schedule.collective, schedule.num_ranks, schedule.num_chunks)
    owner: Ints = np.where(counts.any(axis=-1), counts.argmax(axis=-1), -1)
    return owner


def _step_ends(timeline: Timeline, num_steps: int) -> Seconds:
    ends = np.zeros(num_steps)
    applied = np.where(np.isfinite(timeline.applied_s), timeline.applied_s, timeline.until_s)
    np.maximum.at(ends, timeline.step, applied)
    return np.maximum.accumulate(ends)
