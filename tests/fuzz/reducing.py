"""`reduced`: a smaller case that fails like a given one."""

import re
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from tests.fuzz.case import Case

CASE_LIMIT_S = 300.0  # a case that takes longer hangs; cases with processes have shorter limits of their own
MAX_TRIES = 200
MAX_REDUCING_S = 90.0


@dataclass(frozen=True)
class Fault:
    """How a case failed.

    signature: what is alike in faults of one cause: the first line of the message without its numbers.
    """

    message: str
    signature: str


def fault_of(case: Case, limit_s: float = CASE_LIMIT_S) -> Fault | None:
    """Run the case; how it failed, or None."""
    try:
        with _limit(limit_s):
            case.run()
    except AssertionError as error:
        message = str(error) or traceback.format_exc()
    except Exception:  # no case may end in anything else, so that is a fault, too
        message = traceback.format_exc().strip().splitlines()[-1] + "\n" + traceback.format_exc()
    else:
        return None
    return Fault(message, re.sub(r"[\d.]+", "#", message.splitlines()[0])[:150])


@contextmanager
def _limit(limit_s: float) -> Iterator[None]:
    """AssertionError in the block after so long. What was to be alarmed before (pytest-timeout) is so afterwards."""

    def alarm(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise AssertionError(f"hangs: not over after {limit_s:g} s")

    handler = signal.signal(signal.SIGALRM, alarm)
    left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left_s, interval_s)
        signal.signal(signal.SIGALRM, handler)


def reduced(case: Case, fault: Fault, max_s: float = MAX_REDUCING_S, max_tries: int = MAX_TRIES) -> tuple[Case, Fault]:
    """The smallest variant found of `case` that fails with the same signature, and how it fails.

    Greedy: goes on from the first smaller variant that fails; ends when none does, or at one of the limits.
    """
    end_s, tries = time.monotonic() + max_s, 0
    smaller = case.smaller()
    while tries < max_tries and time.monotonic() < end_s:
        variant = next(smaller, None)
        if variant is None:
            break
        tries += 1
        again = fault_of(variant)
        if again is not None and again.signature == fault.signature:
            case, fault, smaller = variant, again, variant.smaller()
    return case, fault
