"""`Launcher`: the command `trainers`, started again and again by forking a process that has loaded torch already.

To load it takes each of a launch's three processes seconds. All else is as when a user starts it: a session of its
own, ranks of `trainers.launch.spawn`, and signals as they are by default. Run as `python -m tests.fuzz.launcher` it is
the process that forks: for each line with arguments it starts a launch, tells its number, and at its end the exit code.
The tests of the command use it as well.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PR_SET_PDEATHSIG = 1
NOWHERE = Path(os.devnull)
STRANGERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Launcher:
    """One launch at a time. Everything ends with `close`."""

    def __init__(self) -> None:
        ours = {name: value for name, value in os.environ.items() if name not in STRANGERS and "SLURM" not in name}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.launcher"],
            cwd=ROOT,
            env={**ours, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def start(self, arguments: list[str], errors: Path, output: Path = NOWHERE) -> int:
        """The number of the process, in a session of its own; its stderr goes to `errors`, its stdout to `output`."""
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps([arguments, str(errors), str(output)]) + "\n").encode())
        self._process.stdin.flush()
        return self._read()

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, -n after the signal n; None if it is still running after so long."""
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        return self._read() if ready else None

    def _read(self) -> int:
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):  # not readline, which might read more than `select` then sees
            piece = os.read(self._process.stdout.fileno(), 1)
            assert piece, "the launcher has ended"
            line += piece
        return int(line)

    def close(self) -> None:
        """No more launches."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Fork a launch for each line of stdin."""
    die_with(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C goes to all of a terminal; our parent ends us
    import torch._dynamo  # what an optimizer loads, too
    import torch.multiprocessing

    import trainers.loop.trainer  # noqa: F401
    from trainers.cli.group import main as command

    torch.multiprocessing.spawn = _fork_ranks
    for line in sys.stdin.buffer:
        arguments, errors, output = json.loads(line)
        begun, begin = os.pipe()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            die_with(parent)
            os.setsid()
            os.close(begun)
            os.close(begin)
            _launch(command, arguments, errors, output)
        os.close(begin)
        os.read(begun, 1)  # until it has a session of its own
        os.close(begun)
        _tell(pid)
        _tell(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _tell(number: int) -> None:
    os.write(1, f"{number}\n".encode())


def _launch(command: Any, arguments: list[str], errors: str, output: str) -> None:
    written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for target, (path, flags) in enumerate([(os.devnull, os.O_RDONLY), (output, written), (errors, written)]):
        os.dup2(os.open(path, flags), target)
    _forget_signals()
    code = 1
    try:
        command.main(args=arguments, prog_name="trainers")
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _fork_ranks(target: Callable[..., Any], arguments: Any, num_ranks: int, join: bool) -> Any:
    """As torch's spawn, but for the loading."""
    from torch.multiprocessing import start_processes

    return start_processes(_run, (target, *arguments), num_ranks, join=join, start_method="fork")


def _run(rank: int, target: Callable[..., Any], *arguments: Any) -> None:
    _forget_signals()
    target(rank, *arguments)


def _forget_signals() -> None:
    """What a process that is not forked would not have inherited."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended meanwhile
        os._exit(1)


if __name__ == "__main__":
    main()
