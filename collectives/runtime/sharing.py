"""`Sharing`: which ranks of a group share memory, determined together when its first schedule is executed.

Ranks share memory if they run on one host, in one network namespace, as one user, on Linux and x86-64, with memory for
their segments. Others use torch.distributed.
"""

import json
import logging
import os
import platform
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from weakref import finalize

import torch
import torch.distributed as dist

from collectives.runtime.backends import CPU, time_limit_of
from collectives.runtime.errors import CollectiveError, disagreement, first_line
from collectives.runtime.group_state import resolve, state_of
from collectives.runtime.instructions import portion_bytes
from collectives.runtime.messages import Tag
from collectives.shared_memory import MEETING_TIMEOUT_S, LocalRanks, Meeting
from ringsim.files import shortened
from ringsim.schedule import Schedule
from ringsim.units import whole_number

BOOT = Path("/proc/sys/kernel/random/boot_id")  # one for each running kernel, whatever its hosts are called
NAMESPACE = Path("/proc/self/ns/net")  # containers of one machine have one each, and so interfaces of their own


def machine_name() -> str:
    """Return a name common to all processes of a machine."""
    return BOOT.read_text().strip() if BOOT.exists() else socket.gethostname()


def namespace_name() -> str:
    """Return a name common to all processes with the same network interfaces."""
    return str(NAMESPACE.readlink()) if NAMESPACE.exists() else socket.gethostname()


TRANSPORT, SLOT = "COLLECTIVES_TRANSPORT", "COLLECTIVES_SHM_SLOT_BYTES"  # in the environment
TRANSPORTS = ("auto", "gloo", "shm")
MIN_SLOT_BYTES, MAX_SLOT_BYTES = 4096, 2**30  # all ranks of a host take twice as much at once
MAX_SETTINGS = 120  # characters that ranks are told of each other's settings
_TEXT_BYTES = 512


class Settings(NamedTuple):
    """The settings of a rank, the same on all ranks. slot_text: bytes of a slot, from the environment."""

    transport: str
    slot_text: str

    def __str__(self) -> str:
        return _on_one_line(f"transport {self.transport}, {SLOT} {self.slot_text}")

    @property
    def slot_bytes(self) -> int:
        """The size of a slot; 0 if `slot_text` is no whole number or out of range."""
        slot_bytes = whole_number(self.slot_text) or 0
        return slot_bytes if MIN_SLOT_BYTES <= slot_bytes <= MAX_SLOT_BYTES else 0

    def why_not(self) -> str:
        if self.transport not in ("auto", "shm"):
            return f"the transport is {self.transport}"
        if not self.slot_bytes:
            return f"{SLOT} is {self.slot_text}"
        if not sys.platform.startswith("linux") or not hasattr(os, "memfd_create"):
            return "only Linux has memfd_create"
        if platform.machine() not in ("x86_64", "AMD64"):
            # Other processors may let a reader see a stamp before the earlier writes.
            return f"{platform.machine()} does not keep the order of writes"
        return ""

    def check(self, everywhere: Sequence[str]) -> None:
        """Raise ValueError, on all ranks, if the settings differ or are not permitted."""
        if different := disagreement(list(enumerate(everywhere)), "how to send"):
            raise ValueError(f"{different}; set the same values on all ranks")
        if self.transport not in TRANSPORTS:
            raise ValueError(f"{TRANSPORT}={_on_one_line(self.transport)}: must be one of {', '.join(TRANSPORTS)}")
        if not self.slot_bytes:
            limits = f"must be a number of bytes from {MIN_SLOT_BYTES} to {MAX_SLOT_BYTES}"
            raise ValueError(f"{SLOT}={_on_one_line(self.slot_text)}: {limits}")


def _on_one_line(text: str) -> str:
    plain = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text)
    return shortened(plain, MAX_SETTINGS)


def this_host() -> str:
    """Return a name of this machine, network namespace and user; "" if unknown.

    Processes with the same name can connect to each other's Unix sockets.
    """
    try:
        known = BOOT.exists() and NAMESPACE.exists()
        return f"{machine_name()} {namespace_name()} {os.geteuid()}" if known else ""
    except OSError:
        return ""


def exchange(group: dist.ProcessGroup, facts: Sequence[Any]) -> list[list[Any]]:
    """Return the facts of every rank, by rank; collective. Raises CollectiveError, which names an unresponsive rank.

    `TextAllGather` would first ask who shares memory.
    """
    rank, peers = group.rank(), [peer for peer in range(group.size()) if peer != group.rank()]
    texts = torch.zeros(group.size(), _TEXT_BYTES, dtype=torch.uint8, device=CPU)
    own = json.dumps(facts).encode().ljust(_TEXT_BYTES)
    texts[rank] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    peer, limit = rank, time_limit_of(group)()
    try:
        works = []
        for peer in peers:
            works.append((peer, group.recv([texts[peer]], peer, Tag.SHARED_MEMORY)))
        for peer in peers:
            works.append((peer, group.send([texts[rank]], peer, Tag.SHARED_MEMORY)))
        for peer, work in works:  # noqa: B007
            work.wait(timedelta(seconds=limit.seconds))
    except RuntimeError as error:
        doing = f"learning about shared memory from rank {peer}"
        message = f"rank {rank}: before step 0: {doing} failed: {first_line(error)}"
        raise CollectiveError(message, peer=peer) from error
    return [json.loads(bytes(row)) for row in texts.tolist()]


