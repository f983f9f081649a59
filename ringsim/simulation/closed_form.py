"""`closed_form_s`: the time of an algorithm as a formula, to hold the simulator against.

The textbook counts rounds, in each of which a rank sends one message and receives one. The formulas here say what
the rule of execution (see `schedule`) gives on a `Network`:

- a rank sends on several channels at once, which share its port, and applies what comes on several connections at once;
- steps are no barrier, and where a round moves several chunks one travels while another is applied.

Where a round is one message to one rank that is the textbook's formula, with alpha = latency + both overheads, beta =
1/bandwidth and gamma = 1/reduce rate; elsewhere the docstring says what differs.

There is none where messages meet at a port at times that depend on latency and overheads: for double trees, for two
levels, and, but for the broadcast of a binomial tree, where exchanges and trees have a number of ranks that is not a
power of two. Where ranks execute in order (see `simulate`) some algorithms have other formulas: two rings have one only
if applying takes no time, and recursive halving and doubling of chunks have one only in order, since otherwise the next
round begins before the last one has ended.

Without a formula, executed in order and without latency, these take a multiple of S beta. Simulations of 2 to 64 ranks
differ by less than 0.01 % (`test_closed_form.py` repeats a few):

    reduce binomial_tree                            ceil(log2 n)
    all_reduce binomial_tree                        2 ceil(log2 n)
    all_reduce torus, hierarchical                  2(n-1)/n + h/n; (h+1)/n in place of h/n if h > 5
    broadcast, reduce double_binary_tree, n > 3     1 + (d-1)/(4d)
    all_reduce double_binary_tree, n > 5/4 p + 1    2 + (2d-3)/(4d)

for h > 1 groups of m > 1 ranks (h/n for all h as the rule permits), d = ceil(log2 n), 4d segments a tree, and p the
largest power of two below n. None is known for recursive algorithms on other numbers of ranks than powers of two, for
the all_reduce of double trees just above one, and for NCCL's algorithms, whose channels alternate on links and ports.
"""

from collections.abc import Callable
from typing import NamedTuple

from ringsim.algorithms import hosts_of, torus_of
from ringsim.network import Network
from ringsim.registry import build
from ringsim.schedule import Collective, Schedule, same_transfers
from ringsim.simulation.simulate import RULE, Runtime


class _Hop(NamedTuple):
    """One chunk from rank to rank: overhead and bytes of sending, and `apply_s` of the receiver when it has come."""

    overhead_s: float
    bytes_s: float
    latency_s: float
    apply_s: float

    @property
    def send_s(self) -> float:
        """The seconds of sending if nothing else is sent."""
        return self.overhead_s + self.bytes_s

    def together_s(self, num_messages: int) -> float:
        """Return the time that this many take if they leave one rank, or reach one, at once on several channels."""
        return self.overhead_s + self.bytes_s * num_messages

    @property
    def whole_s(self) -> float:
        """The seconds from start to applied."""
        return self.send_s + self.latency_s + self.apply_s

    @property
    def gap_s(self) -> float:
        """The seconds of every further chunk in a train of them: the slower one of link and receiver sets the pace."""
        return max(self.send_s, self.apply_s)


_OneKind = Callable[[int, _Hop], float]  # of the number of ranks, at least 2, and the hop of one chunk
_Condition = Callable[[int], bool]  # on the number of ranks
_TwoKinds = Callable[[int, _Hop, _Hop], float | None]  # likewise, the hop where chunks are added and where copied


class _Formula(NamedTuple):
    """A time, and into how many chunks a rank the data is cut; 0: it is left whole."""

    chunks_per_rank: int
    time_s: _TwoKinds


