"""`FingerprintCheck`: whether all ranks of a group make the same calls.

All ranks compare a fingerprint that is new to the group before anything else is sent. It then has a number, the same on
all ranks and part of each message's tag, which tells the messages of calls apart.

In a *rooted* collective (broadcast, reduce) a rank that only sends may be done while the receiver calls something else,
whose next such call would take the message. Messages of rooted collectives, and of the call after one, therefore carry
their call's stamp.
"""

import zlib
from collections import deque
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from msgspec import Struct
from torch._C._distributed_c10d import DebugLevel, get_debug_level

from collectives.runtime.backends import CPU, has_backend, home_of, new_buffer
from collectives.runtime.errors import CollectiveError, disagreement, naming_failures
from collectives.runtime.executor import Executor
from collectives.runtime.group_state import resolve, state_of
from collectives.runtime.messages import DIGEST_BITS, CallStamp, Tag
from ringsim.registry import build
from ringsim.schedule import Collective


class RowAllGather:
    """Gathers a short row of numbers from every rank, about as fast as the smallest all_gather.

    Every rank receives from every other, so that its CollectiveError, after the group's timeout, names an unresponsive
    rank. tag: not the collectives'.
    """

    def __init__(self, group: dist.ProcessGroup, tag: int, length: int, dtype: torch.dtype) -> None:
        self._rank = group.rank()
        self._executor = Executor(build(Collective.ALL_GATHER, "direct", group.size()), group, tag=tag)
        self._rows = new_buffer(group.size() * length, dtype).view(group.size(), length)
        self._home = home_of(group)

    def gather(self, row: torch.Tensor) -> list[list[int]]:
        self._rows[self._rank] = row
        gathered = self._rows.to(self._home)  # themselves, on the CPU; else anew on the stream that is current now
        self._executor.run(gathered)
        rows: list[list[int]] = gathered.tolist()
        return rows


TEXT_BYTES = 256  # of each rank


class TextAllGather:
    """Gathers a short text from every rank, like `RowAllGather`."""

    def __init__(self, group: dist.ProcessGroup, tag: int) -> None:
        self._rows = RowAllGather(group, tag, TEXT_BYTES, torch.uint8)

    def gather(self, text: str) -> list[str]:
        own = text.encode()
        if len(own) > TEXT_BYTES:
            own = own[: TEXT_BYTES - 12] + f"... {zlib.crc32(own):08x}".encode()
        rows = self._rows.gather(torch.frombuffer(bytearray(own.ljust(TEXT_BYTES)), dtype=torch.uint8))
        return [bytes(row).decode(errors="replace").rstrip() for row in rows]


def gather_objects(own: Any, group: dist.ProcessGroup, failed: str) -> list[Any]:
    """Return the objects of all ranks, by rank; collective.

    failed: the message of the CollectiveError if a peer fails.
    """
    everywhere: list[Any] = [None] * group.size()
    with naming_failures(f"rank {group.rank()}: {failed}"):
        dist.all_gather_object(everywhere, own, group=group)
    return everywhere


UNNUMBERED = 0  # of calls whose fingerprints are not known by a number
MAX_KNOWN = 4096  # fingerprints; what comes after them is compared on every call
KEPT_CALLS = 64  # that an error can name; ranks rarely differ by more when they notice
_MIXER = 6364136223846793005  # odd, so that histories which differ in one call never have the same digest


class MismatchError(ValueError):
    """The ranks of a group were about to do different things; nothing was done, and the group can still be used.

    All ranks raise it, and the message lists the call of each.

        >>> try:
        ...     collectives.all_reduce(torch.ones(70 + rank))  # new lengths
        ... except collectives.MismatchError as error:
        ...     print(str(error).partition(":")[0])
        the ranks do not agree on what to do
    """


class CallCheck(Enum):
    """Which calls of a group are compared, over all its ranks, before they are carried out.

    A fingerprint consists of collective, number of elements, dtype, operation, algorithm and root.

        >>> collectives.check_calls(check=collectives.CallCheck.NEW)
    """

    NEW = "those with a fingerprint that the group has not seen yet"
    EVERY = "all"
    NONE = "none"


