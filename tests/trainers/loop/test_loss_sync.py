"""The losses that ranks tell each other before each backward pass."""

import signal

import torch.distributed as dist

from tests.ranks import RankPool
from trainers.loop.loss_sync import StoppedError, exchange_losses


def told(group: dist.ProcessGroup) -> list[object]:
    """Return what each rank hears when none, one, or one and another have something to say."""
    rank = group.rank()
    heard: list[object] = [exchange_losses(group, float(rank), stop=False)]
    heard.append(exchange_losses(group, 0.0, stop=False, asked=signal.SIGUSR1 if rank == 1 else 0).asked)
    try:
        exchange_losses(group, 0.0, stop=rank == 2, asked=signal.SIGTERM if rank == 0 else 0)
    except StoppedError as error:
        heard.append(str(error))
    return heard


def test_what_one_rank_is_asked_all_know(ranks: RankPool) -> None:
    """A rank that cannot go on at all counts for more."""
    heard = [([0.0, 1.0, 2.0], 0), signal.SIGUSR1, "rank 2 cannot go on"]
    assert ranks.run(told, num_ranks=3) == [heard] * 3
