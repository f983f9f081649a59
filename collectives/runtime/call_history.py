"""`CallHistory`: the calls that a rank has made of a group, one after the other, which all ranks must make alike.

In most collectives each rank needs something of every other one, so that ranks which disagree on them wait for each
other, and nothing goes wrong. In a *rooted* one, a broadcast or a reduce, a rank may be done that has only sent. If the
receiver calls something else meanwhile, its next call of that kind would find the message and take it for its own. So
messages of rooted collectives carry the stamp of their call, as do those of the call that comes after one: after that,
all ranks are known to have made the same calls.
"""

from collections import deque
from typing import NamedTuple

KEPT_CALLS = 64  # that an error can still name; ranks are rarely so many apart when they notice
DIGEST_BITS = 62
_MIXER = 6364136223846793005  # odd, so that histories which differ in one call never have the same digest


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


class CallHistory:
    """Keep the last calls of one rank of a group. `position`: the number of the call that it is in, or was in last."""

    def __init__(self) -> None:
        self.position = 0
        self._recent: deque[object] = deque(maxlen=KEPT_CALLS)
        self._digest = 0
        self._is_after_rooted = False

    def begin(self, call: object) -> None:
        """Another call begins."""
        self.position += 1
        self._recent.append(call)

    def withdraw(self) -> None:
        """The call that has begun last is refused, on all ranks."""
        self.position -= 1
        self._recent.pop()

    def stamp(self, number: int, is_rooted: bool) -> CallStamp:
        """Return the stamp of the call that began last."""
        self._digest = (self._digest * _MIXER + number + 1) % (1 << DIGEST_BITS)
        travels = is_rooted or self._is_after_rooted
        self._is_after_rooted = is_rooted
        return CallStamp(number, self.position, self._digest, travels)

    def in_words(self) -> list[str]:
        """The last calls, KEPT_CALLS at most; the last of them has `position`."""
        return list(map(str, self._recent))
