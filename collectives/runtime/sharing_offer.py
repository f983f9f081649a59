"""`Offer`: what a rank tells the others before they share memory: where it runs, and how it is to be found there."""

import json
import os
import platform
import socket
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from collectives.runtime.errors import CollectiveError, disagreement, first_line
from collectives.runtime.tags import Tag
from collectives.runtime.transport import CPU, time_limit_of
from ringsim.files import shortened
from ringsim.units import whole_number

BOOT = Path("/proc/sys/kernel/random/boot_id")  # one for each running kernel, whatever its hosts are called
NAMESPACE = Path("/proc/self/ns/net")  # containers of one machine have one each, and so interfaces of their own


def machine_name() -> str:
    """Return the same for all processes of a machine."""
    return BOOT.read_text().strip() if BOOT.exists() else socket.gethostname()


def namespace_name() -> str:
    """Return the same for all processes that have the same network interfaces."""
    return str(NAMESPACE.readlink()) if NAMESPACE.exists() else socket.gethostname()


TRANSPORT, SLOT = "COLLECTIVES_TRANSPORT", "COLLECTIVES_SHM_SLOT_BYTES"  # in the environment
TRANSPORTS = ("auto", "gloo", "shm")
MIN_SLOT_BYTES, MAX_SLOT_BYTES = 4096, 2**30  # all ranks of a host take twice as much at once
MAX_SETTINGS = 120  # characters that ranks are told of each other's settings
_TEXT_BYTES = 512


class Offer(NamedTuple):
    """The facts that a rank tells all others before they meet.

    host: the same for processes that can reach each other's sockets. name: of its socket; empty if it cannot share.
    settings: how it is to be done, the same on all ranks.
    """

    host: str
    name: str
    settings: str


class Settings(NamedTuple):
    """The settings of a rank, which must be the same on all ranks.

    slot_text: the size of a slot in bytes, as the environment has it.
    """

    transport: str
    slot_text: str

    def __str__(self) -> str:
        return _on_one_line(f"transport {self.transport}, {SLOT} {self.slot_text}")

    @property
    def slot_bytes(self) -> int:
        """The size of a slot in bytes; 0 if `slot_text` is no whole number, or is out of the permitted range."""
        slot_bytes = whole_number(self.slot_text) or 0
        return slot_bytes if MIN_SLOT_BYTES <= slot_bytes <= MAX_SLOT_BYTES else 0

    def why_not(self) -> str:
        """Return why this process does not share memory with other ranks, for a message; "" if it does."""
        if self.transport not in ("auto", "shm"):
            return f"the transport is {self.transport}"
        if not self.slot_bytes:
            return f"{SLOT} is {self.slot_text}"
        if not sys.platform.startswith("linux") or not hasattr(os, "memfd_create"):
            return "only Linux has memfd_create"
        if platform.machine() not in ("x86_64", "AMD64"):
            # Others may let a reader see a stamp before what was written before it.
            return f"{platform.machine()} does not keep the order of writes"
        return ""

    def check(self, offers: Sequence[Offer]) -> None:
        """Raise ValueError if the settings of the ranks differ, or if a value is not permitted; on all ranks alike.

        offers: of all ranks, by rank.
        """
        if different := disagreement([(rank, offer.settings) for rank, offer in enumerate(offers)], "how to send"):
            raise ValueError(f"{different}; set the same values on all ranks")
        if self.transport not in TRANSPORTS:
            raise ValueError(f"{TRANSPORT}={_on_one_line(self.transport)}: must be one of {', '.join(TRANSPORTS)}")
        if not self.slot_bytes:
            limits = f"must be a number of bytes from {MIN_SLOT_BYTES} to {MAX_SLOT_BYTES}"
            raise ValueError(f"{SLOT}={_on_one_line(self.slot_text)}: {limits}")


def _on_one_line(text: str) -> str:
    """Return a value that a user has set so that it fits a message: on one line, in ASCII, and not too long."""
    plain = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text)
    return shortened(plain, MAX_SETTINGS)


def this_host() -> str:
    """Return a name of this machine, network namespace and user; "" where the system does not tell them.

    Processes with the same name can connect to each other's Unix sockets.
    """
    try:
        known = BOOT.exists() and NAMESPACE.exists()
        return f"{machine_name()} {namespace_name()} {os.geteuid()}" if known else ""
    except OSError:
        return ""


def exchange(group: dist.ProcessGroup, facts: Sequence[Any]) -> list[list[Any]]:
    """Return the facts of every rank, by rank. Raises CollectiveError, which names a rank that is gone or says nothing.

    Not by `TextAllGather`, whose executor asks first who shares memory.
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
