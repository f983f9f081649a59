"""`Agreement`: whether all ranks are about to do the same, asked before they do it.

Without it a mismatch shows as it may: as an error of the transport on some ranks, a timeout on others, or, where the
bytes happen to fit, as a wrong sum.
"""

import zlib
from collections.abc import Sequence

import torch
import torch.distributed as dist

from collectives.execute import Executor
from ringsim.algorithms import build
from ringsim.collective import Collective

TAG = 0x53  # not that of the collectives: one rank's question must not be taken for another's data
LENGTH = 256  # bytes for the words of each rank


class MismatchError(ValueError):
    """The ranks of a group were about to do different things; nothing was done, and the group can still be used."""


class Agreement:
    """Asks all ranks of a group; takes about as long as the smallest all_gather.

    Everyone asks everyone, so that everyone can name the rank that says nothing.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._rank = group.rank()
        self._executor = Executor(build(Collective.ALL_GATHER, "direct", group.size()), group, tag=TAG)
        self._words = torch.zeros(group.size(), LENGTH, dtype=torch.uint8)

    def require(self, words: str) -> None:
        """Raise MismatchError, on every rank alike, unless all ranks give the same words.

        Raises CollectiveError if one says nothing within the group's timeout.
        """
        own = _of_length(words.encode()).ljust(LENGTH)
        self._words[self._rank] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        self._executor.run(self._words)
        said = [bytes(row.tolist()).decode(errors="replace").rstrip() for row in self._words]
        if len(set(said)) > 1:
            raise MismatchError(_differences(said))


def _of_length(words: bytes) -> bytes:
    """`words`, of which a sum stands for what is too long."""
    return words if len(words) <= LENGTH else words[: LENGTH - 12] + f"... {zlib.crc32(words):08x}".encode()


def _differences(said: Sequence[str]) -> str:
    """Which ranks said what."""
    ranks: dict[str, list[int]] = {}
    for rank, words in enumerate(said):
        ranks.setdefault(words, []).append(rank)
    parts = [f"{'rank' if len(some) == 1 else 'ranks'} {_list(some)}: {words}" for words, some in ranks.items()]
    return f"the ranks do not agree on what to do: {'; '.join(parts)}; all must call the same with the same"


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{', '.join(map(str, ranks[:8]))}, ..."
