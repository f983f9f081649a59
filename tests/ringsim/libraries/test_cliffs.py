"""No time jumps from one number of ranks, or size, to the next one, but for what the library itself has fewer of."""

import itertools
from collections.abc import Mapping

import numpy as np
import pytest

from ringsim import Collective, Network, load_network, predict_time
from ringsim.algorithms import fill_hosts
from ringsim.libraries import DIRECT, Call, predict
from ringsim.measurements import TESTS
from ringsim.network import Floats, preset_names
from ringsim.registry import build
from tests.ringsim.made_networks import choose

MOST = 2.05  # a doubling of the bytes, or of the hops, and what smooth minima add
NEAR_POWERS = sorted({2**k + d for k in range(6, 17) for d in (-1, 0, 1, 8) if 2**k + d <= 2**16})
DESCRIBES_NCCL = [name for name in preset_names() if load_network(name).spec.protocols]
CALLS = [name for name in TESTS if name in {collective.value for collective in Collective}]


def counts_of(network: Network) -> list[int]:
    """Return the numbers of ranks, from small to large, for which a network has room."""
    return [n for n in [*range(2, 41), *NEAR_POWERS] if n <= (network.spec.max_ranks or n)]


def explained(network: Network, num_ranks: int, more_ranks: int) -> float:
    """Return how many times as much bandwidth the fewer ranks have: of links, or the NICs that every host can use.

    Or how many times as long the least step of a ring takes, if it crosses hosts. Where all ranks share some cores, the
    messages of a ring are more by a factor of n(n - 1).
    """
    if network.spec.host.cores:
        return max(1.0, more_ranks * (more_ranks - 1) / num_ranks / (num_ranks - 1))
    rates, steps_s = [], []
    link_s = min((protocol.link_latency_s for protocol in network.spec.protocols), default=1.0)
    for count in (num_ranks, more_ranks):
        hosts = fill_hosts(count, network.spec.ranks_per_host or count)
        host = network.on_hosts(len(hosts)).spec.host
        link, nics = host.link, host.nics
        across = min(*hosts, nics.count or min(hosts)) * nics.bandwidth_bytes_per_s
        rates.append(min(link.bandwidth_bytes_per_s, across) if len(hosts) > 1 else link.bandwidth_bytes_per_s)
        steps_s.append(max(link_s, network.spec.library.ring_overhead_s if len(hosts) > 1 else 0.0))
    return max(rates[0] / rates[1], steps_s[1] / steps_s[0], 1.0)


def require_even(network: Network, times: Mapping[int, Floats | float]) -> None:
    """Fail where neighbouring numbers of ranks, at most a doubling apart, are further apart than is explained.

    times: by the number of ranks, for one size or for several.
    """
    for few, more in itertools.pairwise(times):
        if more <= 2 * few:
            ratios = np.divide(times[more], times[few])
            assert ratios.min() >= 1 / MOST / explained(network, more, few), (few, more, times)
            assert ratios.max() <= MOST * explained(network, few, more), (few, more, times)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("preset", DESCRIBES_NCCL)
def test_nccl_s_times_have_no_steps(preset: str, call: str) -> None:
    """From 1 B to 64 GiB and on up to 65,536 ranks, by the formulas that `choose` goes by."""
    network, sizes = load_network(preset), [2**k for k in range(37)]
    counts = counts_of(network)
    asked = [Call.on(network, Collective(call), n, size) for n in counts for size in sizes]
    times = np.array([time_s for time_s, _ in predict(network, asked)]).reshape(len(counts), len(sizes))
    require_even(network, dict(zip(counts, times, strict=True)))
    ratios = times[:, 1:] / times[:, :-1]
    assert ratios.min() >= 1 - 1e-12  # rounding: measured steps of rings may be equally long
    assert ratios.max() <= MOST


@pytest.mark.parametrize("collective", list(Collective))
@pytest.mark.parametrize("preset", preset_names())
def test_simulated_times_have_no_steps(preset: str, collective: Collective) -> None:
    """Collectives between two ranks only, and the defaults on other networks."""
    network, is_direct = load_network(preset), collective in DIRECT
    if preset in DESCRIBES_NCCL and not is_direct:
        return  # it is the formula's: see above
    for size_bytes in (1, 2**30):
        times = {}
        for num_ranks in [n for n in counts_of(network) if n <= (17 if is_direct else 5) or n in (8, 9, 16, 17)]:
            if preset in DESCRIBES_NCCL:
                times[num_ranks] = choose(network, collective, num_ranks, size_bytes).time_s()
            else:
                schedule = build(collective, "direct" if is_direct else "ring", num_ranks, size_bytes)
                times[num_ranks] = predict_time(schedule, network, size_bytes)
        require_even(network, times)
