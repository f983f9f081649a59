"""`spawn`: several ranks on this host without torchrun, in the environment that torchrun would give them.

Everything after it is the same code as under torchrun. Torch's agent does not serve here, as it ends with a page of
traceback and exit code 1 whatever has happened: with `spawn` the error of a rank is one line, and the exit code that of
the rank, or 128 plus the number of a signal, on which batch scripts rely. Importing this loads no torch.
"""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import click

from ringsim.console import MISTAKES, message_of
from ringsim.schedule import ScheduleError
from trainers.launch import slurm
from trainers.launch.rendezvous import HOST, loopback_store
from trainers.launch.signals import Interrupted, Interruption, StopRequest, blocking

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

GRACE_S = 10.0  # for a rank to end after SIGTERM; then it is killed
FAILURE = "trainers/failure"  # where in the store the first rank that fails says why
MISTAKE = 2  # the exit code
OURS = ("ringsim", "collectives", "trainers")


def spawn(
    num_ranks: int,
    target: Callable[..., int | None],
    arguments: Sequence[Any] = (),
    stop: StopRequest | None = None,
) -> int:
    """Run `target(*arguments)` on each rank, in its own process; when this returns, all of them have ended.

    target: a function at the top level of a module; what it returns, or exits with, is the rank's exit code.
    stop: what SIGTERM and SIGUSR1 then do is up to the ranks, which get them from here. A rank begins with SIGUSR1
    blocked, and must enter its own StopRequest.

    When a rank fails, the others are ended, and its error is shown, once. The result is 0 if all is well, the exit code
    of a rank that left by sys.exit (it has said why), 1 if a rank failed, 128 + n after the signal n.

    Raises ValueError for a wrong number of ranks, and with the words of a rank that raised what OneLineCommand takes
    for a user's mistake.

    >>> import sys, time
    >>> from trainers import spawn
    >>> spawn(2, time.sleep, (0.1,))  # in a program: inside `if __name__ == "__main__":`
    0
    >>> spawn(2, sys.exit, (5,))
    5
    """
    _check(num_ranks, os.environ)
    before = multiprocessing.active_children()
    with Interruption() as interruption:  # torch is loaded in it: a Ctrl-C in the midst of that may be swallowed there
        try:
            store = loopback_store(0)  # on a port that the system chooses, and nobody else can take
            processes = _start(num_ranks, (num_ranks, store.port, target, tuple(arguments)), stop is not None)
            interruption.allow()
            with stop.passing_on(processes) if stop else nullcontext():
                failures = _first_failures(processes)
            interruption.hold()
        except Interrupted as interrupted:
            return 128 + interrupted.number
        finally:
            interruption.hold()
            # Ranks that take SIGTERM for a wish to stop would wait for those that have gone.
            left = [process for process in multiprocessing.active_children() if process not in before]
            _end(left, at_once=stop is not None)
    if stop is not None and stop.is_cause_of(list(failures.values())):
        return 128 + stop.number
    return _verdict(failures, store)


def _start(num_ranks: int, arguments: tuple[Any, ...], without_notice: bool) -> Sequence[BaseProcess]:
    import torch.multiprocessing  # noqa: PLC0415

    blocked = {signal.SIGINT, signal.SIGUSR1} if without_notice else {signal.SIGINT}
    with _environment(num_ranks, blocked):
        context: Any = torch.multiprocessing.spawn(_run_rank, arguments, num_ranks, join=False)  # type: ignore
    return list(context.processes)


def _check(num_ranks: int, environment: Mapping[str, str]) -> None:
    if num_ranks < 1:
        raise ValueError(f"{num_ranks} ranks: there must be at least 1")
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1") if slurm.in_step(environment) else "1"
    if environment.get("RANK") or tasks != "1":
        starter = "torchrun" if environment.get("RANK") else "srun"
        raise ValueError(
            f"{num_ranks} ranks were requested, but {starter} has already started ranks: use only one of the two"
        )


