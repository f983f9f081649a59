"""An `Explanation` as text for people, and as JSON."""

from collections.abc import Iterator
from typing import Any

from ringsim.analysis import CriticalPath, Explanation, LinkUsage, RankUsage, among_most
from ringsim.network import Floats
from ringsim.report.table import DataTable, TableCell, time_cell
from ringsim.units import format_time

_RANK_COLUMNS = {"busy_s": "busy", "sending_s": "sending", "applying_s": "applying", "waiting_s": "waiting",
                 "last_active_s": "last active"}  # fmt: skip


def as_dict(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation for JSON; each rank's times are left to `ranks_as_dicts`."""
    path, ranks = explanation.path, explanation.ranks
    return {
        "critical_path": None if path is None else _path_as_dict(path),
        "busiest_rank": _rank_as_dict(ranks, ranks.busiest),
        "slowest_rank": _rank_as_dict(ranks, ranks.slowest),
        "bottleneck": _bottleneck_as_dict(explanation.links),
    }


def ranks_as_dicts(explanation: Explanation) -> list[dict[str, Any]]:
    """Return each rank's times for JSON."""
    return [_rank_as_dict(explanation.ranks, rank) for rank in range(explanation.timeline.num_ranks)]


def _path_as_dict(path: CriticalPath) -> dict[str, Any]:
    spent = {f"{kind.value}_s": seconds for kind, seconds in path.seconds().items()}
    return {"num_transfers": path.num_transfers, **spent}


def _rank_as_dict(ranks: RankUsage, rank: int) -> dict[str, Any]:
    return {"rank": rank, **{name: float(getattr(ranks, name)[rank]) for name in _RANK_COLUMNS}}


def _bottleneck_as_dict(links: LinkUsage) -> dict[str, Any] | None:
    link = links.bottleneck
    if link is None:
        return None
    num_as_busy = int(among_most(links.utilisation).sum())
    return {
        "name": links.name(link),
        "utilisation": float(links.utilisation[link]),
        "num_links_as_busy": num_as_busy,
    }


def lines(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """Yield the sentences of an explanation, each after its subject."""
    path, ranks, links = explanation.path, explanation.ranks, explanation.links
    if path is not None and path.time_s > 0:
        yield "critical path", _path(path)
    if ranks.until_s > 0:
        yield "busiest", _busiest(ranks)
        if explanation.stall is None:
            done_s = format_time(ranks.last_active_s[ranks.slowest])
            yield "slowest", f"{_which(ranks.slowest, ranks.last_active_s)}, last active at {done_s}"
    if links.bottleneck is not None:
        others = int(among_most(links.utilisation).sum()) - 1
        also = f", as {'is one' if others == 1 else f'are {others}'} more" if others else ""
        used = _percent(links.utilisation[links.bottleneck])
        yield "bottleneck", f"{links.name(links.bottleneck)}, {used} used{also}"


def _path(path: CriticalPath) -> str:
    """The largest shares first; none that would be shown as 0."""
    shares = sorted(path.shares().items(), key=lambda item: -item[1])
    return ", ".join(f"{kind.value} {_percent(share)}" for kind, share in shares if share >= 0.0005)


def _busiest(ranks: RankUsage) -> str:
    rank = ranks.busiest
    share = {name: _percent(getattr(ranks, name)[rank] / ranks.until_s) for name in _RANK_COLUMNS}
    which = _which(rank, ranks.busy_s)
    return f"{which}, busy {share['busy_s']}: sending {share['sending_s']}, applying {share['applying_s']}"


def _which(rank: int, values: Floats) -> str:
    """The rank whose value is the largest, and how many others have as much."""
    num_as_large = int(among_most(values).sum())
    if num_as_large == len(values) > 1:
        return "all ranks alike"
    also = f" and {num_as_large - 1} more" if num_as_large > 1 else ""
    return f"rank {rank}{also}"


def ranks_table(explanation: Explanation) -> str:
    """Return a table with a row for each rank."""
    ranks = explanation.ranks
    rows = [
        (TableCell(str(rank), rank), *(time_cell(getattr(ranks, name)[rank]) for name in _RANK_COLUMNS))
        for rank in range(explanation.timeline.num_ranks)
    ]
    return DataTable(("rank", *_RANK_COLUMNS.values()), rows).text()


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
