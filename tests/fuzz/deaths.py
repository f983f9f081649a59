"""Ranks that die, stop or leave at random moments: the others finish with right results, or are told in time."""

import random
import re
import signal
import time
from dataclasses import dataclass, replace

from tests.forked import Answer, Leaving
from tests.fuzz.calls import Call
from tests.fuzz.case import HANGS_S, chance
from tests.fuzz.draws import call
from tests.fuzz.last_hours import Report, live, prepare
from tests.ranks import Ranks

TIMEOUT_S = 3.0  # of a group in which a rank is to be given up
PATIENCE_S = 30.0  # of a group in which nobody may be: the machine may be busy
PAUSE_S = 0.5
MANNERS = ("return", "sys.exit", "destroy", *["os._exit"] * 6)  # to end an interpreter takes seconds
TOLD = r"rank {rank}\b.*\b(step \d+|asking what|the last step)\b.*\brank \d+"  # others are asked before the first
GLOOS = "[/"  # how errors of Gloo's own begin, with the file
FIRST = "the first rank to stop responding was rank "
REFUSED = "an earlier collective of this group failed: "


class NotReadyError(AssertionError):
    """Ranks that were to be attacked did not come to it."""


@dataclass(frozen=True)
class Death:
    """A rank that dies in a job, or a job that just ends.

    way: "functions", the backend "ring" or DistributedDataParallel with our hook ("ddp"), of which a call is a step.
    how: "kill"; "stop" for longer than the timeout; "pause", which is shorter; "leave" in its manner; "none".
    moment: before call number `at` ("call") or send or receive number `at` ("transfer"), or after so many milliseconds.
    manners: how each rank leaves; as they come, over and over.
    delays: before transfers, in milliseconds at most.
    is_lent: whether tensors lie in memory that ranks share; not with "ring".
    """

    num_ranks: int = 2
    way: str = "functions"
    how: str = "none"
    victim: int = 0
    moment: str = "call"
    at: int = 0
    calls: tuple[Call, ...] = (Call(),)
    manners: tuple[str, ...] = ("os._exit",)
    delays: int = 0
    seed: int = 0
    is_lent: bool = False

    @property
    def timeout_s(self) -> float:
        """The group's."""
        return PATIENCE_S if self.all_must_finish else TIMEOUT_S

    @property
    def all_must_finish(self) -> bool:
        """Whether nobody is missed: all have waited for all collectives before they leave."""
        return self.how in ("none", "pause")

    def manner(self, rank: int) -> str:
        """How it leaves."""
        return self.manners[rank % len(self.manners)]

    def run(self) -> None:
        try:
            self._attack()
        except NotReadyError:  # Gloo and DDP set up within the group's timeout, which a busy machine may miss once
            self._attack()

    def _attack(self) -> None:
        with Ranks(self.num_ranks, self.timeout_s) as ranks:
            self._prepare(ranks)
            ranks.start(live, self)
            answers = self._watch(ranks)
            self._judge_answers(answers, ranks)
            self._judge_ends(answers, ranks)

    def _prepare(self, ranks: Ranks) -> None:
        """By itself, so that all are ready when the first one is gone."""
        ranks.start(prepare, self)
        ready = ranks.answers(range(self.num_ranks), HANGS_S + self.timeout_s)
        if len(ready) < self.num_ranks or not all(answer.good for answer in ready.values()):
            raise NotReadyError(f"ranks do not get ready\n{ready}\n{ranks.remains()}")

    def _watch(self, ranks: Ranks) -> dict[int, Answer]:
        """Wait for all answers; let a stopped rank go on after its time."""
        stopped_s, length_s = None, PAUSE_S if self.how == "pause" else self.timeout_s + 2
        end_s = time.monotonic() + HANGS_S + 2 * self.timeout_s
        answers: dict[int, Answer] = {}
        waiting = set(range(self.num_ranks))
        while waiting and time.monotonic() < end_s:
            ended = {rank for rank in waiting if ranks.processes[rank].has_ended}
            answers |= ranks.answers(sorted(waiting), 0.1)
            # On a busy machine 0.1 s may pass without a look; who has ended need not be waited for.
            answers |= ranks.answers(sorted(ended - answers.keys()), HANGS_S)
            waiting -= ended | answers.keys()
            if ranks.processes[self.victim].is_stopped:
                stopped_s = stopped_s or time.monotonic()
                if time.monotonic() > stopped_s + length_s:
                    ranks.signal(self.victim, signal.SIGCONT)
        return answers

    def _judge_answers(self, answers: dict[int, Answer], ranks: Ranks) -> None:
        silent = set(range(self.num_ranks)) - answers.keys()
        if self.how == "kill":
            silent.discard(self.victim)
        assert not silent, f"ranks hang, or are gone: {sorted(silent)}\n{ranks.remains(silent)}"
        unforeseen = [f"rank {rank}: {answer.value}" for rank, answer in answers.items() if not answer.good]
        assert not unforeseen, "unforeseen error\n" + "\n".join(unforeseen)
        reports = {rank: answer.value for rank, answer in answers.items()}
        for rank, report in sorted(reports.items()):
            self._judge_report(rank, report)
        self._judge_names([each.error for rank, each in sorted(reports.items()) if each.error and rank != self.victim])

    def _judge_names(self, errors: list[str]) -> None:
        """Whether survivors name the rank that was the first to go."""
        ours = [error for error in errors if not self._is_gloos(error)]
        if not ours or self.how not in ("kill", "leave"):
            return
        right = all(f"{FIRST}{self.victim}" in error for error in ours)
        told = "\n".join(errors)
        assert right, f"survivors do not name the rank that was the first to go, {self.victim}\n{told}"

    def _is_gloos(self, error: str) -> bool:
        """Whether it is of torch's own collectives, by which DDP talks about its buckets in its second step."""
        return self.way == "ddp" and error.startswith(GLOOS)

    def _judge_report(self, rank: int, report: Report) -> None:
        assert not report.problem, f"wrong result on a rank: {report.problem}\n    rank {rank}"
        if not report.error:
            return
        assert not self.all_must_finish, f"an error where nobody was missed\n    rank {rank}: {report.error}"
        told = re.search(TOLD.format(rank=rank), report.error)
        assert told or self._is_gloos(report.error), (
            f"an error that does not name rank, step and peer\n    rank {rank}: {report.error}"
        )
        late = report.error_s > self.timeout_s + HANGS_S / 2
        assert not late, f"an error long after the timeout\n    rank {rank}, {report.error_s:.1f} s: {report.error}"
        refused = REFUSED in report.refusal
        if self._is_gloos(report.error):  # who was stopped goes on, and shared memory is not Gloo's
            refused = refused or "failed: " in report.refusal or (self.how == "stop" and not report.refusal)
        assert refused, f"a broken group is used on\n    rank {rank}: {report.refusal or 'no error'}"

    def _judge_ends(self, answers: dict[int, Answer], ranks: Ranks) -> None:
        codes = self._codes(ranks)
        hangs = [rank for rank, code in enumerate(codes) if code is None]
        assert not hangs, f"ranks do not end\n    {hangs}, leaving by {self.manners}\n{ranks.remains()}"
        for rank, code in enumerate(codes):
            expected = []
            if rank in answers:
                expected.append(Leaving(None, self.manner(rank), answers[rank].value.exit_code).exit_code)
            if self.how == "kill" and rank == self.victim:  # perhaps on its way out
                expected.append(-signal.SIGKILL)
            assert code in expected, f"a wrong exit code\n    {code} of rank {rank}\n{ranks.remains()}"

    def _codes(self, ranks: Ranks) -> list[int | None]:
        """Exit codes; a rank that was stopped on its way out goes on."""
        end_s = time.monotonic() + HANGS_S
        while None in (codes := ranks.codes(0.2)) and time.monotonic() < end_s:
            if self.how in ("stop", "pause"):  # its clock may have stopped it only now
                ranks.signal(self.victim, signal.SIGCONT)
        return codes