@contextmanager
def _environment(num_ranks: int, blocked: set[signal.Signals]) -> Iterator[None]:
    """Set what must be so when a rank begins, before its first line of ours. blocked: signals."""
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is None and num_ranks > 1:
        os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun: the ranks share the cores. OpenMP reads it when torch loads
    try:
        with blocking(blocked):
            yield
    finally:
        if threads is None:
            os.environ.pop("OMP_NUM_THREADS", None)


def _variables(local_rank: int, num_ranks: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets on a single host."""
    numbers = {"RANK": local_rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    texts = {name: str(value) for name, value in {**numbers, "MASTER_PORT": port}.items()}
    # The last one says that the store is there already, and rank 0 need not make one.
    return {**texts, "GROUP_RANK": "0", "MASTER_ADDR": HOST, "TORCHELASTIC_USE_AGENT_STORE": "True"}


def _run_rank(local_rank: int, num_ranks: int, port: int, target: Callable[..., int | None], arguments: Any) -> None:
    """Run a rank in its process, and tell the parent why it failed."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    os.environ.update(_variables(local_rank, num_ranks, port))
    try:
        code, text = _exit_code(target(*arguments)), ""
    except SystemExit as leaving:
        code, text = _exit_code(leaving.code), ""
    except BrokenPipeError:  # the reader of our output had enough
        code, text = 1, ""
    except Exception as error:
        code, text = _describe(error)
    if code:
        with suppress(RuntimeError):  # the store is gone, and with it whoever would have read this
            _tell(port, json.dumps({"rank": local_rank, "code": code, "text": text}))
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        # Threads of a broken group may still be waiting, and would abort a process that takes leave in order.
        os._exit(code)


def _exit_code(status: int | str | None) -> int:
    """Return the exit code of what sys.exit takes; say a text."""
    if isinstance(status, str):
        click.echo(status, err=True)
        return 1
    return status or 0


def _leave_with_parent() -> None:
    """End this rank when the parent has gone: if it was killed, nobody else ends its ranks."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(128 + signal.SIGKILL)


def _tell(port: int, failure: str) -> None:
    """Tell the parent of a failure, unless another rank was first: others fail because that one has gone."""
    import torch.distributed as dist  # noqa: PLC0415

    store = dist.TCPStore(HOST, port, is_master=False)  # type: ignore[attr-defined]
    store.compare_set(FAILURE, "", failure)


def _describe(error: Exception) -> tuple[int, str]:
    """Return the exit code, and the words for the user."""
    if isinstance(error, MISTAKES):
        return MISTAKE, message_of(error)
    if type(error).__module__.partition(".")[0] in OURS:  # it says in a line what happened
        return 1, str(error)
    return 1, "".join(traceback.format_exception(error)).rstrip()


def _first_failures(processes: Sequence[BaseProcess]) -> dict[int, int]:
    """Wait until all have ended or some failed; return the exit codes of these by rank, -n if by signal n."""
    running = {process.sentinel: rank for rank, process in enumerate(processes)}
    while running:
        failures: dict[int, int] = {}
        for sentinel in wait(list(running)):
            assert isinstance(sentinel, int)
            rank = running.pop(sentinel)
            processes[rank].join()
            if code := processes[rank].exitcode:
                failures[rank] = code
        if failures:
            return failures
    return {}


def _end(processes: Sequence[BaseProcess], at_once: bool) -> None:
    for process in processes:
        process.kill() if at_once else process.terminate()
    deadline = time.monotonic() + GRACE_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _verdict(failures: Mapping[int, int], store: "Store") -> int:
    """Say the first cause of the failures; return the exit code."""
    if not failures:
        return 0
    for rank, code in failures.items():
        if code < 0:  # by a signal: the others noticed that it had gone
            memory = "; the system may have run out of memory" if code == -signal.SIGKILL else ""
            click.echo(f"rank {rank} was ended by {signal.Signals(-code).name}{memory}", err=True)
            return 1
    if store.check([FAILURE]):
        failure = json.loads(store.get(FAILURE))
        code, text = int(failure["code"]), failure["text"]
        if text and code == MISTAKE:
            raise ScheduleError(text) if "\n" in text else ValueError(text)  # whose grid has several lines
        if text:
            click.echo(f"rank {failure['rank']}: {text}", err=True)
        return code
    return next(iter(failures.values()))
