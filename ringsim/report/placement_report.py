"""A `RankPlacement` for people and for JSON, and the order of ranks as commands read it."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringsim.analysis import RankPlacement
from ringsim.files import finite_or_none, parse_json, quoted, read_text, values
from ringsim.network import Network
from ringsim.schedule import Schedule
from ringsim.text_table import WIDTH, align_columns
from ringsim.units import format_size, format_time, plural, whole_number

MARGIN = 15  # characters before the order


def placement_dict(
    schedule: Schedule, network: Network, size_bytes: int, placement: RankPlacement, seed: int = 0
) -> dict[str, Any]:
    """Return the rank placement with its gain and its conditions, for JSON; a time without end becomes None."""
    return {
        "collective": schedule.collective.value,
        "algorithm": schedule.algorithm,
        "num_ranks": schedule.num_ranks,
        "size_bytes": size_bytes,
        "network": network.as_dict(),
        "seed": seed,
        **finite_or_none({**asdict(placement), "gain": placement.gain}),
    }


def format_placement(report: Mapping[str, Any], wide: bool = False) -> str:
    """Return what `placement_dict` gave, for people; a long order whole only if `wide`."""
    order = ",".join(map(str, report["order"]))
    if not wide and len(order) > WIDTH - MARGIN:
        order = f"{order[: order.rfind(',', 0, 24) + 1]}... (--wide shows it, -o saves it)"
    before_s, now_s, may_help = report["time_before_s"], report["time_s"], ""
    if now_s is None:
        time = "never ends, in any simulated order: ringsim simulate reports which part fails and which ranks wait"
    elif report["order"] == list(range(report["num_ranks"])):
        time = f"{format_time(now_s)}: no faster order found"
        may_help = "a ring uses every NIC in any order; " if "ring" in report["algorithm"] else ""
        may_help += "ringsim explain simulates all other algorithms, and ringsim synthesize searches for a schedule"
    elif before_s is None:
        time = f"never ends -> {format_time(now_s)}: now it ends"
    else:
        time = f"{format_time(before_s)} -> {format_time(now_s)}, {report['gain']:.2f} times as fast"
    simulated = plural(report["evaluations"], "order")
    rows = [("order", order), ("time", time), ("may help", may_help), ("simulated", simulated)]
    schedule = f"{report['collective']} {report['algorithm']}, {plural(report['num_ranks'], 'rank')}"
    lines = align_columns([row for row in rows if row[1]], width=None if wide else WIDTH - 2)
    return "\n".join([f"{schedule}, {format_size(report['size_bytes'])}", *(f"  {line}" for line in lines)])


def parse_placement(text: str) -> tuple[int, ...]:
    """Return the ranks in the order of their places, from numbers or the name of a file.

    A file holds either these numbers, or JSON that is a list of them or has one as "order".

    Raises ValueError for text that is neither, and for a file that cannot be read.
    """
    if numbers := _numbers(text):
        return numbers
    try:
        content = read_text(Path(text))
        if numbers := _numbers(content):
            return numbers
        data = parse_json(content)
    except OSError as error:
        raise ValueError(f"{quoted(text, 300)} is not an order, 0,2,1,3, and not a file: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{text}: is not an order: must be numbers such as 0,2,1,3, or JSON: {error}") from None
    ranks = data.get("order") if isinstance(data, dict) else data
    if not isinstance(ranks, list) or not all(values.is_whole(rank) for rank in ranks):
        raise ValueError(f'{text}: is not an order: JSON must be a list of ranks, or have one as "order"')
    return tuple(ranks)


def _numbers(text: str) -> tuple[int, ...] | None:
    numbers = [whole_number(part.strip()) for part in text.split(",")]
    return None if None in numbers else tuple(number for number in numbers if number is not None)