class Fingerprint(Struct, frozen=True):
    """The description of a call that must be the same on all ranks.

    num_elements: of the tensor, or of one rank's share if `details` say so; None if it may differ.
    details: everything else, as words. root: a rank of the group, if any.
    """

    name: str
    num_elements: int | None
    dtype: torch.dtype
    details: tuple[object, ...] = ()
    algorithm: str = ""
    root: int | None = None

    def __str__(self) -> str:
        rooted = "" if self.root is None else f", root {self.root}"
        elements = f"{'' if self.num_elements is None else f'{self.num_elements} '}elements of {self.dtype}"
        return f"{self.name} of {elements}{''.join(map(str, self.details))}{rooted}, algorithm {self.algorithm}"


class FingerprintCheck:
    """The call check of one rank of a group, with the fingerprints common to all ranks.

    All ranks make a group's calls in one order, and therefore number the fingerprints alike.

    mode: the calls to compare, from the next one on.
    position: the number of the current or last call, from 1.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.mode = default_check(group)
        self._rank = group.rank()
        self._texts = TextAllGather(group, Tag.FINGERPRINT)
        self._known: dict[Fingerprint, int] = {}
        self.position = self._digest = 0
        self.recent: deque[Fingerprint] = deque(maxlen=KEPT_CALLS)
        self._is_after_rooted = False

    def stamp(self, fingerprint: Fingerprint, check: CallCheck) -> CallStamp:
        self.position += 1
        self.recent.append(fingerprint)
        try:
            number = self._number(fingerprint, check)
        except MismatchError:  # the call is refused, on all ranks
            self.position -= 1
            self.recent.pop()
            raise
        self._digest = (self._digest * _MIXER + number + 1) % (1 << DIGEST_BITS)
        is_rooted, was_rooted = fingerprint.root is not None, self._is_after_rooted
        self._is_after_rooted = is_rooted
        return CallStamp(number, self.position, self._digest, travels=is_rooted or was_rooted)

    def _number(self, fingerprint: Fingerprint, check: CallCheck) -> int:
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
        """Compare `words` over all ranks.

        Raises MismatchError, on every rank, if they differ; CollectiveError if a rank does not answer.
        """
        try:
            different = disagreement(list(enumerate(self._texts.gather(words))))
        except CollectiveError as error:
            asked = "the other ranks call" if error.peer is None else f"rank {error.peer} calls"
            cause = str(error.__cause__ if error.flight_record else error).splitlines()[0]
            error.args = (f"rank {self._rank}: before {words}: asking what {asked} failed: {cause}",)
            raise
        if different:
            raise MismatchError(f"{different}; all ranks must make the same call with the same arguments")


def default_check(group: dist.ProcessGroup) -> CallCheck:
    """Return which calls of `group` are compared unless `check_calls` is called.

    NONE without a backend for the CPU, which would otherwise wait for the device, unexpectedly on NCCL.
    """
    if group.size() == 1:
        return CallCheck.NONE
    if get_debug_level() != DebugLevel.OFF:
        return CallCheck.EVERY
    return CallCheck.NEW if has_backend(group, CPU) else CallCheck.NONE


def check_calls(group: dist.ProcessGroup | None = None, check: CallCheck = CallCheck.EVERY) -> None:
    """Compare the calls of all ranks of `group` that `check` selects, before they are carried out, from now on.

    check: the same on every rank. A group's default is NEW; NONE without a backend for the CPU; EVERY with
    TORCH_DISTRIBUTED_DEBUG=INFO or DETAIL. If calls differ, all ranks raise MismatchError; if a rank makes no call, all
    others name it after the group's timeout. A comparison takes as long as a small collective.

    With NEW, ranks that mix up known calls raise CollectiveError, after the timeout at the latest, with the calls that
    they have made.

        >>> collectives.check_calls(check=collectives.CallCheck.EVERY)
        >>> collectives.check_calls(check=collectives.CallCheck.NEW)
    """
    group = resolve(group)
    state_of(group).part(FingerprintCheck).mode = check if group.size() > 1 else CallCheck.NONE
