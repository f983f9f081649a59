"""`SimulatedCollective`: the time of one collective, and its explanation, as a record for JSON."""

import math
from typing import Any

import msgspec

from ringsim.analysis.costs import algbw_bytes_per_s, busbw_bytes_per_s
from ringsim.analysis.explanation import Explanation, RankUsage, among_most
from ringsim.estimates import Estimate, ends_of
from ringsim.files import OpenRecord, encode, values
from ringsim.libraries import Plan
from ringsim.network import Network
from ringsim.schedule import Collective, Schedule
from ringsim.simulation import RULE, OnProgress, Runtime, closed_form_of, ignore_progress, predict_time

RANK_TIMES = "busy_s", "sending_s", "applying_s", "waiting_s", "last_active_s"


class SimulatedCollective(OpenRecord, frozen=True, kw_only=True):
    """The JSON output of `ringsim simulate`, `explain` and `synthesize`, which may have more keys.

    described: of `Network.as_dict`. timed, notes: the origin of the time. time_s: None if the collective never
    finishes. stalled, explained, library: None if there is nothing to say.
    """

    collective: Collective
    algorithm: values.Name
    num_ranks: values.NumRanks
    num_chunks: values.Whole = 1
    num_steps: values.Whole
    num_transfers: values.Whole
    size_bytes: values.Whole
    described: values.Described = msgspec.field(name="network")
    in_order: bool = False
    timed: str = ""
    notes: tuple[str, ...] = ()
    time_s: values.Seconds | None
    closed_form_s: values.Seconds | None = None
    algbw_bytes_per_s: values.Number | None = None
    busbw_bytes_per_s: values.Number | None
    stalled: dict[str, Any] | None = None
    explained: dict[str, values.Described] | None = None
    library: dict[str, Any] | None = None
    predicted_low_s: values.Seconds | None = None
    predicted_high_s: values.Seconds | None = None

    @property
    def network(self) -> str:
        return Network.name_in(self.described)

    @property
    def bottleneck(self) -> str:
        """The most used resource; "" if unknown."""
        return str(((self.explained or {}).get("bottleneck") or {}).get("name", ""))

    @property
    def expected(self) -> Estimate | None:
        """The time with its interval; None if not known."""
        if self.time_s is None or self.predicted_low_s is None or self.predicted_high_s is None:
            return None
        return Estimate(self.time_s, self.predicted_low_s, self.predicted_high_s)

    def as_dict(self) -> dict[str, Any]:
        return dict(encode(self))


def summarise(
    schedule: Schedule,
    network: Network,
    size_bytes: int,
    explanation: Explanation | None = None,
    on_progress: OnProgress = ignore_progress,
    library: Plan | None = None,
    *,
    runtime: Runtime = RULE,
) -> SimulatedCollective:
    """Return the simulated time of one collective and reference figures.

    explanation: of the same collective; avoids a second simulation. library: its start is part of the time.
    """
    collective, num_ranks = schedule.collective, schedule.num_ranks
    known_s = library.formula_s(runtime) if library else None
    time_s = explanation.timeline.time_s if explanation else None
    if library:
        time_s = library.time_s(runtime=runtime, on_progress=on_progress, messages_s=time_s)
    elif time_s is None:
        time_s = predict_time(schedule, network, size_bytes, runtime=runtime, on_progress=on_progress)
    relative = library.relative_interval if library and math.isfinite(time_s) else None
    start_s = library.start_s if library and (known_s is None or explanation) else None  # takes a simulation
    return SimulatedCollective(
        collective=collective,
        algorithm=schedule.algorithm,
        num_ranks=num_ranks,
        num_chunks=schedule.num_chunks,
        num_steps=schedule.num_steps,
        num_transfers=schedule.num_transfers,
        size_bytes=size_bytes,
        described=network.as_dict(),
        in_order=runtime.in_order,
        timed=library.how_timed(runtime, is_simulated=explanation is not None) if library else "simulated",
        notes=tuple(library.notes) if library else (),
        time_s=time_s if math.isfinite(time_s) else None,
        closed_form_s=None if known_s else closed_form_of(schedule, network, size_bytes, runtime=runtime),
        algbw_bytes_per_s=algbw_bytes_per_s(size_bytes, time_s),
        busbw_bytes_per_s=busbw_bytes_per_s(collective, num_ranks, size_bytes, time_s),
        stalled=explanation.blocked.as_dict() if explanation and explanation.blocked else None,
        explained=explanation_dict(explanation) if explanation else None,
        library={"protocol": library.protocol.name, "start_s": start_s} if library else None,
        **ends_of(relative.map(lambda ratio: time_s * ratio) if relative else None),
    )


def explanation_dict(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation for JSON, without the times by rank."""
    path, ranks, links = explanation.path, explanation.ranks, explanation.links
    spent = {f"{kind.value}_s": seconds for kind, seconds in path.seconds().items()} if path else {}
    link, used = links.bottleneck, links.utilisation
    busiest = None if link is None else {"name": links.name(link), "utilisation": float(used[link])}
    return {
        "critical_path": {"num_transfers": path.num_transfers, **spent} if path else None,
        "busiest_rank": _times_of_rank(ranks, ranks.busiest),
        "slowest_rank": _times_of_rank(ranks, ranks.slowest),
        "bottleneck": busiest and {**busiest, "num_links_as_busy": int(among_most(used).sum())},
    }


def times_of_ranks(explanation: Explanation) -> list[dict[str, Any]]:
    """Return each rank's times for JSON."""
    return [_times_of_rank(explanation.ranks, rank) for rank in range(explanation.timeline.num_ranks)]


def _times_of_rank(ranks: RankUsage, rank: int) -> dict[str, Any]:
    return {"rank": rank, **{name: float(getattr(ranks, name)[rank]) for name in RANK_TIMES}}
