"""`closed_form_s`: the time of an algorithm as a formula, as a check of the simulator.

The formulas follow from the rule of execution (see `schedule`): messages on several channels of a rank share its port,
and a rank applies messages of several connections at once. If a round is one message to one rank, the formula is the
textbook's, with alpha = latency + both overheads, beta = 1/bandwidth and gamma = 1/reduce rate; otherwise its docstring
names the difference.

There is no formula if messages meet at a port at times that depend on latency and overheads. In order there are others.
Without a formula, in order and without latency, these take a multiple of S beta, within 0.01 % of simulations of 2 to
64 ranks:

    reduce binomial_tree                            ceil(log2 n)
    all_reduce binomial_tree                        2 ceil(log2 n)
    all_reduce torus, hierarchical                  2(n-1)/n + h/n; (h+1)/n in place of h/n if h > 5
    broadcast, reduce double_binary_tree, n > 3     1 + (d-1)/(4d)
    all_reduce double_binary_tree, n > 5/4 p + 1    2 + (2d-3)/(4d)

for h > 1 groups of m > 1 ranks (h/n for all h as the rule permits), d = ceil(log2 n), 4d segments a tree, and p the
largest power of two below n.
"""

from collections.abc import Callable
from typing import NamedTuple

from ringsim.algorithms import hosts_of, torus_of
from ringsim.network import Network
from ringsim.registry import build
from ringsim.schedule import Collective, Schedule, same_transfers
from ringsim.simulation.simulate import RULE, Runtime


class _Hop(NamedTuple):
    """The seconds of one chunk from rank to rank; `apply_s` is the receiver's time after arrival."""

    overhead_s: float
    bytes_s: float
    latency_s: float
    apply_s: float

    @property
    def send_s(self) -> float:
        return self.overhead_s + self.bytes_s

    def together_s(self, num_messages: int) -> float:
        return self.overhead_s + self.bytes_s * num_messages

    @property
    def whole_s(self) -> float:
        return self.send_s + self.latency_s + self.apply_s

    @property
    def gap_s(self) -> float:
        """Time per following chunk of a train: the slower of link and receiver."""
        return max(self.send_s, self.apply_s)


_Half = Callable[[int, _Hop], float]  # the seconds of the number of ranks, at least 2, and the hop of one chunk


def _is_power_of_two(num_ranks: int, _: _Hop) -> bool:
    return not num_ranks & (num_ranks - 1)


def _is_one_ring(shape: Callable[[int], tuple[int, int]]) -> Callable[[int, _Hop], bool]:
    return lambda num_ranks, _: min(shape(num_ranks)) == 1


def _is_applied_at_once(_: int, hop: _Hop) -> bool:
    return not hop.apply_s


class _Formula(NamedTuple):
    """The times of adding chunks and of copying them afterwards; None if the algorithm does not.

    chunks_per_rank: 0 if the data is not cut. holds: whether there is a formula. ending: the last term of the copying.
    """

    chunks_per_rank: int
    adding: _Half | None = None
    copying: _Half | None = None
    holds: Callable[[int, _Hop], bool] = lambda *_: True
    ending: _Half | None = None

    def time_s(self, num_ranks: int, add: _Hop, copy: _Hop) -> float | None:
        halves = (self.adding, add), (self.copying, copy), (self.ending, copy)
        terms = [(half, hop) for half, hop in halves if half]
        if not all(self.holds(num_ranks, hop) for _, hop in terms):
            return None
        return sum(term(num_ranks, hop) for term, hop in terms)


def closed_form_s(
    collective: Collective,
    algorithm: str,
    num_ranks: int,
    size_bytes: float,
    network: Network,
    *,
    runtime: Runtime = RULE,
) -> float | None:
    """Return the seconds of a built-in algorithm on a uniform network; None if there is no formula.

    Exact if the number of chunks divides the size. Otherwise the time lies between those of the nearest such sizes,
    unless chunks of unequal sizes meet at a port.

        >>> from ringsim import Collective, Network, closed_form_s
        >>> network = Network.uniform(latency_s=1e-5, bandwidth_bytes_per_s=1e9)
        >>> closed_form_s(Collective.ALL_REDUCE, "ring", 4, 4e6, network)
        0.00606
    """
    formula = (_IN_ORDER if runtime.in_order else _PERMITTED).get((collective, algorithm))
    costs = network.message_costs
    if formula is None or costs is None:
        return None
    if num_ranks == 1:
        return 0.0
    chunk_bytes = size_bytes / (formula.chunks_per_rank * num_ranks or 1)
    sending = costs.gap_s, chunk_bytes / costs.bandwidth_bytes_per_s, costs.latency_s
    copy_s = costs.receive_overhead_s
    add_s = copy_s + chunk_bytes / costs.reduce_bytes_per_s
    add, copy = (_Hop(*sending, apply_s) for apply_s in (add_s, copy_s))
    return formula.time_s(num_ranks, add, copy)


