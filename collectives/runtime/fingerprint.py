"""`FingerprintCheck`: whether all ranks call the same collective, asked when a call is new to the group.

Each call has a fingerprint: which collective, of how many elements of which dtype, by which operation and algorithm.
The first time that a rank makes a call with some fingerprint, all ranks compare theirs before anything else is sent.
From then on the fingerprint has a number, the same on all ranks, which is part of the tag of each of its messages. So
calls with known fingerprints cost nothing more, and if ranks disagree about them, no message is taken for another's.
"""

from enum import Enum
from typing import NamedTuple

import torch
import torch.distributed as dist

from collectives.runtime.errors import CollectiveError
from collectives.runtime.failure_records import disagreement
from collectives.runtime.object_gather import Exchange

TAG = 0x53
UNNUMBERED = 0  # of calls whose fingerprints are not known by a number
MAX_KNOWN = 4096  # fingerprints; what comes after them is compared on every call


class MismatchError(ValueError):
    """The ranks of a group were about to do different things; nothing was done, and the group can still be used."""


class CallCheck(Enum):
    """Which calls of a group are compared before they are carried out."""

    NEW = "those with a fingerprint that the group has not seen yet"
    EVERY = "all"
    NONE = "none"


class Fingerprint(NamedTuple):
    """What all ranks must call alike.

    name: of the collective.
    num_elements: of the tensor that is reduced, passed on or gathered; of one rank's share where `details` say so.
    details: what else matters, in words once they are put together.
    root: of the group; None where there is none.
    """

    name: str
    num_elements: int
    dtype: torch.dtype
    details: tuple[object, ...] = ()
    algorithm: str = ""
    root: int | None = None

    def __str__(self) -> str:
        rooted = "" if self.root is None else f", root {self.root}"
        elements = f"{self.num_elements} elements of {self.dtype}"
        return f"{self.name} of {elements}{''.join(map(str, self.details))}{rooted}, algorithm {self.algorithm}"


class FingerprintCheck:
    """That of one rank of a group, which keeps the fingerprints that all ranks are known to have had.

    The ranks of a group make its calls in one order, so that all number the fingerprints alike.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._rank = group.rank()
        self._exchange = Exchange(group, TAG)
        self._known: dict[Fingerprint, int] = {}

    def number(self, fingerprint: Fingerprint, check: CallCheck) -> int:
        """The number of `fingerprint`; UNNUMBERED if it has none.

        Raises MismatchError, on every rank alike, if the ranks compare their fingerprints and they differ;
        CollectiveError if one says nothing within the group's timeout.
        """
        if check is CallCheck.NONE:
            return UNNUMBERED
        known = self._known.get(fingerprint)
        if known is not None and check is CallCheck.NEW:
            return known
        self.compare(str(fingerprint))
        if known is None and len(self._known) < MAX_KNOWN:
            known = self._known[fingerprint] = len(self._known) + 1
        return known or UNNUMBERED

    def compare(self, words: str) -> None:
        """Raise MismatchError, on every rank alike, unless all ranks give the same words."""
        try:
            different = disagreement(list(enumerate(self._exchange.all(words))))
        except CollectiveError as error:
            error.args = (f"rank {self._rank}: {words}: comparing this call with the other ranks' failed: {error}",)
            raise
        if different:
            raise MismatchError(f"{different}; all must call the same with the same")
