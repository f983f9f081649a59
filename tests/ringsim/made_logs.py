"""Logs as benchmarks would print them on a cluster whose rates are known."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ringsim.calibration import Timing, calibrate_logs, cases_of_tables
from ringsim.libraries import Call, CallColumns, Rates, times_s
from ringsim.measurements import LogShape, read_logs
from ringsim.network import Network, Protocol, Tuning, network_text, read_network
from ringsim.units import plural

LOGS = Path(__file__).parents[3] / "shared" / "nccl-logs"  # public ones, which are not part of the project
SIZES = tuple(4**exponent for exponent in range(5, 16))
TRUE = Rates(
    link_bytes_per_s=200e9,
    nic_bytes_per_s=3e9,
    num_nics=math.inf,  # each rank has its own
    protocols=(
        Protocol("LL", 7e-6, 0.7e-6, 4e-6, 0.7e-6, 7e-6, 0.2),
        Protocol("LL128", 15e-6, 1.7e-6, 9e-6, 1.1e-6, 19e-6, 0.9),
        Protocol("Simple", 9e-6, 3.7e-6, 20e-6, 4.4e-6, 20e-6, 1.0),
    ),
    library=Tuning(tree_share=0.9, two_host_passes=2.0),
)
_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
}


def nccl_log(  # noqa: PLR0913  a log has so many quantities
    test: str,
    num_ranks: int,
    num_nodes: int = 1,
    *,
    sizes: Sequence[int] = SIZES,
    noise: float = 0.0,
    seed: int = 0,
    device: str = "NVIDIA A100",
    rates: Rates = TRUE,
) -> str:
    """The log of one run of nccl-tests, with `noise` on each time."""
    random = np.random.default_rng(seed)
    lines = ["# nThread 1 nGpus 1 minBytes 1 maxBytes 2 step: 2(factor) warmup iters: 5 iters: 20 validation: 1"]
    per_node = num_ranks // num_nodes
    lines += [
        f"#  Rank {rank:2} Group  0 Pid 99 on  node{rank // per_node} device {rank % per_node:2} [0000:1b:00] {device}"
        for rank in range(num_ranks)
    ]
    lines += [
        "#                                                              out-of-place                       in-place",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw "
        "#wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]
    for size in sizes:
        columns = CallColumns.from_calls([Call(test, size, num_ranks, num_nodes)])
        times = times_s(rates, columns)[0] * np.exp(noise * random.standard_normal(2))
        lines.append(nccl_row(test, size, num_ranks, times.tolist()))
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.0", "#"]) + "\n"


def nccl_row(test: str, size: int, num_ranks: int, times_s: Sequence[float], wrong: str = "0") -> str:
    """One row: out of place, then in place."""
    count = size // 4 // (1 if test == "all_reduce" else num_ranks)
    op = "none" if test == "all_gather" else "sum"
    sides = ""
    for time_s in times_s:
        algbw = size / time_s / 1e9
        sides += f" {time_s * 1e6:8.2f} {algbw:7.2f} {algbw * _FACTORS[test](num_ranks):7.2f} {wrong:>6}"
    return f"{size:12} {count:13}     float    {op:>4}      -1{sides}"


def bare(log: str) -> str:
    """A log without what tells its ranks."""
    return "".join(line for line in log.splitlines(True) if " Rank " not in line and "nThread" not in line)


def read_text(folder: Path, text: str, own: LogShape = LogShape(), **of_all: int) -> list[str]:  # noqa: B008
    """The tables of a log with this text, and the rows that were left out, a line each; or the line that refuses it."""
    path = folder / "a.log"
    path.write_text(text)
    lines = []
    try:
        for table in read_logs([path], shapes={path: own}, **of_all):
            sizes = " to ".join(map(str, sorted({table.rows[0].size_bytes, table.rows[-1].size_bytes})))
            rows = f"{plural(len(table.rows), 'row')} of {sizes} bytes"
            lines += [f"{table.reading}: {rows}", *(f"left out: {line}" for line in table.left_out)]
    except ValueError as error:
        lines.append(f"refused: {error}")
    return [line.replace(f"{path}: ", "", 1).replace(str(path), "a.log") for line in lines]


def logs_of(
    folder: Path, rates: Rates, *shapes: tuple[str, int, int], head: str = "", device: str = "NVIDIA A100"
) -> list[Timing]:
    """The cases of made logs of these collectives, ranks and hosts."""
    paths = []
    for number, (test, ranks, hosts) in enumerate(shapes):
        paths.append(folder / f"{test}-{ranks}-{hosts}.log")
        paths[-1].write_text(head + nccl_log(test, ranks, hosts, noise=0.01, seed=number, rates=rates, device=device))
    return cases_of_tables(read_logs(paths))


def fitted(cases: Sequence[Timing]) -> Network:
    """Return the network as it is read from its file."""
    return read_network(network_text(calibrate_logs(cases, "mine").cluster), "mine.toml")