def closed_form_of(schedule: Schedule, network: Network, size_bytes: float, *, runtime: Runtime = RULE) -> float | None:
    """Return `closed_form_s` of the schedule's algorithm; None if the schedule differs from that of `build`.

    The schedules are compared, since users may name any schedule `ring`. Also None if the network is not uniform.
    """
    key = schedule.collective, schedule.algorithm
    if network.message_costs is None or key not in _IN_ORDER:
        return None
    built_in = build(*key, schedule.num_ranks)
    if schedule.num_chunks != built_in.num_chunks or not same_transfers(schedule.steps, built_in.steps):
        return None
    return closed_form_s(*key, schedule.num_ranks, size_bytes, network, runtime=runtime)


def _rounds(num_ranks: int, hop: _Hop) -> float:
    """(n-1)(alpha + c beta [+ c gamma]), with chunks of c = S/n bytes in half a ring, c = S along a chain.

    Thakur et al. 2005, section 4; Patarasuk and Yuan 2009. Any n.
    """
    return (num_ranks - 1) * hop.whole_s


def _wave(num_ranks: int, hop: _Hop) -> float:
    """Time of a linear pipeline: n - 1 hops for the first chunk, and a gap for each of the k - 1 following chunks.

    k = 4n, c = S/k; any n. As in Sanders et al. 2009, but only the slower end of a hop delays the next chunk.
    """
    return (num_ranks - 1) * hop.whole_s + (4 * num_ranks - 1) * hop.gap_s


def _two_pieces(num_ranks: int, hop: _Hop) -> float:
    """Time of half a ring with each chunk in two segments, both of a round before the next; c = S/(2n). Any n.

    A segment is forwarded once it is applied and the previous train has passed: a round takes a hop or, if longer, the
    gaps of a train.
    """
    return hop.whole_s + hop.gap_s + (num_ranks - 2) * max(hop.whole_s, 2 * hop.gap_s)


def _gloo_adding(num_ranks: int, hop: _Hop) -> float:
    """Time of the first of two trains of two segments, one after the other; c = S/(2n). Any n.

    A path passes from the slower end of one half to that of the other only by a whole hop, hence the last term.
    """
    return hop.gap_s + (num_ranks - 2) * max(hop.whole_s, 2 * hop.gap_s) + max(hop.whole_s, 2 * hop.send_s)


def _gloo_copying(num_ranks: int, hop: _Hop) -> float:
    """Time of the second train after `_gloo_adding`, without its `_gloo_ending`."""
    return (num_ranks - 2) * max(hop.whole_s, 2 * hop.gap_s)


def _gloo_ending(_: int, hop: _Hop) -> float:
    return max(hop.whole_s, 2 * hop.apply_s)


def _two_rings(num_ranks: int, hop: _Hop) -> float:
    """Time of half of two rings at once: (n-1)(alpha + 2c beta), c = S/(2n); two messages of a round share a port.

    In order only if applying takes no time.
    """
    return (num_ranks - 1) * (hop.together_s(2) + hop.latency_s + hop.apply_s)


def _exchange(num_ranks: int, hop: _Hop) -> float:
    """Time of recursive halving or doubling: log2(n) rounds of 1, 2, 4, ... n/2 chunks, c = S/n; n a power of two.

    log2(n) alpha + (n-1) c beta [+ (n-1) c gamma] if each round were one message (Thakur et al. 2005, sections 4.1 and
    4.2). Here a round is a train of chunks.
    """
    rounds = num_ranks.bit_length() - 1
    return rounds * hop.whole_s + (num_ranks - 1 - rounds) * hop.gap_s


def _whole_rounds(num_ranks: int, hop: _Hop) -> float:
    """log2(n)(alpha + S beta + S gamma), n a power of two: recursive doubling, and up a binomial tree.

    Thakur et al. 2005, section 4.5; Chan et al. 2007.
    """
    return (num_ranks.bit_length() - 1) * hop.whole_s


def _tree_down(num_ranks: int, hop: _Hop) -> float:
    """Time of ceil(log2(n)) hops, c = S, if n is a power of two (Thakur et al. 2005, section 4.4).

    Any n: the root sends to the rank at half that power of two, the root of the ranks from there on, and continues in
    the full tree below. The longer of the two counts.
    """
    if num_ranks == 1:
        return 0.0
    half = 1 << (num_ranks - 1).bit_length() - 1
    beyond_s = hop.latency_s + hop.apply_s + _tree_down(num_ranks - half, hop)
    return hop.send_s + max(beyond_s, (half.bit_length() - 1) * hop.whole_s)


def _at_once(num_ranks: int, hop: _Hop) -> float:
    """Time of n - 1 messages to a rank at once: alpha + (n-1) c beta, then n - 1 times gamma. Any n.

    c = S/n if ranks exchange shares, c = S if they send all their data.
    """
    return hop.together_s(num_ranks - 1) + hop.latency_s + (num_ranks - 1) * hop.apply_s


