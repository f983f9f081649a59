"""What is said of one simulated collective."""

from typing import Any

from ringsim.closed_form import closed_form_of
from ringsim.machine import AnyNetwork
from ringsim.network import Network
from ringsim.rates import algbw_bytes_per_s, busbw_bytes_per_s
from ringsim.schedule import Schedule
from ringsim.simulate import predict_time
from ringsim.units import format_rate, format_size, format_time


def summarise(schedule: Schedule, network: AnyNetwork, size_bytes: int) -> dict[str, Any]:
    """The simulated time of one collective with what it is to be compared with, for JSON."""
    collective, num_ranks = schedule.collective, schedule.num_ranks
    time_s = predict_time(schedule, network, size_bytes)
    return {
        "collective": collective.value,
        "algorithm": schedule.algorithm,
        "num_ranks": num_ranks,
        "num_chunks": schedule.num_chunks,
        "num_steps": schedule.num_steps,
        "num_transfers": schedule.num_transfers,
        "size_bytes": size_bytes,
        "network": network.as_dict(),
        "time_s": time_s,
        "closed_form_s": closed_form_of(schedule, network, size_bytes) if isinstance(network, Network) else None,
        "algbw_bytes_per_s": algbw_bytes_per_s(size_bytes, time_s),
        "busbw_bytes_per_s": busbw_bytes_per_s(collective, num_ranks, size_bytes, time_s),
    }


def describe(result: dict[str, Any]) -> str:
    """What `summarise` gave, for people."""
    rows = [
        f"{result['collective']} {result['algorithm']}, {result['num_ranks']} ranks, "
        f"{format_size(result['size_bytes'])}",
        f"  transfers    {result['num_transfers']} in {result['num_steps']} steps",
        f"  time         {format_time(result['time_s'])}",
    ]
    if result["closed_form_s"] is not None:
        rows.append(f"  closed form  {format_time(result['closed_form_s'])}")
    for name in ("algbw", "busbw"):
        rate = result[f"{name}_bytes_per_s"]
        rows.append(f"  {name}        {'-' if rate is None else format_rate(rate)}")
    return "\n".join(rows)
