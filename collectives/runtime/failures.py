"""`FailureRecords`: which rank was the first to fail, told to all ranks of a group through the group's store.

When a rank dies, its neighbours raise and leave, and close connections to ranks that did nothing wrong. Each rank that
fails therefore writes which rank it was waiting for. The chain ends at a rank that has written nothing: it died, left,
or is stalled. A cycle means that ranks call different things; their last calls show the first difference.
"""

import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar
from weakref import ref

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore  # torch.distributed has it, its stubs have not
from torch.distributed.distributed_c10d import PrefixStore

from collectives.runtime.backends import CPU, has_backend
from collectives.runtime.errors import CollectiveError, disagreement, first_line, is_timeout
from collectives.runtime.group_state import resolve, state_of
from collectives.runtime.messages import Tag
from collectives.runtime.sharing import Sharing
from collectives.shared_memory import OtherCallError

T = TypeVar("T")
PREFIX = "collectives/failure"
_FIRST_CAUSE = "first"  # the key of the sentence that says who failed first
# How long to wait for the record of the peer. A timeout closes the connections of its process a moment before that
# process can write the record, so its neighbours may ask first.
GRACE_S = 1.0
# The same after a timeout: the peer may have begun to wait later, and therefore give up later.
TIMEOUT_GRACE_S = 1.5
# Additional time, if the ranks that have failed so far wait for one another and have made the same calls.
LATE_GRACE_S = 1.0
# How long finding the cause may take in all: the store may be served by the very rank that is stalled.
LIMIT_S = 3.0
# The first and the longest pause between two looks at the store; pauses double. Where many groups fail at once, ranks
# that poll often take the cores from the ranks whose records they wait for.
POLL_S, LONGEST_POLL_S = 0.01, 0.2
_EXPLAINING = threading.Event()  # set for good by the first failure of this process


def has_failed() -> bool:
    """Whether a collective of this process has failed, even if its error has not been raised yet."""
    return _EXPLAINING.is_set()


class FailureRecord(NamedTuple):
    """The record that a failed rank leaves in the store.

    peer: the rank of the group that it was waiting for; None if the fault is its own or unknown.
    calls: its last calls, in words, up to the call that failed. position: the number of that call; 0 if not counted.
    cause: the error, if the fault is its own; else empty.
    timed_out: whether it timed out, rather than lost a connection.
    is_mixed_up: whether `peer` has made other calls.
    """

    peer: int | None
    calls: Sequence[str]
    position: int = 0
    cause: str = ""
    timed_out: bool = False
    is_mixed_up: bool = False


class FailureRecords:
    """The failure records of one group, made on every rank at its first use.

    lost_server: the group's rank that served the store, if it has stopped.
    """

    lost_server: int | None = None

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._rank, self._num_ranks, self._group = group.rank(), group.size(), ref(group)
        self._store: Any = None
        with suppress(RuntimeError):
            self._store = group.get_group_store() if group.size() > 1 else None
        self._server = _server_of(self._store, group)
        # A store may outlive the group: torchrun keeps it when it restarts the ranks. A count of this rank's starts
        # tells their records apart.
        self._life = self._within_limit(lambda: self._store.add(f"{PREFIX}/lives of {self._rank}", 1))

    def first_cause(self, error: BaseException, calls: Sequence[str], position: int = 0) -> str:
        """Return a sentence that names the rank that failed first, the same on all ranks; empty if it cannot be found.

        Takes GRACE_S or TIMEOUT_GRACE_S on that rank's neighbours, and LIMIT_S at most. calls, position: as in
        `FailureRecord`.
        """
        _EXPLAINING.set()
        own_fault = not isinstance(error, CollectiveError)
        cause = f"{type(error).__name__}: {first_line(error)}" if own_fault else ""
        is_mixed_up = isinstance(error.__cause__, OtherCallError)
        peer = getattr(error, "peer", None)
        record = FailureRecord(peer, calls, position, cause, is_timeout(error), is_mixed_up)
        return self._within_limit(lambda: self._find(record)) or "" if self._life is not None else ""

    def _within_limit(self, ask: Callable[[], T]) -> T | None:
        if self._store is None:
            return None
        answer: Future[T] = Future()

        def call() -> None:
            try:
                answer.set_result(ask())
            except Exception as error:  # whatever kind of store it is
                self.lost_server = self._server
                answer.set_exception(error)

        # In another thread, since a store served by a stalled rank does not answer at all.
        threading.Thread(target=call, name="collectives-first-cause", daemon=True).start()
        with suppress(Exception):
            return answer.result(LIMIT_S)
        return None

    def _find(self, own: FailureRecord) -> str:
        store, verdict = self._store, self._key(_FIRST_CAUSE)
        store.set(self._key(f"of {self._rank}"), json.dumps(own))
        group = self._group()
        if group is not None:
            close_connections(group)  # only now: who sees that asks for the record
        cause = "" if store.check([verdict]) else self._trace_cause(own)
        if cause:
            store.compare_set(verdict, "", cause)  # the first to find out tells all
        sentence = store.get(verdict).decode() if store.check([verdict]) else ""
        self._stay_while_serving(is_one_gone=sentence.startswith(stopped_first()))
        store.set(self._key(f"read by {self._rank}"), "")
        return sentence

    def _trace_cause(self, own: FailureRecord) -> str:
        chain, record, rank = {self._rank: own}, own, own.peer
        while rank is not None and rank not in chain and not record.is_mixed_up:
            grace_s = TIMEOUT_GRACE_S if record.timed_out else GRACE_S
            if rank not in (written := self._records_within(grace_s, [rank], 1)):
                return stopped_first(rank)
            chain[rank] = record = written[rank]
            rank = record.peer
        if record.cause:
            return f"the first rank to fail was rank {list(chain)[-1]}: {record.cause}"
        if rank is None:
            return self._single_unresponsive_rank()
        waits_s = (TIMEOUT_GRACE_S, LATE_GRACE_S)
        everyone = (self._records_within(wait_s, range(self._num_ranks), self._num_ranks) for wait_s in waits_s)
        return next(filter(None, map(first_difference, everyone)), "")

    def _single_unresponsive_rank(self) -> str:
        everyone = range(self._num_ranks)
        silent = sorted(set(everyone) - set(self._records_within(GRACE_S, everyone, self._num_ranks - 1)))
        return stopped_first(silent[0]) if len(silent) == 1 else ""

    def _records_within(self, grace_s: float, ranks: Sequence[int], enough: int) -> dict[int, FailureRecord]:
        """Return the records of the failed ranks among `ranks`, until there are `enough` or the time is over.

        Stops early when another rank has written the final verdict.
        """
        records: dict[int, FailureRecord] = {}
        for _ in _polling(grace_s):
            missing = [rank for rank in ranks if rank not in records]
            records |= {rank: record for rank in missing if (record := self._read(rank)) is not None}
            if len(records) >= enough or self._store.check([self._key(_FIRST_CAUSE)]):
                break
        return records

    def _read(self, rank: int) -> FailureRecord | None:
        key = self._key(f"of {rank}")
        return FailureRecord(*json.loads(self._store.get(key))) if self._store.check([key]) else None

    def _key(self, name: str) -> str:
        return f"{PREFIX}/{self._life}/{name}"

    def _stay_while_serving(self, is_one_gone: bool) -> None:
        if self._server != self._rank:
            return
        others = [self._key(f"read by {rank}") for rank in range(self._num_ranks) if rank != self._rank]
        enough = len(others) - is_one_gone
        for _ in _polling(LIMIT_S / 3):
            if sum(self._store.check([key]) for key in others) >= enough:
                break