_LOG = logging.getLogger("collectives")
DEFAULT_TRANSPORT = "auto"
DEFAULT_SLOT_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class SharedBy:
    """The ranks of a group that share memory, from the view of one rank.

    local: the ranks that share with this one. on_one_host: whether all share.
    slot_bytes: of every segment; 0 if no two ranks share memory.
    """

    local: LocalRanks | None = None
    slot_bytes: int = 0
    on_one_host: bool = False

    def portion_bytes(self, schedule: Schedule) -> int | None:
        """Return the most bytes of a chunk in a portion, the same on all ranks. None: no limit; 0: nothing fits."""
        return portion_bytes(schedule, self.slot_bytes, self.on_one_host) if self.slot_bytes else None


NOT_SHARED = SharedBy()


class Sharing:
    """The shared memory of one rank of a group, which all ranks set up together.

    transport: as in `use_transport`.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.transport = os.environ.get(TRANSPORT, DEFAULT_TRANSPORT)
        self._shared: SharedBy | None = NOT_SHARED if group.size() == 1 else None

    def of(self, group: dist.ProcessGroup) -> SharedBy:
        """Return the ranks that share memory. The first call is collective.

        Raises ValueError, on all ranks, for different or wrong settings; CollectiveError if a rank exceeds the group's
        timeout.
        """
        if self._shared is None:
            self._shared = _connect_host(group, self.transport)
            if self._shared.local is not None:
                finalize(group, self._shared.local.close)
        return self._shared

    @property
    def is_known(self) -> bool:
        return self._shared is not None

    @property
    def first_gone(self) -> int | None:
        """The rank of this host that ended first, after a failure here; None if unknown."""
        return self._shared.local.first_gone if self._shared and self._shared.local else None


def transport_in_use(group: dist.ProcessGroup) -> str:
    """Return the transport of the chunks of `group`: "shm", "gloo", or "auto" if only some ranks share memory.

    Collective; raises the errors of `Sharing.of`.
    """
    shared = state_of(group).part(Sharing).of(group)
    if shared.on_one_host:
        return "shm"
    return "auto" if shared.slot_bytes else "gloo"


def use_transport(transport: str, group: dist.ProcessGroup | None = None) -> None:
    """Choose how the chunks of all collectives of `group` travel; call it on every rank, before the first of them.

    transport: "auto": through shared memory between ranks of a host that can share it, else by torch.distributed.
    "gloo": only torch.distributed. "shm": only shared memory; if some ranks cannot share it, the first collective
    raises ValueError on all. The default is the environment's COLLECTIVES_TRANSPORT, or else "auto".

    Raises ValueError for another transport, or if the group already uses one.

        >>> group = dist.new_group()
        >>> collectives.use_transport("gloo", group)
        >>> collectives.all_reduce(torch.ones(3), group=group)
    """
    group = resolve(group)
    sharing = state_of(group).part(Sharing)
    if transport not in TRANSPORTS:
        raise ValueError(f"transport {transport!r}: must be one of {', '.join(TRANSPORTS)}")
    if sharing.is_known and group.size() > 1:
        raise ValueError(f"transport {transport!r}: the group already has one; choose it before the first collective")
    sharing.transport = transport


def _connect_host(group: dist.ProcessGroup, transport: str) -> SharedBy:
    settings = Settings(transport, os.environ.get(SLOT, str(DEFAULT_SLOT_BYTES)))
    meeting, reason = _new_meeting(group, settings)
    host, local = this_host(), None
    with meeting or nullcontext():
        facts = exchange(group, (host, meeting.name if meeting else "", str(settings)))
        hosts, sockets, everywhere = zip(*facts, strict=True)
        settings.check(everywhere)
        try:
            local = _met(meeting, group, hosts, sockets) if meeting else None
        except OSError as error:
            reason = str(error)
    shared = NOT_SHARED
    if any(sockets):
        shared, reason = _agreed(group, host, local, reason, settings.slot_bytes)
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
    if reason := settings.why_not():
        return None, reason
    limit = time_limit_of(group)()
    try:
        # A rank whose meeting fails must reach `_agreed` while the others still wait there.
        return Meeting(group.rank(), settings.slot_bytes, min(MEETING_TIMEOUT_S, limit.seconds / 2)), ""
    except OSError as error:
        return None, f"cannot create a shared memory segment: {error}"


def _met(meeting: Meeting, group: dist.ProcessGroup, hosts: Sequence[str], names: Sequence[str]) -> LocalRanks | None:
    """Meet the ranks of this host. names: of their sockets, "" of ranks that cannot share."""
    own = group.rank()
    here = {rank: name for rank, name in enumerate(names) if rank != own and name and hosts[rank] == hosts[own] != ""}
    return LocalRanks(own, *meeting.meet(here), time_limit_of(group)) if here else None


def _agreed(
    group: dist.ProcessGroup, own_host: str, local: LocalRanks | None, reason: str, slot_bytes: int
) -> tuple[SharedBy, str]:
    """Return who shares memory, and why this rank does not; all ranks of a host share, or none.

    A rank that could not reach one does not know whether others could.
    """
    ranks = exchange(group, (own_host, local is not None, bool(reason)))
    failed = {host: rank for rank, (host, _, has_failed) in enumerate(ranks) if has_failed}
    if own_host in failed:
        if local is not None:
            local.close()
        local, reason = None, reason or f"rank {failed[own_host]} on this host cannot"
    sharing = Counter(host for host, shares, _ in ranks if shares and host not in failed)
    return SharedBy(local, slot_bytes if sharing else 0, group.size() in sharing.values()), reason
