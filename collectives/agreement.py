"""`Agreement`: whether all ranks are about to do the same, asked before they do it.

Without it a mismatch shows as it may: as an error of the transport on some ranks, a timeout on others, or, where the
bytes happen to fit, as a wrong sum.
"""

from collections.abc import Sequence

import torch.distributed as dist

from collectives.exchange import Exchange

TAG = 0x53


class MismatchError(ValueError):
    """The ranks of a group were about to do different things; nothing was done, and the group can still be used."""


class Agreement:
    """Asks all ranks of a group; takes about as long as the smallest all_gather."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._exchange = Exchange(group, TAG)

    def require(self, words: str) -> None:
        """Raise MismatchError, on every rank alike, unless all ranks give the same words.

        Raises CollectiveError if one says nothing within the group's timeout.
        """
        said = self._exchange.all(words)
        if len(set(said)) > 1:
            raise MismatchError(_differences(said))


def _differences(said: Sequence[str]) -> str:
    """Which ranks said what."""
    ranks: dict[str, list[int]] = {}
    for rank, words in enumerate(said):
        ranks.setdefault(words, []).append(rank)
    parts = [f"{'rank' if len(some) == 1 else 'ranks'} {_list(some)}: {words}" for words, some in ranks.items()]
    return f"the ranks do not agree on what to do: {'; '.join(parts)}; all must call the same with the same"


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{', '.join(map(str, ranks[:8]))}, ..."