def _from_one(num_ranks: int, hop: _Hop) -> float:
    """Time of one rank to all others at once: alpha + (n-1) c beta, c = S; all to all, c = S/n. Any n."""
    return hop.together_s(num_ranks - 1) + hop.latency_s + hop.apply_s


def _in_turn(num_ranks: int, hop: _Hop) -> float:
    """Time of one rank to all others, one after the other: alpha + (n-1) c beta, c = S/n. Any n."""
    return (num_ranks - 1) * hop.send_s + hop.latency_s + hop.apply_s


_TWO_RINGS = {
    (collective, name): _Formula(2, *halves)
    for collective, halves in (
        (Collective.ALL_REDUCE, (_two_rings, _two_rings)),
        (Collective.REDUCE_SCATTER, (_two_rings, None)),
        (Collective.ALL_GATHER, (None, _two_rings)),
    )
    for name in ("bidirectional_ring", "multi_ring")
}

_PERMITTED = {
    **_TWO_RINGS,
    (Collective.ALL_REDUCE, "ring"): _Formula(1, _rounds, _rounds),
    (Collective.ALL_REDUCE, "gloo_ring"): _Formula(2, _gloo_adding, _gloo_copying, ending=_gloo_ending),
    (Collective.ALL_REDUCE, "recursive_doubling"): _Formula(0, _whole_rounds, holds=_is_power_of_two),
    (Collective.ALL_REDUCE, "binomial_tree"): _Formula(0, _whole_rounds, _tree_down, _is_power_of_two),
    (Collective.ALL_REDUCE, "direct"): _Formula(0, _at_once),
    (Collective.ALL_REDUCE, "two_shot"): _Formula(1, _at_once, _from_one),
    (Collective.ALL_REDUCE, "torus"): _Formula(1, _rounds, _rounds, _is_one_ring(torus_of)),
    (Collective.ALL_REDUCE, "hierarchical"): _Formula(1, _rounds, _rounds, _is_one_ring(hosts_of)),
    (Collective.ALL_REDUCE, "parameter_server"): _Formula(0, _at_once, _from_one),
    (Collective.ALL_REDUCE, "naive_ring"): _Formula(0, _rounds, _rounds),
    (Collective.REDUCE_SCATTER, "ring"): _Formula(1, _rounds),
    (Collective.REDUCE_SCATTER, "direct"): _Formula(1, _at_once),
    (Collective.ALL_GATHER, "ring"): _Formula(1, None, _rounds),
    (Collective.ALL_GATHER, "gloo_ring"): _Formula(2, None, _two_pieces),
    (Collective.ALL_GATHER, "direct"): _Formula(1, None, _from_one),
    (Collective.BROADCAST, "ring"): _Formula(4, None, _wave),
    (Collective.BROADCAST, "binomial_tree"): _Formula(0, None, _tree_down),
    (Collective.BROADCAST, "direct"): _Formula(0, None, _from_one),
    (Collective.REDUCE, "ring"): _Formula(4, _wave),
    (Collective.REDUCE, "binomial_tree"): _Formula(0, _whole_rounds, holds=_is_power_of_two),
    (Collective.REDUCE, "direct"): _Formula(0, _at_once),
    (Collective.GATHER, "direct"): _Formula(1, None, _from_one),
    (Collective.SCATTER, "direct"): _Formula(1, None, _from_one),
    (Collective.ALL_TO_ALL, "direct"): _Formula(1, None, _from_one),
    (Collective.ALL_TO_ALL, "pairwise"): _Formula(1, None, _in_turn),
}

_IN_ORDER = {
    **_PERMITTED,
    **{key: formula._replace(holds=_is_applied_at_once) for key, formula in _TWO_RINGS.items()},
    (Collective.ALL_REDUCE, "halving_doubling"): _Formula(1, _exchange, _exchange, _is_power_of_two),
    (Collective.ALL_REDUCE, "two_shot"): _Formula(1, _at_once, _at_once),
    (Collective.REDUCE_SCATTER, "halving_doubling"): _Formula(1, _exchange, holds=_is_power_of_two),
    (Collective.ALL_GATHER, "recursive_doubling"): _Formula(1, None, _exchange, _is_power_of_two),
    (Collective.ALL_GATHER, "halving_doubling"): _Formula(1, None, _exchange, _is_power_of_two),
    (Collective.ALL_GATHER, "direct"): _Formula(1, None, _at_once),
    (Collective.GATHER, "direct"): _Formula(1, None, _at_once),
    (Collective.ALL_TO_ALL, "direct"): _Formula(1, None, _at_once),
    (Collective.ALL_TO_ALL, "pairwise"): _Formula(1, None, _rounds),
}
