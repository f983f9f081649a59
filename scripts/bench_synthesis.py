"""How near synthesized schedules come to what networks allow, and how long the search takes.

    python scripts/bench_synthesis.py             # the networks of the targets, up to 64 ranks
    python scripts/bench_synthesis.py --large     # 128 and 512 ranks

Times over the bound: 1.000 is the least that any schedule takes. CPU seconds are those until the best was found; the
search ends at 1.02 of the bound on uniform networks and at 1.05 on others.
"""

import argparse
import time
from collections.abc import Callable

import click

from cabled_networks import fully_connected, hosts, hypercube, islands, star, torus
from ringsim import Collective
from ringsim.network import Network
from ringsim.synthesis import SearchOptions, SearchState, Synthesis, synthesize

SIZE_BYTES = 2**28
COLLECTIVES = (Collective.ALL_GATHER, Collective.ALL_REDUCE)
Networks = dict[str, tuple[Callable[[], Network], int, float]]
NETWORKS: Networks = {
    "torus 4 x 4": (lambda: torus(4, 4), 16, 1.02),
    "torus 8 x 8": (lambda: torus(8, 8), 64, 1.02),
    "fully connected": (lambda: fully_connected(8), 8, 1.02),
    "hypercube": (lambda: hypercube(4), 16, 1.02),
    "switch": (star, 16, 1.02),
    "switch of 64": (star, 64, 1.02),
    "torus 4 x 4, a cable missing": (lambda: torus(4, 4, missing=1), 16, 1.05),
    "torus 8 x 8, a cable missing": (lambda: torus(8, 8, missing=1), 64, 1.05),
    "switch, a NIC at a quarter": (lambda: star(2), 8, 1.05),
    "4 hosts of 4, a NIC at a quarter": (lambda: hosts(4, 1, 1), 16, 1.05),
    "4 hosts of 8, a NIC at a quarter": (lambda: hosts(8, 1, 1), 32, 1.05),
    "2 racks behind slow uplinks": (lambda: islands(8), 16, 1.05),
    "4 hosts of 8, a NIC for a pair": (lambda: hosts(8, 4), 32, 1.05),
    "8 hosts of 8, a NIC for a pair": (lambda: hosts(8, 4), 64, 1.05),
}
LARGE: Networks = {
    "switch of 128": (star, 128, 1.02),
    "16 hosts of 8, a NIC for a pair": (lambda: hosts(8, 4), 128, 1.10),
    "torus 8 x 16": (lambda: torus(8, 16), 128, 1.02),
    "torus 8 x 8 x 8": (lambda: torus(8, 8, 8), 512, 1.02),
}


def main() -> None:
    """Print a line per network and collective."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="Networks of 128 and 512 ranks.")
    parser.add_argument("--seconds", type=float, default=20.0, help="Duration of each search, in seconds.")
    given = parser.parse_args()
    click.echo(f"{'network':34} {'ranks':>5} {'collective':11} {'found':>6} {'named':>6} {'CPU s':>6} {'first':>6}")
    for name, (make, num_ranks, enough) in (LARGE if given.large else NETWORKS).items():
        for collective in COLLECTIVES:
            click.echo(_line(name, make(), num_ranks, collective, SearchOptions(given.seconds, enough=enough)))


def _line(name: str, network: Network, num_ranks: int, collective: Collective, options: SearchOptions) -> str:
    began, best_at = time.process_time(), dict[float, float]()

    def note(state: SearchState) -> None:
        best_at.setdefault(state.best_s, time.process_time() - began)

    synthesis = synthesize(collective, network, num_ranks, SIZE_BYTES, options, on_state=note)
    found, named = _over_bound(synthesis, synthesis.found_s), _over_bound(synthesis, synthesis.named[0].time_s)
    times = f"{max(best_at.values()):6.1f} {min(best_at.values()):6.1f}"
    return f"{name:34} {num_ranks:5} {collective.value:11} {found} {named} {times}"


def _over_bound(synthesis: Synthesis, time_s: float | None) -> str:
    return f"{time_s / synthesis.bound.time_s:6.3f}" if synthesis.bound and time_s is not None else f"{'-':>6}"


if __name__ == "__main__":
    main()
