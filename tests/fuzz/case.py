"""`Case`: one thing that an attack tries; how it is drawn, written down and found to fail."""

import base64
import random
import re
import signal
import time
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from types import FrameType
from typing import Any, Protocol

from tests.budget import slowness

CASE_LIMIT_S = 300.0  # a case that takes longer hangs; cases with processes have shorter limits of their own
SLOWNESS = slowness()
TIMEOUT_S = 20.0 * SLOWNESS  # of groups: one rank may come so much later than another
HANGS_S = 60.0 * SLOWNESS  # of a case with processes, beyond its timeout
LONG = 500  # bytes; longer ones are described compressed


class Case(Protocol):
    """The result of an attack's `draw_case(random)`: a frozen dataclass."""

    def run(self) -> None:
        """Raise AssertionError if there is a fault."""


def chance(random: random.Random, share: float) -> bool:
    """Draw True in this share of the cases."""
    return random.random() < share


def describe(case: Case) -> str:
    """Return Python that runs the case again."""
    return f"from {type(case).__module__} import *\n{expression(case)}.run()"


def expression(value: Any) -> str:
    """Return a dataclass, a tuple or a plain value as a Python expression, without fields that have their default."""
    if isinstance(value, tuple):
        return f"({''.join(f'{expression(part)},' for part in value)})"
    if isinstance(value, bytes) and len(value) > LONG:
        return f'unpacked("{base64.b85encode(zlib.compress(value, 9)).decode()}")'
    if not is_dataclass(value):
        return repr(value)
    given = [(field.name, getattr(value, field.name)) for field in fields(value)]
    shown = [f"{name}={expression(part)}" for name, part in given if part != getattr(type(value), name, ...)]
    return f"{type(value).__name__}({', '.join(shown)})"


def unpacked(text: str) -> bytes:
    """Return the bytes that an expression holds compressed."""
    return zlib.decompress(base64.b85decode(text))


@dataclass(frozen=True)
class Fault:
    """How a case failed.

    signature: what is alike in faults of one cause: the first line of the message without its numbers.
    """

    message: str
    signature: str


def fault_of(case: Case, limit_s: float = CASE_LIMIT_S) -> Fault | None:
    """Run the case; return how it failed, or None."""
    try:
        with limited(limit_s, AssertionError(f"hangs: not over after {limit_s:g} s")):
            case.run()
    except AssertionError as error:
        message = str(error) or traceback.format_exc()
    except Exception:  # no case may end in anything else, so that is a fault, too
        message = traceback.format_exc().strip().splitlines()[-1] + "\n" + traceback.format_exc()
    else:
        return None
    return Fault(message, re.sub(r"[\d.]+", "#", message.splitlines()[0])[:150])


def simplest(case: Case, fault: Fault, end_s: float) -> tuple[Case, Fault]:
    """Leave out what the fault does not need, as long as the clock permits; the case and its fault."""
    for simpler in _simpler(case):
        if time.monotonic() > end_s:
            break
        if (found := fault_of(simpler)) and found.signature == fault.signature:
            return simplest(simpler, found, end_s)
    return case, fault


def _simpler(value: Any) -> Iterator[Any]:
    """Yield the value without one part of a tuple, or with the default of one field, at any depth."""
    if isinstance(value, tuple):
        for index, part in enumerate(value):
            yield (*value[:index], *value[index + 1 :])
            yield from ((*value[:index], other, *value[index + 1 :]) for other in _simpler(part))
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            own = getattr(value, field.name)
            defaults = [] if field.default in (MISSING, own) else [field.default]
            yield from (replace(value, **{field.name: other}) for other in (*defaults, *_simpler(own)))


@contextmanager
def limited(
    limit_s: float, error: BaseException, number: int = signal.SIGALRM, timer: int = signal.ITIMER_REAL
) -> Iterator[None]:
    """Raise the error in the block after so long; afterwards the alarm (of pytest-timeout) is as it was before."""

    def alarm(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise error

    handler = signal.signal(number, alarm)
    left_s, interval_s = signal.setitimer(timer, limit_s)
    try:
        yield
    finally:
        signal.setitimer(timer, left_s, interval_s)
        signal.signal(number, handler)
