"""Gather short rows of numbers, short texts and objects of all ranks, beside the collectives of a program."""

import zlib
from typing import Any

import torch
import torch.distributed as dist

from collectives.runtime.device_transport import home_of, new_buffer
from collectives.runtime.errors import naming_failures
from collectives.runtime.executor import Executor
from ringsim.registry import build
from ringsim.schedule import Collective


class RowAllGather:
    """Gathers a short row of numbers of every rank, in about the time of the smallest all_gather.

    Every rank asks every other, so that all can name a silent one.

    tag: of its messages, not that of the collectives: one rank's row must not be taken for another's data.
    """

    def __init__(self, group: dist.ProcessGroup, tag: int, length: int, dtype: torch.dtype) -> None:
        self._rank = group.rank()
        self._executor = Executor(build(Collective.ALL_GATHER, "direct", group.size()), group, tag=tag)
        self._rows = new_buffer(group.size() * length, dtype).view(group.size(), length)
        self._home = home_of(group)

    def gather(self, row: torch.Tensor) -> list[list[int]]:
        """Return every rank's row, by rank. Raises CollectiveError if one sends none within the group's timeout."""
        self._rows[self._rank] = row
        gathered = self._rows.to(self._home)  # themselves, on the CPU; else anew on the stream that is current now
        self._executor.run(gathered)
        rows: list[list[int]] = gathered.tolist()
        return rows


TEXT_BYTES = 256  # of each rank


class TextAllGather:
    """Gathers a short text of every rank. tag: as of `RowAllGather`."""

    def __init__(self, group: dist.ProcessGroup, tag: int) -> None:
        self._rows = RowAllGather(group, tag, TEXT_BYTES, torch.uint8)

    def gather(self, text: str) -> list[str]:
        """Return every rank's text, by rank. Raises CollectiveError if one sends none within the group's timeout."""
        own = _shortened(text.encode()).ljust(TEXT_BYTES)
        rows = self._rows.gather(torch.frombuffer(bytearray(own), dtype=torch.uint8))
        return [bytes(row).decode(errors="replace").rstrip() for row in rows]


def _shortened(text: bytes) -> bytes:
    """Return `text`, or its beginning and a checksum if it is too long."""
    return text if len(text) <= TEXT_BYTES else text[: TEXT_BYTES - 12] + f"... {zlib.crc32(text):08x}".encode()


def gather_objects(own: Any, group: dist.ProcessGroup, failed: str) -> list[Any]:
    """Return the objects of all ranks, by rank; collective.

    failed: the message of the CollectiveError if a peer fails, such as "gathering the results failed".
    """
    everywhere: list[Any] = [None] * group.size()
    with naming_failures(f"rank {group.rank()}: {failed}"):
        dist.all_gather_object(everywhere, own, group=group)
    return everywhere
