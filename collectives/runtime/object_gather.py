"""`ObjectAllGather`: a short text from every rank of a group to every other."""

import zlib

import torch
import torch.distributed as dist

from collectives.runtime.chunk_memory import new_buffer
from collectives.runtime.executor import Executor
from collectives.runtime.transport import home_of
from ringsim.registry import build
from ringsim.schedule import Collective

TEXT_BYTES = 256  # of each rank


class ObjectAllGather:
    """Takes about as long as the smallest all_gather. Everyone asks everyone, so that all can name the silent rank.

    tag: of its messages, not that of the collectives: one rank's text must not be taken for another's data.
    """

    def __init__(self, group: dist.ProcessGroup, tag: int) -> None:
        self._rank = group.rank()
        self._executor = Executor(build(Collective.ALL_GATHER, "direct", group.size()), group, tag=tag)
        self._texts = new_buffer(group.size() * TEXT_BYTES, torch.uint8).view(group.size(), TEXT_BYTES)
        self._home = home_of(group)

    def gather(self, text: str) -> list[str]:
        """Every rank's text, by rank. Raises CollectiveError if one sends none within the group's timeout."""
        own = _shortened(text.encode()).ljust(TEXT_BYTES)
        self._texts[self._rank] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        gathered = self._texts.to(self._home)  # themselves, on the CPU; else anew on the stream that is current now
        self._executor.run(gathered)
        return [bytes(row).decode(errors="replace").rstrip() for row in gathered.tolist()]


def _shortened(text: bytes) -> bytes:
    """`text`, of which a checksum stands for what is too long."""
    return text if len(text) <= TEXT_BYTES else text[: TEXT_BYTES - 12] + f"... {zlib.crc32(text):08x}".encode()
