"""Ranks on this host without torchrun: `spawn` runs a function on each rank, `run_local_ranks` a program.

The ranks have torchrun's environment variables. Unlike torchrun's, a failure is one line, with the rank's exit code or
128 plus a signal's number, on which batch scripts rely. Importing this module loads no torch.
"""

import json
import multiprocessing
import os
import runpy
import shlex
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click

from ringsim.console.one_line import ERROR_FILE, MISTAKES, message_of, write_error_file
from ringsim.schedule import ScheduleError

HOST = "127.0.0.1"
START_METHOD = "spawn"
POLL_S = 0.1
MISTAKE = 2  # the exit code
STOPPING = (signal.SIGTERM, signal.SIGUSR1)
OURS = ("ringsim", "collectives", "trainers")


class RankFailure(NamedTuple):
    """The first failure of a run, and its message; "" if the rank has printed it."""

    code: int
    text: str = ""


def spawn(num_ranks: int, target: Callable[..., int | None], arguments: Sequence[Any] = (), stops: bool = False) -> int:
    """Run `target(*arguments)` on each rank, in its own process, until all have ended.

    target: a function at the top level of a module; its return value or exit status is the rank's exit code.
    stops: whether SIGTERM and SIGUSR1 are passed on to the ranks, which decide when to end. A rank begins with SIGUSR1
    blocked, and must enter a `StopRequest`.
    When a rank fails, the others are ended, and its error is printed once. Returns 0, the exit code of a rank that left
    by sys.exit, 1 if a rank failed, or 128 + n after the signal n. Must run in the main thread. Raises ValueError for a
    wrong number of ranks, and with the message of a rank that raised a user's mistake.

    >>> import time
    >>> from trainers import spawn
    >>> spawn(2, time.sleep, (0.1,))  # in a program: inside `if __name__ == "__main__":`
    0
    """
    try:
        failure = _run(num_ranks, target, arguments, STOPPING if stops else ())
    except KeyboardInterrupt as ended:
        return 128 + int(ended.args[0])
    if failure is not None and failure.text:
        click.echo(failure.text, err=True)
    return 0 if failure is None else failure.code


def run_local_ranks(num_ranks: int, arguments: Sequence[str], *, quiet: bool = False) -> None:
    """Run a Python program with `num_ranks` ranks on this host.

    arguments: a file and its arguments, or `-m` and a module, as for torchrun.
    quiet: discard the ranks' stdout, and make their stderr part of the error.
    Ctrl-C, SIGTERM and SIGHUP end the ranks and raise KeyboardInterrupt. Raises ValueError with the message by which
    the program refuses its options, and for other failures OSError if `quiet`, else click.exceptions.Exit.
    """
    with TemporaryDirectory() as folder:
        errors = Path(folder, "stderr")
        errors.touch()
        failure = _run(num_ranks, _run_program, (list(arguments), str(errors) if quiet else None))
        if failure is not None and quiet:
            said = "\n".join(filter(None, (errors.read_text(errors="replace").strip(), failure.text)))
            command = shlex.join(arguments)
            raise OSError(f"{command} on {num_ranks} ranks ended with exit code {failure.code}:\n{said}")
    if failure is not None:
        if failure.text:
            click.echo(failure.text, err=True)
        raise click.exceptions.Exit(failure.code)


def _run(
    num_ranks: int,
    target: Callable[..., int | None],
    arguments: Sequence[Any],
    passed_on: Sequence[signal.Signals] = (),
) -> RankFailure | None:
    """Run all ranks to their end; return the first failure.

    Raises KeyboardInterrupt with the number of the ending signal, and ValueError for a user's mistake.
    """
    if num_ranks < 1:
        raise ValueError(f"{num_ranks} ranks: there must be at least 1")
    if os.environ.get("RANK") or os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        starter = "torchrun" if os.environ.get("RANK") else "srun"
        raise ValueError(
            f"{num_ranks} ranks were requested, but {starter} has already started ranks: use only one of the two"
        )
    processes: list[BaseProcess] = []
    # Signals are noted, not raised, as an exception during the start of a process would lose the process.
    with endings_noted(*passed_on) as came, _reserved_port() as port, TemporaryDirectory() as folder:
        try:
            for rank in range(num_ranks):
                with _environment(_variables(rank, num_ranks, port, folder), {signal.SIGINT, *passed_on[1:]}):
                    context: Any = multiprocessing.get_context(START_METHOD)
                    processes.append(context.Process(target=_run_rank, args=(target, tuple(arguments))))
                    processes[-1].start()
            codes = _first_codes(processes, came, passed_on)
        finally:
            for process in processes:
                process.kill()  # a rank that treats SIGTERM as a stop request would wait for ranks that have ended
                process.join()
        return _failure(codes, came, folder) if codes else None


