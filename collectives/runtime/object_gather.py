"""`Exchange`: a few words from every rank of a group to every other."""

import zlib

import torch
import torch.distributed as dist

from collectives.runtime.executor import Executor
from collectives.runtime.transport import home_of
from ringsim.registry import build
from ringsim.schedule import Collective

LENGTH = 256  # bytes for the words of each rank


class Exchange:
    """Takes about as long as the smallest all_gather. Everyone asks everyone, so that all can name the silent rank.

    tag: of its messages, not that of the collectives: one rank's words must not be taken for another's data.
    """

    def __init__(self, group: dist.ProcessGroup, tag: int) -> None:
        self._rank = group.rank()
        self._executor = Executor(build(Collective.ALL_GATHER, "direct", group.size()), group, tag=tag)
        self._words = torch.zeros(group.size(), LENGTH, dtype=torch.uint8)
        self._home = home_of(group)

    def all(self, words: str) -> list[str]:
        """What every rank says, by rank. Raises CollectiveError if one says nothing within the group's timeout."""
        own = _of_length(words.encode()).ljust(LENGTH)
        self._words[self._rank] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        all_words = self._words.to(self._home)  # themselves, on the CPU; else anew on the stream that is current now
        self._executor.run(all_words)
        return [bytes(row).decode(errors="replace").rstrip() for row in all_words.tolist()]


def _of_length(words: bytes) -> bytes:
    """`words`, of which a sum stands for what is too long."""
    return words if len(words) <= LENGTH else words[: LENGTH - 12] + f"... {zlib.crc32(words):08x}".encode()
