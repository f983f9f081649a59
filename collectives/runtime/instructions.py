"""`Script`: all that a rank does in a run, line by line, known before it runs.

What it waits for hangs on the schedule alone, never on when things happen, so it is worked out once for all runs.
"""

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from ringsim.schedule import NEVER, RankProgram, Receive, Send

POSTED_AHEAD = 2  # receives posted beyond the one being waited for


class Do(IntEnum):
    """What a line says, of a receive or of a send."""

    POST = 0  # say where it may land
    ARRIVE = 1  # wait until it has
    APPLY = 2  # write it into its chunk
    FREE = 3  # what it landed in may be used again
    SEND = 4
    LEAVE = 5  # wait until it has left
    LAUNCH = 6  # in a batched script: all that was said to be posted and sent


class Line(NamedTuple):
    """One thing to do.

    which: of the receive in `RankProgram.receives`, or of the send in `RankProgram.sends`; of LAUNCH, the step.
    """

    do: Do
    which: int


def script_of(program: RankProgram) -> tuple[Line, ...]:
    """Everything a rank does, in order: each receive and send once with each word that is said of it."""
    return tuple(_Writer(program).lines)


def batched_script_of(program: RankProgram) -> tuple[Line, ...]:
    """The same, step by step: all receives and sends of a step are launched together, and then waited for together.

    A rank waits in a step only for ranks that wait in earlier ones, so it cannot deadlock; and what is sent is what
    the chunks held before the step, as the rule asks.
    """
    receives: dict[int, list[int]] = {}
    sends: dict[int, list[int]] = {}
    for index, receive in enumerate(program.receives):
        receives.setdefault(receive.step, []).append(index)
    for index, send in enumerate(program.sends):
        sends.setdefault(send.step, []).append(index)
    lines = []
    for step in sorted({*receives, *sends}):
        lines += [Line(Do.POST, index) for index in receives.get(step, [])]
        lines += [Line(Do.SEND, index) for index in sends.get(step, [])]
        lines.append(Line(Do.LAUNCH, step))
        lines += [Line(Do.ARRIVE, index) for index in receives.get(step, [])]
        lines += [Line(Do.LEAVE, index) for index in sends.get(step, [])]
        lines += [Line(Do.APPLY, index) for index in receives.get(step, [])]
    return tuple(lines)


def num_apart_in_a_step(program: RankProgram) -> int:
    """How many receives of a step land apart, at most."""
    return max(Counter(receive.step for receive in program.receives if receive.lands_apart).values(), default=0)


def num_apart(program: RankProgram) -> int:
    """How many receives that land apart are posted and not yet applied, at most."""
    receives = program.receives
    return max(
        (sum(r.lands_apart for r in receives[index : _horizon(receives, index)]) for index in range(len(receives))),
        default=0,
    )


class _Writer:
    """Goes through the program as the rank will."""

    def __init__(self, program: RankProgram) -> None:
        self.lines: list[Line] = []
        self._receives = program.receives
        self._posted = 0
        self._sends: list[Send] = []
        self._under_way: list[int] = []
        if program.receives:
            self._post(0, before_sending=True)
        self._send(program.first_sends)
        for index, receive in enumerate(program.receives):
            self._post(index)
            self._add(Do.ARRIVE, index)
            self._leave(
                [sent for sent in self._under_way if self._sends[sent].step <= receive.buffer_dependency]
            )  # rule 4
            self._add(Do.APPLY, index)
            self._send(receive.then_send)
            self._add(Do.FREE, index)  # only now: the others wait for what is sent
        self._leave(self._under_way)

    def _add(self, do: Do, index: int) -> None:
        self.lines.append(Line(do, index))

    def _post(self, applied: int, before_sending: bool = False) -> None:
        """Post the receives up to the horizon of the one to be applied next, as far as they can be.

        before_sending: even the first sends are yet to be issued, so nothing may land where they read.
        """
        for receive in self._receives[self._posted : _horizon(self._receives, applied)]:
            if not receive.lands_apart:
                if before_sending and receive.sent_in != NEVER:
                    return
                if applied < receive.last_user or receive.sent_in > self._receives[applied].step:
                    return
                # Rule 4. To wait for a send here is safe: no step before its own is left to apply here, and all
                # receives of that step are posted, so its receiver needs nothing more from this rank to take it.
                self._leave([sent for sent in self._under_way if self._sends[sent].chunk == receive.chunk])
            self._add(Do.POST, self._posted)
            self._posted += 1

    def _send(self, sends: Sequence[Send]) -> None:
        for send in sends:
            self._add(Do.SEND, len(self._sends))
            self._under_way.append(len(self._sends))
            self._sends.append(send)

    def _leave(self, sent: Sequence[int]) -> None:
        for index in sent:
            self._add(Do.LEAVE, index)
        self._under_way = [index for index in self._under_way if index not in sent]


def _horizon(receives: Sequence[Receive], applied: int) -> int:
    """How many receives to have posted before the one numbered `applied` is waited for.

    At least all of its step: rule 4 makes a rank wait for its own sends of this step, and so does every
    peer, each of which therefore must find its receive posted.
    """
    horizon = applied
    while horizon < len(receives) and (
        horizon <= applied + POSTED_AHEAD or receives[horizon].step == receives[applied].step
    ):
        horizon += 1
    return horizon
