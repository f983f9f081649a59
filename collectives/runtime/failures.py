"""`explain_failures`: errors of torch.distributed's own collectives that name the rank that failed first."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from collectives.runtime.errors import CollectiveError, is_timeout
from collectives.runtime.failure_records import FailureRecords
from collectives.runtime.group_state import resolve, state_of
from collectives.runtime.tags import Tag
from collectives.runtime.transport import CPU, has_backend


@contextmanager
def explain_failures(group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Raise CollectiveError for what torch.distributed on Gloo raises in the block because a peer is gone or late.

    Where that can be found out, its message ends in the rank of `group` that failed first. What a program with
    DistributedDataParallel and `ddp_comm_hook` sends by itself (its buffers, the order of its buckets) goes through
    torch's collectives, whose errors name no rank.

    group: the default group if None.

    Every rank that fails tells the others through the group's store; so put the same block on all ranks. Other errors
    pass as they are.

        >>> with collectives.explain_failures():
        ...     dist.all_reduce(torch.ones(3))
    """
    try:
        yield
    except CollectiveError as error:
        name_first_to_fail(error, resolve(group))
        raise
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo/" in str(error)):
            raise
        group = resolve(group)
        failure = CollectiveError(f"rank {group.rank()}: {str(error).splitlines()[0]}")
        name_first_to_fail(failure, group)
        raise failure from error


def name_first_to_fail(error: CollectiveError, group: dist.ProcessGroup) -> None:
    """Put at the end of the message of `error` which rank of `group` failed first, unless it says so."""
    if error.peer is None:
        error.peer = _gone_peer(error, group)
    failures = state_of(group).part(FailureRecords)
    error.add_cause(failures.first_cause(error, ["a collective of torch.distributed"]))


def _gone_peer(error: CollectiveError, group: dist.ProcessGroup) -> int | None:
    """A rank of `group` to which the connection is closed; None if there is none, or if that would mean nothing.

    After a timeout Gloo closes all connections of the process.
    """
    if is_timeout(error) or not has_backend(group, CPU):
        return None
    for peer in range(group.size()):
        if peer != group.rank():
            try:
                group.recv([torch.empty(1, dtype=torch.uint8)], peer, Tag.CLOSED_CONNECTION)
            except RuntimeError:
                return peer
    return None
