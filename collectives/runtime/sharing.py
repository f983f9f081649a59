"""`Sharing`: which ranks of a group share memory.

Ranks share memory if they run on one host, in one network namespace, as one user, on Linux and x86-64, and if there is
memory for their segments. Others send to each other by torch.distributed. The ranks of a group find that out together,
when the first of its schedules is executed.
"""

import logging
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from weakref import finalize

import torch.distributed as dist

from collectives.runtime.group_state import resolve, state_of
from collectives.runtime.instructions import portion_bytes
from collectives.runtime.sharing_offer import SLOT, TRANSPORT, TRANSPORTS, Offer, Settings, exchange, this_host
from collectives.runtime.transport import time_limit_of
from collectives.shared_memory import MEETING_TIMEOUT_S, LocalRanks, Meeting
from ringsim.schedule import Schedule

_LOG = logging.getLogger("collectives")
DEFAULT_TRANSPORT = "auto"
DEFAULT_SLOT_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class SharedBy:
    """Who shares memory in a group, as one of its ranks sees it.

    local: the ranks that share it with this one; None if there are none.
    slot_bytes: of every segment; 0 if no two ranks of the group share memory.
    on_one_host: whether all of them do.
    """

    local: LocalRanks | None = None
    slot_bytes: int = 0
    on_one_host: bool = False

    def portion_bytes(self, schedule: Schedule) -> int | None:
        """How much of each chunk may be in a portion, the same on all ranks; None for no limit, 0 if nothing fits."""
        return portion_bytes(schedule, self.slot_bytes, self.on_one_host) if self.slot_bytes else None


NOT_SHARED = SharedBy()


class Sharing:
    """The shared memory of one rank of a group, which the ranks begin together.

    transport: how chunks are to travel, as `use_transport` has it.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.transport = os.environ.get(TRANSPORT, DEFAULT_TRANSPORT)
        self._shared: SharedBy | None = NOT_SHARED if group.size() == 1 else None

    def of(self, group: dist.ProcessGroup) -> SharedBy:
        """Who shares memory. The first time all ranks must ask.

        Raises ValueError, on all ranks, if their settings differ or cannot be, and CollectiveError if one says nothing
        within the group's timeout.
        """
        if self._shared is None:
            self._shared = _find_out(group, self.transport)
            if self._shared.local is not None:
                finalize(group, self._shared.local.close)
        return self._shared

    @property
    def is_known(self) -> bool:
        """Whether the ranks have found it out."""
        return self._shared is not None

    @property
    def first_gone(self) -> int | None:
        """The rank of this host that ended first, once a collective has failed here; None if that is not known."""
        return self._shared.local.first_gone if self._shared and self._shared.local else None


def transport_in_use(group: dist.ProcessGroup) -> str:
    """How the chunks of `group` travel: "shm" or "gloo", or "auto" for some this way and some that.

    Every rank must ask, since they may have to find out together; raises what `Sharing.of` does.
    """
    shared = state_of(group).part(Sharing).of(group)
    if shared.on_one_host:
        return "shm"
    return "auto" if shared.slot_bytes else "gloo"


def use_transport(transport: str, group: dist.ProcessGroup | None = None) -> None:
    """Choose how the chunks of all collectives of `group` travel; call it on every rank, before the first of them.

    transport: "auto": between ranks of a host that can share memory through that, between others by the sends and
    receives of torch.distributed. "gloo": all by those. "shm": all through shared memory; where some ranks cannot, the
    first collective raises ValueError on all. Without a call the environment variable COLLECTIVES_TRANSPORT says it,
    and if that is not set it is "auto".
    group: the default group if None.

    Raises ValueError for another transport, if there is no such group, and if it has begun already.

        >>> group = dist.new_group()
        >>> collectives.use_transport("gloo", group)
        >>> tensor = torch.ones(3)
        >>> collectives.all_reduce(tensor, group=group)
        >>> tensor
        tensor([2., 2., 2.])
    """
    group = resolve(group)
    sharing = state_of(group).part(Sharing)
    if transport not in TRANSPORTS:
        raise ValueError(f"transport {transport!r}: must be one of {', '.join(TRANSPORTS)}")
    if sharing.is_known and group.size() > 1:
        raise ValueError(f"transport {transport!r}: the group already has one; choose it before the first collective")
    sharing.transport = transport


def _find_out(group: dist.ProcessGroup, transport: str) -> SharedBy:
    settings = Settings(transport, os.environ.get(SLOT, str(DEFAULT_SLOT_BYTES)))
    meeting, reason = _new_meeting(group, settings)
    own = Offer(this_host(), meeting.name if meeting else "", str(settings))
    local = None
    with meeting or nullcontext():
        offers = [Offer(*offer) for offer in exchange(group, own)]
        settings.check(offers)
        try:
            local = _met(meeting, group, own, offers) if meeting else None
        except OSError as error:
            reason = str(error)
    shared = NOT_SHARED
    if any(offer.name for offer in offers):
        shared, reason = _agreed(group, own, local, reason, settings.slot_bytes)
    if transport == "shm" and not shared.on_one_host:
        if shared.local is not None:
            shared.local.close()
        raise ValueError(
            f"transport 'shm': not all ranks share memory ({reason or 'they run on several hosts'}); use 'auto'"
        )
    if transport == "auto" and reason:
        _LOG.debug("rank %d uses torch.distributed for all messages, not shared memory: %s", group.rank(), reason)
    return shared


def _new_meeting(group: dist.ProcessGroup, settings: Settings) -> tuple[Meeting | None, str]:
    """Return the meeting to which this rank invites the others; or None, and why there is none."""
    if reason := settings.why_not():
        return None, reason
    limit = time_limit_of(group)()
    try:
        # So that whoever waits in vain comes to `_agreed` while the others still wait there.
        return Meeting(group.rank(), settings.slot_bytes, min(MEETING_TIMEOUT_S, limit.seconds / 2)), ""
    except OSError as error:
        return None, f"cannot create a shared memory segment: {error}"


def _met(meeting: Meeting, group: dist.ProcessGroup, own: Offer, offers: Sequence[Offer]) -> LocalRanks | None:
    names = {
        rank: offer.name
        for rank, offer in enumerate(offers)
        if rank != group.rank() and offer.host == own.host and offer.host and offer.name
    }
    if not names:
        return None
    memories, sockets = meeting.meet(names)
    return LocalRanks(group.rank(), memories, sockets, time_limit_of(group))


def _agreed(
    group: dist.ProcessGroup, own: Offer, local: LocalRanks | None, reason: str, slot_bytes: int
) -> tuple[SharedBy, str]:
    """All of a host share, or none: who could not reach one other rank does not know whether the others could.

    Returns who shares, and why this rank does not if one of its host cannot.
    """
    ranks = exchange(group, (own.host, local is not None, bool(reason)))
    failed = {host: rank for rank, (host, _, has_failed) in enumerate(ranks) if has_failed}
    if own.host in failed:
        if local is not None:
            local.close()
        local, reason = None, reason or f"rank {failed[own.host]} on this host cannot"
    sharing = Counter(host for host, shares, _ in ranks if shares and host not in failed)
    return SharedBy(local, slot_bytes if sharing else 0, group.size() in sharing.values()), reason
