"""Training runs that are killed, stopped and damaged between launches: they end as if nothing had been, or refuse."""

import os
import random
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.launcher import Launcher
from tests.fuzz.run_damage import KINDS, Damage
from tests.trainers import commands
from tests.trainers.commands import ranks_below, wait_for_steps
from trainers.checkpoints.output import read_log

TIMEOUT_S = 120.0  # of a launch, on a busy machine
ENDING_S = 30.0  # for processes to be gone after the launch has ended
STEPS, RANKS = 60, 2
STRATEGIES = ("ring", "bucketed", "ddp", "zero1", "zero3", "diloco/5", "powersgd/2")
HOWS = ("kill a rank", "kill the parent", "kill all", "terminate", "stop and continue", "nothing")


@dataclass(frozen=True)
class Round:
    """One launch, and what becomes of it and of its files.

    how: one of HOWS, done to `rank` after so many lines of the log and seconds. damages: to the files, afterwards.
    """

    how: str
    rank: int
    lines: int
    delay_s: float
    damages: tuple[Damage, ...]


@dataclass(frozen=True)
class DisturbedRun:
    """A run on two ranks that is launched once for each round, and at last without a disturbance."""

    strategy: str
    save_every: int
    keep: int
    rounds: tuple[Round, ...]

    def run(self) -> None:
        """Raise AssertionError if a run ends otherwise than the undisturbed one, without refusing."""
        expected = undisturbed(self.strategy)
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "run"
            arguments = f"--resume --save-every {self.save_every} --keep {self.keep} --output {output}".split()
            done: list[Damage] = []
            for disturbed in (*self.rounds, None):
                ended = launch(self.strategy, arguments, output, disturbed)
                judge(ended, disturbed, done)
                if ended.code == 2:
                    return
                done += [damage for damage in (disturbed.damages if disturbed else ()) if damage.do(output)]
            compare(result_of(output), expected, done, damaged=any(output.glob("log.jsonl.damaged*")))


def draw_case(random: random.Random) -> DisturbedRun:
    """Draw any disturbances."""
    return DisturbedRun(
        strategy=random.choice(STRATEGIES),
        save_every=random.randrange(1, 16),
        keep=random.randrange(1, 4),
        rounds=tuple(_round(random) for _ in range(random.choice((1, 1, 2)))),
    )


def _round(draw: random.Random) -> Round:
    damages = tuple(Damage(draw.choice(KINDS), draw.randrange(2**32)) for _ in range(draw.choice((0, 1, 1, 2))))
    delay_s = round(draw.random() / 20, 4)
    return Round(draw.choice(HOWS), draw.randrange(RANKS), draw.randrange(STEPS), delay_s, damages)


class Ended(NamedTuple):
    """How a launch ended, and what it said on stderr."""

    code: int
    errors: str


_LAUNCHER = Launcher()
close = _LAUNCHER.close


def launch(strategy: str, arguments: list[str], output: Path, disturbed: Round | None) -> Ended:
    """Start the command, disturb it, and wait until all its processes are gone."""
    task = f"--task tests.trainers.points:make_points --seed 3 --epochs 1000 --steps {STEPS} --log-every 1"
    command = [*task.split(), "--strategy", strategy, "--ranks", str(RANKS), *arguments]
    errors = output.with_name("errors")
    pid = _LAUNCHER.start(command, errors)
    try:
        if disturbed is not None:
            disturb(pid, disturbed, output / "log.jsonl")
        code = _LAUNCHER.wait(TIMEOUT_S)
        assert code is not None, f"{disturbed}: still running after {TIMEOUT_S:g} s: {errors.read_text()}"
        check_gone(pid, disturbed)
    except BaseException:
        _signal_group(pid, signal.SIGKILL)
        raise
    return Ended(code, errors.read_text())


def _signal_group(pid: int, number: int) -> bool:
    """Whether there is still somebody in it."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return False
    return True


def disturb(pid: int, disturbed: Round, log: Path) -> None:
    """As soon as the log has so many lines, or the run has ended."""
    wait_for_steps(log, disturbed.lines, lambda: _signal_group(pid, 0))
    time.sleep(disturbed.delay_s)
    ranks = sorted(ranks_below(pid))
    rank = ranks[disturbed.rank] if disturbed.rank < len(ranks) else pid
    blows = {
        "kill a rank": (rank, signal.SIGKILL), "kill the parent": (pid, signal.SIGKILL),
        "kill all": (-pid, signal.SIGKILL), "terminate": (pid, signal.SIGTERM),
        "stop and continue": (rank, signal.SIGSTOP),
    }  # fmt: skip
    with suppress(ProcessLookupError):
        if disturbed.how in blows:
            os.kill(*blows[disturbed.how])
        if disturbed.how == "stop and continue":
            time.sleep(0.5)
            os.kill(rank, signal.SIGCONT)


def check_gone(pid: int, disturbed: Round | None) -> None:
    """No rank outlives the launch for long."""
    deadline = time.monotonic() + ENDING_S
    while _signal_group(pid, 0):
        assert time.monotonic() < deadline, f"{disturbed}: processes are left {ENDING_S:g} s after its end"
        time.sleep(0.02)


def judge(ended: Ended, disturbed: Round | None, damages: list[Damage]) -> None:
    """Whether a launch may have ended so."""
    assert "Traceback" not in ended.errors, f"a traceback:\n{ended.errors}"
    if ended.code == 2:
        assert any(not damage.is_of_log for damage in damages), f"refused without a reason:\n{ended.errors}"
        refusals = [line for line in ended.errors.splitlines() if line.startswith("trainers: ")]
        assert len(refusals) == 1, f"not refused in one line:\n{ended.errors}"
        assert ended.errors.splitlines()[-1] == refusals[0], f"more said after the refusal:\n{ended.errors}"
    elif disturbed is None or disturbed.how in ("stop and continue", "nothing"):
        assert ended.code == 0, f"ended with exit code {ended.code}:\n{ended.errors}"


def compare(result: "Result", expected: "Result", damages: list[Damage], damaged: bool) -> None:
    """The model is the undisturbed one, bit for bit; so is the log, unless it was damaged: then some of it.

    damaged: whether a damaged log was kept.
    """
    assert result.fingerprint == expected.fingerprint, "the model is another one than that of the undisturbed run"
    own, others = dict(result.losses), dict(expected.losses)
    wrong = {step: loss for step, loss in own.items() if others.get(step) != loss}
    if not any(damage.is_of_log for damage in damages):
        assert own == others, f"the losses differ, first {min(wrong, default='in number')}"
        return
    assert len(own) == len(result.losses), "a step is logged twice"
    flipped = any(damage.kind == "flip bytes of the log" for damage in damages)
    assert not wrong or (flipped and damaged), f"losses differ at steps {sorted(wrong)}, and nothing was noticed"


class Result(NamedTuple):
    """fingerprint: of all parameters. losses: by step, as logged."""

    fingerprint: str
    losses: tuple[tuple[int, float | None], ...]


def result_of(output: Path) -> Result:
    """What a run left."""
    log = read_log(output / "log.jsonl")
    lines = tuple((line["step"], line.get("loss")) for line in log)  # a flipped byte of the key leaves no loss
    return Result(commands.result_of(output)["fingerprint"], lines)


@cache
def undisturbed(strategy: str) -> Result:
    """Of a run that nobody disturbs."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        ended = launch(strategy, ["--output", str(output)], output, None)
        assert ended.code == 0, ended.errors
        return result_of(output)