def closed_form_s(
    collective: Collective,
    algorithm: str,
    num_ranks: int,
    size_bytes: float,
    network: Network,
    *,
    runtime: Runtime = RULE,
) -> float | None:
    """Return the seconds of an algorithm, as `algorithm` makes it, on a uniform network; None if there is no formula.

    runtime: as of `simulate`.

    Exact where the number of chunks divides the size. Otherwise it lies between the values at the next smaller and the
    next larger size that it divides, as the simulated time does unless chunks of unlike sizes meet at a port.

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
    """Return `closed_form_s` of the schedule's algorithm; None too if it is not as `build` makes it.

    None as well on a network whose pairs of ranks are not all alike.

    Anyone may name a schedule `ring`, and the built-in algorithms have parameters. It is told by the number of chunks
    and of steps, and by the first step.
    """
    key = schedule.collective, schedule.algorithm
    if network.message_costs is None or key not in _IN_ORDER:
        return None
    built_in = build(*key, schedule.num_ranks)
    counts = [(some.num_chunks, some.num_steps) for some in (schedule, built_in)]
    if counts[0] != counts[1] or not all(map(same_transfers, schedule.steps[:1], built_in.steps[:1])):
        return None
    return closed_form_s(*key, schedule.num_ranks, size_bytes, network, runtime=runtime)


def _adding(time_s: _OneKind) -> _TwoKinds:
    return lambda num_ranks, add, _: time_s(num_ranks, add)


def _copying(time_s: _OneKind) -> _TwoKinds:
    return lambda num_ranks, _, copy: time_s(num_ranks, copy)


def _one_after_the_other(adding: _OneKind, copying: _OneKind) -> _TwoKinds:
    """Return the sum of two halves.

    The second starts when all ranks have finished the first, or a rank that all wait for has.
    """
    return lambda num_ranks, add, copy: adding(num_ranks, add) + copying(num_ranks, copy)


def _if(holds: _Condition, time_s: _TwoKinds) -> _TwoKinds:
    return lambda num_ranks, add, copy: time_s(num_ranks, add, copy) if holds(num_ranks) else None


def _is_power_of_two(num_ranks: int) -> bool:
    return not num_ranks & (num_ranks - 1)


def _is_plain(shape: Callable[[int], tuple[int, int]]) -> _Condition:
    """Whether one of two levels is a single rank, so that the other is a plain ring."""
    return lambda num_ranks: min(shape(num_ranks)) == 1


def _rounds(num_ranks: int, hop: _Hop) -> float:
    """(n-1)(alpha + c beta [+ c gamma]), with chunks of c = S/n bytes in half a ring, c = S along a chain.

    Thakur, Rabenseifner and Gropp 2005, section 4; Patarasuk and Yuan 2009. Any n.
    """
    return (num_ranks - 1) * hop.whole_s


def _wave(num_ranks: int, hop: _Hop) -> float:
    """Return the first chunk's n - 1 hops, and the gap for each of the k - 1 behind it; k = 4n, c = S/k.

    The linear pipeline, which Sanders, Speck and Traeff 2009 compare their trees with: (n - 2 + k)(alpha + c beta) if
    the whole of alpha is an overhead of sending. Here only the slower end of a hop keeps the next chunk. Any n.
    """
    return (num_ranks - 1) * hop.whole_s + (4 * num_ranks - 1) * hop.gap_s


def _train(rounds: int, segments: int, hop: _Hop) -> float:
    """Half a ring with each chunk in segments, all segments of a round before the next: `rounds` = n - 1.

    A segment goes on when it has been applied, and when the train before it has passed: so a round takes a hop, or the
    gaps of a train if that is longer. Derived here: every path through the waits turns from a rank's receiving to its
    sending some number of times, and the longest does so never or always.
    """
    return hop.whole_s + (segments - 1) * hop.gap_s + (rounds - 1) * max(hop.whole_s, segments * hop.gap_s)


def _two_pieces(num_ranks: int, hop: _Hop) -> float:
    """Return a train of two segments; c = S/(2n). Any n."""
    return _train(num_ranks - 1, 2, hop)


def _gloo_all_reduce(num_ranks: int, add: _Hop, copy: _Hop) -> float:
    """Two trains of two segments, c = S/(2n), the second behind the first. Any n.

    Derived here, like `_train`. Where the halves meet a path may pass from one's slower end to the other's only by a
    whole hop, hence the two single terms.
    """
    more = num_ranks - 2
    adding = add.gap_s + more * max(add.whole_s, 2 * add.gap_s) + max(add.whole_s, 2 * add.send_s)
    return adding + more * max(copy.whole_s, 2 * copy.gap_s) + max(copy.whole_s, 2 * copy.apply_s)


def _two_rings(num_ranks: int, hop: _Hop) -> float:
    """Half of two rings at once: (n-1)(alpha + 2c beta), c = S/(2n), as two messages of each round share a port.

    In order, if applying takes no time; else a rank applies one chunk after the other, and the next two do not leave
    together. Derived here.
    """
    return (num_ranks - 1) * (hop.together_s(2) + hop.latency_s + hop.apply_s)


def _if_applied_at_once(collective: Collective, time_s: _TwoKinds) -> _TwoKinds:
    """Return the formula for a network on which applying what the collective sends takes no time."""
    applied = 0 if collective.reduces else 1  # in which of the two kinds of hops
    return lambda num_ranks, *hops: None if hops[applied].apply_s else time_s(num_ranks, *hops)


def _exchange(num_ranks: int, hop: _Hop) -> float:
    """Recursive halving or doubling, log2(n) rounds of 1, 2, 4, ... n/2 chunks of c = S/n bytes; n a power of two.

    log2(n) alpha + (n-1) c beta [+ (n-1) c gamma] if each round were one message (Thakur, Rabenseifner and Gropp 2005,
    sections 4.1 and 4.2; Chan et al. 2007). Here it is a train of chunks, with an overhead for each.
    """
    rounds = num_ranks.bit_length() - 1
    return rounds * hop.whole_s + (num_ranks - 1 - rounds) * hop.gap_s


def _whole_rounds(num_ranks: int, hop: _Hop) -> float:
    """log2(n)(alpha + S beta + S gamma), n a power of two: recursive doubling, and up a binomial tree.

    Thakur, Rabenseifner and Gropp 2005, section 4.5; Chan et al. 2007.
    """
    return (num_ranks.bit_length() - 1) * hop.whole_s


def _tree_down(num_ranks: int, hop: _Hop) -> float:
    """ceil(log2(n)) hops of all the data, c = S, if n is a power of two (Thakur, Rabenseifner and Gropp 2005, 4.4).

    The root sends to the rank half of that power of two away, whose tree has the ranks from there on, and then goes on
    in the tree of the ranks before it, which is a full one. Where the first of these trees lacks ranks, what takes
    longer is either its last message or that of the full one, whose messages leave one by one. Any n.
    """
    if num_ranks == 1:
        return 0.0
    half = 1 << (num_ranks - 1).bit_length() - 1
    beyond_s = hop.latency_s + hop.apply_s + _tree_down(num_ranks - half, hop)
    return hop.send_s + max(beyond_s, (half.bit_length() - 1) * hop.whole_s)


def _at_once(num_ranks: int, hop: _Hop) -> float:
    """All n - 1 messages to a rank at once: alpha + (n-1) c beta, then gamma n - 1 times. Any n.

    They are applied so where all are added to the same chunk; in order, always. c = S/n if ranks exchange shares, c = S
    if they exchange or send to rank 0 all they have. Derived here.
    """
    return hop.together_s(num_ranks - 1) + hop.latency_s + (num_ranks - 1) * hop.apply_s


def _from_one(num_ranks: int, hop: _Hop) -> float:
    """Return a rank to all the others at once: alpha + (n-1) c beta, c = S. Any n.

    Also all to all, each chunk on its own, c = S/n.
    """
    return hop.together_s(num_ranks - 1) + hop.latency_s + hop.apply_s


def _in_turn(num_ranks: int, hop: _Hop) -> float:
    """Return a rank to all the others, each message after the one before: alpha + (n-1) c beta, c = S/n. Any n."""
    return (num_ranks - 1) * hop.send_s + hop.latency_s + hop.apply_s


_RING_THERE_AND_BACK = _one_after_the_other(_rounds, _rounds)
_EXCHANGE_THERE_AND_BACK = _if(_is_power_of_two, _one_after_the_other(_exchange, _exchange))
_TREE_THERE_AND_BACK = _if(_is_power_of_two, _one_after_the_other(_whole_rounds, _tree_down))

_TWO_RINGS = {
    (collective, name): time_s
    for collective, time_s in (
        (Collective.ALL_REDUCE, _one_after_the_other(_two_rings, _two_rings)),
        (Collective.REDUCE_SCATTER, _adding(_two_rings)),
        (Collective.ALL_GATHER, _copying(_two_rings)),
    )
    for name in ("bidirectional_ring", "multi_ring")
}

_PERMITTED = {
    **{key: _Formula(2, time_s) for key, time_s in _TWO_RINGS.items()},
    (Collective.ALL_REDUCE, "ring"): _Formula(1, _RING_THERE_AND_BACK),
    (Collective.ALL_REDUCE, "gloo_ring"): _Formula(2, _gloo_all_reduce),
    (Collective.ALL_REDUCE, "recursive_doubling"): _Formula(0, _if(_is_power_of_two, _adding(_whole_rounds))),
    (Collective.ALL_REDUCE, "binomial_tree"): _Formula(0, _TREE_THERE_AND_BACK),
    (Collective.ALL_REDUCE, "direct"): _Formula(0, _adding(_at_once)),
    (Collective.ALL_REDUCE, "two_shot"): _Formula(1, _one_after_the_other(_at_once, _from_one)),
    (Collective.ALL_REDUCE, "torus"): _Formula(1, _if(_is_plain(torus_of), _RING_THERE_AND_BACK)),
    (Collective.ALL_REDUCE, "hierarchical"): _Formula(1, _if(_is_plain(hosts_of), _RING_THERE_AND_BACK)),
    (Collective.ALL_REDUCE, "parameter_server"): _Formula(0, _one_after_the_other(_at_once, _from_one)),
    (Collective.ALL_REDUCE, "naive_ring"): _Formula(0, _RING_THERE_AND_BACK),
    (Collective.REDUCE_SCATTER, "ring"): _Formula(1, _adding(_rounds)),
    (Collective.REDUCE_SCATTER, "direct"): _Formula(1, _adding(_at_once)),
    (Collective.ALL_GATHER, "ring"): _Formula(1, _copying(_rounds)),
    (Collective.ALL_GATHER, "gloo_ring"): _Formula(2, _copying(_two_pieces)),
    (Collective.ALL_GATHER, "direct"): _Formula(1, _copying(_from_one)),
    (Collective.BROADCAST, "ring"): _Formula(4, _copying(_wave)),
    (Collective.BROADCAST, "binomial_tree"): _Formula(0, _copying(_tree_down)),
    (Collective.BROADCAST, "direct"): _Formula(0, _copying(_from_one)),
    (Collective.REDUCE, "ring"): _Formula(4, _adding(_wave)),
    (Collective.REDUCE, "binomial_tree"): _Formula(0, _if(_is_power_of_two, _adding(_whole_rounds))),
    (Collective.REDUCE, "direct"): _Formula(0, _adding(_at_once)),
    (Collective.GATHER, "direct"): _Formula(1, _copying(_from_one)),
    (Collective.SCATTER, "direct"): _Formula(1, _copying(_from_one)),
    (Collective.ALL_TO_ALL, "direct"): _Formula(1, _copying(_from_one)),
    (Collective.ALL_TO_ALL, "pairwise"): _Formula(1, _copying(_in_turn)),
}

_IN_ORDER = {
    **_PERMITTED,
    **{key: _Formula(2, _if_applied_at_once(key[0], time_s)) for key, time_s in _TWO_RINGS.items()},
    (Collective.ALL_REDUCE, "halving_doubling"): _Formula(1, _EXCHANGE_THERE_AND_BACK),
    (Collective.ALL_REDUCE, "two_shot"): _Formula(1, _one_after_the_other(_at_once, _at_once)),
    (Collective.REDUCE_SCATTER, "halving_doubling"): _Formula(1, _if(_is_power_of_two, _adding(_exchange))),
    (Collective.ALL_GATHER, "recursive_doubling"): _Formula(1, _if(_is_power_of_two, _copying(_exchange))),
    (Collective.ALL_GATHER, "halving_doubling"): _Formula(1, _if(_is_power_of_two, _copying(_exchange))),
    (Collective.ALL_GATHER, "direct"): _Formula(1, _copying(_at_once)),
    (Collective.GATHER, "direct"): _Formula(1, _copying(_at_once)),
    (Collective.ALL_TO_ALL, "direct"): _Formula(1, _copying(_at_once)),
    (Collective.ALL_TO_ALL, "pairwise"): _Formula(1, _copying(_rounds)),
}
