"""The algorithms that a beginner writes first, for comparison."""

from ringsim.algorithms.chain import chain
from ringsim.algorithms.direct import direct_broadcast, direct_reduce
from ringsim.schedule import Collective, Schedule, then


def parameter_server_all_reduce(num_ranks: int) -> Schedule:
    """Everything to rank 0, which adds, and back: 2 steps; rank 0 receives and sends n - 1 times the data.

    The others send the data only once, less than in a ring, but all wait for rank 0.
    """
    return then(direct_reduce(num_ranks), direct_broadcast(num_ranks), Collective.ALL_REDUCE, "parameter_server")


def naive_ring_all_reduce(num_ranks: int) -> Schedule:
    """The whole tensor from rank to rank, each adding its own, and the result back: 2(n - 1) steps.

    A rank sends the data at most twice, hardly more than in a ring, but all others wait meanwhile: n times
    as slow. Popular tutorials do something else that takes about half of that: in n - 1 steps all ranks at
    once pass on the whole tensor that came last, and add it to their sum. They relay originals, and so
    need a second buffer beside the sum, which the state of a chunk does not have.
    """
    halves = chain(Collective.REDUCE, num_ranks), chain(Collective.BROADCAST, num_ranks)
    return then(*halves, Collective.ALL_REDUCE, "naive_ring")