@contextmanager
def _reserved_port() -> Iterator[int]:
    """Yield a port that the system assigns to no other process, but on which rank 0 can listen."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        port = holder.getsockname()[1]
        if sys.platform != "linux":  # other systems let no two sockets have the port, even if only one listens
            holder.close()
        yield port


def _variables(rank: int, num_ranks: int, port: int, folder: str) -> dict[str, str]:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    texts = {name: str(value) for name, value in {**numbers, "GROUP_RANK": 0, "MASTER_PORT": port}.items()}
    if num_ranks > 1:
        texts["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")  # the ranks share the cores
    return {**texts, "MASTER_ADDR": HOST, ERROR_FILE: str(Path(folder, str(rank)))}


@contextmanager
def _environment(variables: Mapping[str, str], blocked: set[signal.Signals]) -> Iterator[None]:
    """Set the environment of processes that start in the block, and block signals in them.

    Ctrl-C in a terminal, which reaches the ranks too, would end each with a traceback.
    """
    before = dict(os.environ)
    resource_tracker.ensure_running()  # otherwise it would start with the first rank, and unblock the signals
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _first_codes(
    processes: Sequence[BaseProcess], came: Sequence[int], passed_on: Sequence[signal.Signals]
) -> dict[int, int]:
    """Wait until all ranks have ended or some failed; return nonzero exit codes by rank, -n after signal n."""
    num_heard = 0
    while True:
        running = [process for process in processes if process.exitcode is None]
        for number in came[num_heard:]:
            num_heard += 1
            if number not in passed_on:
                raise KeyboardInterrupt(number)
            for process in running:
                assert process.pid is not None
                os.kill(process.pid, number)
        codes = {rank: process.exitcode for rank, process in enumerate(processes) if process.exitcode}
        if codes or not running:
            return codes
        connection.wait([process.sentinel for process in running], POLL_S)


def _failure(codes: Mapping[int, int], came: Sequence[int], folder: str) -> RankFailure:
    """Return the cause: a rank that a signal ended, or else the first reported failure; others follow from it.

    Raises ValueError for a user's mistake.
    """
    for rank, code in codes.items():
        if -code in came:  # passed on before the rank was ready for it
            return RankFailure(128 - code)
        if code < 0:
            memory = "; the system may have run out of memory" if code == -signal.SIGKILL else ""
            return RankFailure(1, f"rank {rank} was ended by {signal.Signals(-code).name}{memory}")
    failures = [json.loads(file.read_text() or "{}") for file in Path(folder).iterdir()]
    ours = [failure for failure in failures if "exit_code" in failure]
    if not ours:
        return RankFailure(next(iter(codes.values())))
    first = min(ours, key=lambda failure: failure["timestamp"])
    failure = RankFailure(first["exit_code"], first["message"])
    if failure.text and failure.code == MISTAKE:
        raise ScheduleError(failure.text) if "\n" in failure.text else ValueError(failure.text)  # a grid has many lines
    return failure


def _run_rank(target: Callable[..., int | None], arguments: Sequence[Any]) -> None:
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    text = ""
    try:
        code = target(*arguments) or 0
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            click.echo(leaving.code, err=True)
        code = 1 if isinstance(leaving.code, str) else leaving.code or 0
    except BrokenPipeError:  # the reader of our output has closed the pipe
        code = 1
    except MISTAKES as error:
        code, text = MISTAKE, message_of(error)
    except Exception as error:
        is_ours = type(error).__module__.partition(".")[0] in OURS  # it says in a line what happened
        described = str(error) if is_ours else "".join(traceback.format_exception(error)).rstrip()
        code, text = 1, f"rank {os.environ['RANK']}: {described}"
    if code:
        write_error_file(text, code)
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        # Threads of a broken process group may still wait, and would abort a process that exits normally.
        os._exit(code)


def _leave_with_parent() -> None:
    """End this rank with its parent, which may be killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(128 + signal.SIGKILL)


def _run_program(arguments: Sequence[str], errors: str | None) -> None:
    """Run a program as Python does. errors: a file for its stderr; its stdout is then discarded."""
    if errors is not None:
        for descriptor, path in ((1, os.devnull), (2, errors)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
    is_module = arguments[0] == "-m"
    sys.argv = list(arguments[is_module:])
    sys.path.insert(0, os.getcwd() if is_module else str(Path(arguments[0]).resolve().parent))
    try:
        if is_module:
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(arguments[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)


ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def handling(numbers: Iterable[int], handler: Callable[[int, object], None]) -> Iterator[None]:
    """Call `handler` with number and frame when one of these signals arrives within the block.

    Ignored signals (nohup) stay ignored. Outside the main thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in numbers}
    before = {number: known for number, known in handlers.items() if known not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


@contextmanager
def ended_once() -> Iterator[None]:
    """Raise KeyboardInterrupt, with the signal's number, in the block at the first Ctrl-C, SIGTERM or SIGHUP.

    Later signals are ignored, and do not interrupt the clean-up.
    """
    is_ending = False

    def end(number: int, _: object) -> None:
        nonlocal is_ending
        if not is_ending:
            is_ending = True
            raise KeyboardInterrupt(number)

    with handling(ENDINGS, end):
        yield


@contextmanager
def endings_noted(*others: int) -> Iterator[list[int]]:
    """Yield a list that collects these signals, without other effect, while the block runs.

    For work that no exception may interrupt, such as starting a process that must be ended later.
    """
    came: list[int] = []
    with handling({*ENDINGS, *others}, lambda number, _: came.append(number)):
        yield came
