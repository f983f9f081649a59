"""What torch.distributed on Gloo does for its collectives, as schedules, so that it can be predicted too.

all_reduce is Gloo's ring with its own number of chunks; reduce_scatter_tensor clones and does a whole all_reduce;
all_gather is a ring in the other direction, from rank to rank + 1 (torch 2.13, ProcessGroupGloo and Gloo's source).
"""

from ringsim.algorithms import gloo_ring_all_gather
from ringsim.native.executed import executed_schedule
from ringsim.schedule import Collective, Schedule


def rival_schedule(collective: Collective, num_ranks: int, size_bytes: int) -> Schedule:
    """What is done for this many bytes. Raises ValueError for a collective that is not known here."""
    if collective in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER):
        return executed_schedule(Collective.ALL_REDUCE, "gloo_ring", num_ranks, size_bytes)[0]
    if collective is Collective.ALL_GATHER:
        return gloo_ring_all_gather(num_ranks)
    raise ValueError(f"what torch.distributed does for {collective.value} is not known here")
