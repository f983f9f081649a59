"""Write logs in the format of nccl-tests for the manual: predicted, and marked so, because real logs belong to others.

usage: python scripts/example_logs.py examples/logs
"""

import math
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from ringsim import Collective, load_network
from ringsim.analysis import busbw_bytes_per_s
from ringsim.console import OneLineCommand
from ringsim.files import atomic_file
from ringsim.libraries import Call, predict
from ringsim.units import plural

NETWORK = Path(__file__).parents[1] / "docs" / "networks" / "calibrated.toml"
RANKS_PER_HOST = 8
NOISE = 0.02  # standard deviation of the logarithm of a time, as of a quiet cluster
SIZES = [2**exponent for exponent in range(10, 33, 2)]  # 1 KiB to 4 GiB
LOGS = (
    (Collective.ALL_GATHER, 1),
    (Collective.ALL_GATHER, 2),
    (Collective.ALL_REDUCE, 1),
    (Collective.ALL_REDUCE, 2),
    (Collective.ALL_REDUCE, 8),
)  # with the number of hosts
HEAD = (
    "#                                                              out-of-place                       in-place",
    "#       size         count      type   redop    root"
    "     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
)


def log_lines(collective: Collective, num_hosts: int) -> Iterator[str]:
    """Return the log of one run; out of place and in place differ only by the noise."""
    num_ranks = num_hosts * RANKS_PER_HOST
    random = np.random.default_rng(num_ranks)
    yield f"# NOT MEASURED: predicted by scripts/example_logs.py of docs/networks/{NETWORK.name}, noise {NOISE:.0%}"
    yield f"# nThread 1 nGpus 1 minBytes {SIZES[0]} maxBytes {SIZES[-1]} step: 4(factor) warmup iters: 5 iters: 20"
    for rank in range(num_ranks):
        host, device = divmod(rank, RANKS_PER_HOST)
        yield f"#  Rank {rank:2} Group  0 Pid {1000 + rank} on  node{host} device {device:2} [0000:1b:00] made-up A100"
    yield from HEAD
    calls = [Call(collective.value, size_bytes, num_ranks, num_hosts) for size_bytes in SIZES]
    busbws = []
    for size_bytes, (time_s, _) in zip(SIZES, predict(load_network(str(NETWORK)), calls), strict=True):
        row, busbw = _row(collective, num_ranks, size_bytes, time_s * np.exp(NOISE * random.standard_normal(2)))
        busbws.append(busbw)
        yield row
    yield "# Out of bounds values : 0 OK"
    yield f"# Avg bus bandwidth    : {math.fsum(busbws) / len(busbws):g}"


def _row(collective: Collective, num_ranks: int, size_bytes: int, times_s: np.ndarray) -> tuple[str, float]:
    """Return the row of one size, and the mean of both bus bandwidths in GB/s."""
    gathers = collective is Collective.ALL_GATHER
    count, redop = size_bytes // 4 // (num_ranks if gathers else 1), "none" if gathers else "sum"
    busbws = [(busbw_bytes_per_s(collective, num_ranks, size_bytes, time_s) or 0.0) / 1e9 for time_s in times_s]
    halves = [
        f"{time_s * 1e6:9.1f} {size_bytes / time_s / 1e9:7.2f} {busbw:7.2f} {0:>6}"
        for time_s, busbw in zip(times_s, busbws, strict=True)
    ]
    return f"{size_bytes:>12} {count:>13}     float    {redop:>4}      -1 {' '.join(halves)}", sum(busbws) / 2


@click.command(cls=OneLineCommand)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def main(folder: Path) -> None:
    """Write the logs into FOLDER, which is made if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    for collective, num_hosts in LOGS:
        path = folder / f"{collective.value}-{plural(num_hosts, 'node').replace(' ', '')}.log"
        with atomic_file(path) as file:
            file.writelines(f"{line}\n".encode() for line in log_lines(collective, num_hosts))
        click.echo(f"wrote {path}")


if __name__ == "__main__":
    main()
