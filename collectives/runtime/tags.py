"""How messages are told apart: by their `Tag`, and by the call of the group that they belong to.

The tag of a message keeps it apart from all others between the same two ranks. From the lowest bit on it holds

    8 bits   the `Tag`: what the message is for
    4 bits   the size class of the buffer that is preposted for it; 0 where none is (`preposted`)
    18 bits  the number of its call's fingerprint; 0 where it has none (`fingerprint`)
    1 bit    whether its call has a stamp that travels: in front of an eager message; of others the last 18 bits of the
             digest are in the tag, in the place of the number

A program's own sends and receives default to tag 0.
"""

from enum import IntEnum, unique
from typing import NamedTuple

SIZE_CLASS_SHIFT = 8
FINGERPRINT_SHIFT = 12
SIZE_CLASSES = (1 << FINGERPRINT_SHIFT - SIZE_CLASS_SHIFT) - 1
STAMPED = 1 << 30


@unique
class Tag(IntEnum):
    """The purpose of a message. Less than 256; programs with their own schedules may use any that is not here."""

    COLLECTIVE = 0x52  # the chunks of a collective
    FINGERPRINT = 0x53  # the words by which ranks compare their calls
    ALGORITHM_CHOICE = 0x54  # the name of the algorithm that rank 0 has chosen
    HOSTS = 0x55  # the names of the ranks' machines
    RECORDED_RUN = 0x58  # the chunks of a run that is recorded
    SHARED_MEMORY = 0x5A  # where a rank's shared memory is
    BLOCK_LENGTHS = 0x5B  # how many elements a rank sends to each other one, and expects
    CLOSED_CONNECTION = 0x59  # never sent: a receive with it fails if the connection to the peer is closed


def numbered_tag(tag: int, number: int, stamped: bool = False) -> int:
    """Return the tag of a collective whose call's fingerprint has that number. stamped: whether its stamp travels."""
    return tag + (number << FINGERPRINT_SHIFT) + (STAMPED if stamped else 0)


def digest_tag(tag: int, digest: int) -> int:
    """`tag`, of messages that are not eager, with as much of their call's digest as there is room for."""
    return tag & (1 << FINGERPRINT_SHIFT) - 1 | digest << FINGERPRINT_SHIFT & STAMPED - 1 | STAMPED


DIGEST_BITS = 62


class CallStamp(NamedTuple):
    """A call as its messages know it.

    number: of its fingerprint; 0 if it has none.
    position: which call of the group it is, the first being 1.
    digest: of the numbers of all calls up to this one, less than 2**DIGEST_BITS.
    travels: whether its messages carry position and digest.
    """

    number: int = 0
    position: int = 0
    digest: int = 0
    travels: bool = False


UNSTAMPED = CallStamp()  # of what is run outside of the group's calls
