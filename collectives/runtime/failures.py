"""`explain_failures`: errors of torch.distributed's own collectives that name the rank that failed first."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from collectives.runtime.errors import CollectiveError, is_timeout
from collectives.runtime.failure_records import FailureRecords, stopped_first
from collectives.runtime.group_state import resolve, state_of
from collectives.runtime.sharing import Sharing
from collectives.runtime.tags import Tag
from collectives.runtime.transport import CPU, has_backend

TORCH_CALL = ("a collective of torch.distributed",)


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


def name_first_to_fail(
    error: BaseException, group: dist.ProcessGroup, calls: Sequence[str] = TORCH_CALL, position: int = 0
) -> None:
    """Tell the other ranks of `group` of `error`; put at the end of a CollectiveError which rank failed first.

    calls, position: as in `FailureRecord`.
    """
    failures = state_of(group).part(FailureRecords)
    if not isinstance(error, CollectiveError):
        failures.first_cause(error, calls, position)
        return
    closed = _closed_peers(error, group)  # now, before ranks that have failed as well close theirs
    if error.peer is None:
        error.peer = next(iter(closed), None)
    error.add_cause(failures.first_cause(error, calls, position) or _cause_without_store(closed, group))


def _cause_without_store(closed: list[int], group: dist.ProcessGroup) -> str:
    """Who failed first, by the connections of this rank; empty if they do not tell.

    closed: the ranks whose connections to this one were closed when it failed.
    """
    gone = state_of(group).part(Sharing).first_gone
    if gone is not None:
        return stopped_first(gone)
    if len(closed) == 1:
        return stopped_first(closed[0])
    # After a failure of another rank the one that serves the store stays until that is read there.
    server = state_of(group).part(FailureRecords).lost_server
    return stopped_first(server, "probably ") if server in closed else ""


def _closed_peers(error: CollectiveError, group: dist.ProcessGroup) -> list[int]:
    """The ranks of `group` to which the connection is closed; none if that would mean nothing.

    After a timeout Gloo closes all connections of the process.
    """
    if is_timeout(error) or not has_backend(group, CPU):
        return []
    return [peer for peer in range(group.size()) if peer != group.rank() and _is_closed(group, peer)]


def _is_closed(group: dist.ProcessGroup, peer: int) -> bool:
    try:
        group.recv([torch.empty(1, dtype=torch.uint8)], peer, Tag.CLOSED_CONNECTION)
    except RuntimeError:
        return True
    return False