def draw_case(random: random.Random) -> Death:
    """Draw any death."""
    num_ranks = random.choice([2, 3, 3, 4])
    way = random.choice(["functions", "functions", "ring", "ddp"])
    calls = tuple(_call(random, way) for _ in range(random.choice([1, 2, random.randint(2, 8)])))
    how = random.choice([*["kill"] * 6, *["leave"] * 3, *["none"] * 4, "pause", "stop"])
    moment = "call" if how == "leave" else random.choice(["call", "transfer", "transfer", "time"])
    most = {"call": len(calls), "transfer": 12 * len(calls), "time": 60}[moment]
    drawn = Death(num_ranks, way, how, random.randrange(num_ranks), moment, random.randint(0, most), calls)
    manners = tuple(random.choice(MANNERS) for _ in range(num_ranks))
    delays, seed = random.choice([0, 0, 2, 30]), random.randrange(10**6)
    return replace(drawn, manners=manners, delays=delays, seed=seed, is_lent=way != "ring" and chance(random, 0.5))


def _call(random: random.Random, way: str) -> Call:
    if way == "ddp":
        return Call(algorithm=random.choice(["", "halving_doubling", "two_shot"]))
    while True:
        drawn = call(random)
        if not drawn.may_be_refused and drawn.algorithm != "auto":
            break
    if way == "ring":
        drawn = replace(drawn, through="dist", algorithm="", wire="")
        plain = {"layout": "plain", "input_layout": drawn.input_layout if drawn.input_layout == "in place" else "plain"}
        drawn = replace(drawn, **plain)
    return drawn
