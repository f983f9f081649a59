"""`attempt_store`: torchrun's store, without what the ranks of an earlier attempt have left in it.

With --max-restarts torchrun keeps one store for all attempts, and Gloo its addresses there under the same names each
time: a rank that is started again, and is quicker than another, would find where that one was before it died. The
number of restarts, which torchrun tells, would do to tell attempts apart on one node only: others may have had fewer.
"""

import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

POLL_S = 0.01


def attempt_store(store: "Store", rank: int, num_ranks: int, timeout_s: float) -> "Store":
    """A part of `store` that only the ranks of this attempt know; collective.

    No rank of an earlier attempt must be left: torchrun ends them all, on all nodes, before it starts new ones.

    Raises RuntimeError, as torch does, if others do not come in time.
    """
    from torch.distributed.distributed_c10d import PrefixStore  # noqa: PLC0415

    own = uuid.uuid4().hex
    store.set(f"attempt/life of {rank}", own)
    name = own
    if rank == 0:
        _answer_all(store, own, num_ranks, timeout_s)
    else:
        store.wait([f"attempt/for {own}"], timedelta(seconds=timeout_s))
        name = store.get(f"attempt/for {own}").decode()
        store.set(f"attempt/{name} has {rank}", "")
    return PrefixStore(f"attempt/{name}", store)


def _answer_all(store: "Store", name: str, num_ranks: int, timeout_s: float) -> None:
    """Tell every rank the name of this attempt, until it has heard it; a life that is over hears nothing."""
    missing, answered, deadline = set(range(1, num_ranks)), set(), time.monotonic() + timeout_s
    while missing:
        for rank in sorted(missing):
            if store.check([f"attempt/life of {rank}"]):
                life = store.get(f"attempt/life of {rank}").decode()
                if life not in answered:
                    store.set(f"attempt/for {life}", name)
                    answered.add(life)
            if store.check([f"attempt/{name} has {rank}"]):
                missing.discard(rank)
        if missing and time.monotonic() > deadline:
            raise RuntimeError(f"no word of rank {', '.join(map(str, sorted(missing)))} in {timeout_s:g} s")
        if missing:
            time.sleep(POLL_S)