def close_connections(group: dist.ProcessGroup) -> None:
    """Show this rank's failure to all ranks that wait for it: on Gloo a timeout closes all connections of a group."""
    if has_backend(group, CPU):
        for peer in set(range(group.size())) - {group.rank()}:
            with suppress(RuntimeError):  # at once, if this connection is closed already
                nothing = torch.empty(1, dtype=torch.uint8)
                group.recv([nothing], peer, Tag.CLOSED_CONNECTION).wait(timedelta(milliseconds=1))


def _polling(limit_s: float) -> Iterator[None]:
    deadline, pause_s = time.monotonic() + limit_s, POLL_S
    yield
    while (left_s := deadline - time.monotonic()) > 0:
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, LONGEST_POLL_S)
        yield


def first_difference(records: Mapping[int, FailureRecord]) -> str:
    """Return the first known call that was not the same on all ranks; else empty."""
    by_position: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for rank, record in sorted(records.items()):
        for position, call in enumerate(record.calls, record.position - len(record.calls) + 1):
            by_position[position].append((rank, f"call {position}, {call}" if position else call))
    return next(filter(None, (disagreement(calls) for _, calls in sorted(by_position.items()))), "")


def stopped_first(rank: int | str = "", certainty: str = "") -> str:
    """Return the sentence that names the first rank to stop responding; without a rank, its beginning."""
    return f"the first rank to stop responding was {certainty}rank {rank}"


def _server_of(store: Any, group: dist.ProcessGroup) -> int | None:
    """Return the rank of `group` whose process serves `store`, which ends with it: rank 0 of the job.

    None if that rank is not in the group, or if torchrun serves the store.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore) or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    with suppress(Exception):  # not every kind of group is registered with torch
        return dist.get_group_rank(group, 0)
    return None


TORCH_CALL = ("a collective of torch.distributed",)


@contextmanager
def explain_failures(group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Raise CollectiveError for what torch.distributed on Gloo raises in the block because a peer is gone or late.

    The message ends with the rank of `group` that failed first, if known. Even with `ddp_comm_hook`,
    DistributedDataParallel broadcasts buffers by torch's collectives, whose errors name no rank.

    Put the block on all ranks: each rank that fails tells the others. Other errors pass unchanged.

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
    """Tell the other ranks of `group` about `error`; add the rank that failed first to a CollectiveError.

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
    """Return the sentence for the rank that failed first, if this rank's connections show it; else empty.

    closed: the ranks whose connections were closed when this one failed.
    """
    gone = state_of(group).part(Sharing).first_gone
    if gone is not None:
        return stopped_first(gone)
    if len(closed) == 1:
        return stopped_first(closed[0])
    # If another rank failed, the rank that serves the store stays until the records are read.
    server = state_of(group).part(FailureRecords).lost_server
    return stopped_first(server, "probably ") if server in closed else ""


def _closed_peers(error: CollectiveError, group: dist.ProcessGroup) -> list[int]:
    """Return the ranks of `group` whose connection is closed; none after a timeout, when Gloo closes all."""
    if is_timeout(error) or not has_backend(group, CPU):
        return []
    return [peer for peer in range(group.size()) if peer != group.rank() and _is_closed(group, peer)]


def _is_closed(group: dist.ProcessGroup, peer: int) -> bool:
    try:
        group.recv([torch.empty(1, dtype=torch.uint8)], peer, Tag.CLOSED_CONNECTION)
    except RuntimeError:
        return True
    return False
