"""`Testbed`: hosts in network namespaces during a `with` block."""

import atexit
import itertools
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from netns_testbed.jobs import Ending, run_together
from netns_testbed.leftovers import end_processes, remove_testbed, run_apart, signals_held
from netns_testbed.plan import CUBIC, INTERFACE, RENO, Command, plan
from ringsim.console import ended_once, run_local_ranks

RATE = "1gbit"  # of the links for `run_ranks`
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")  # in namespaces

_numbers = itertools.count()  # of the testbeds of this process


class Testbed:
    """`with Testbed(4, "1gbit", {2: "250mbit"}) as bed: bed.run(["script.py"])`.

    rate: of every host's link, in each direction, in tc's units; None: unlimited.
    host_rates: of single hosts, counted from 0, instead.

    Raises ValueError for an impossible testbed. Entering raises OSError if the machine cannot make it: it needs root,
    iproute2, and a kernel with network namespaces, veth, bridges and tbf.
    """

    __test__ = False  # not a test, whatever pytest thinks of the name

    def __init__(self, hosts: int, rate: str | None = None, host_rates: Mapping[int, str] | None = None) -> None:
        name = f"ringsim-{os.getpid()}-{next(_numbers)}"
        self.plan = plan(name, hosts, rate, host_rates, congestion_control())

    def __enter__(self) -> Self:
        _check_tools()
        atexit.register(self.close)  # for a Ctrl-C between this method and the block
        try:
            for command in self.plan.make():
                _perform(command)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the testbed and kill its processes; may be called twice."""
        remove_testbed(self.plan.name)
        atexit.unregister(self.close)

    def run(
        self, arguments: Sequence[str], ranks_per_host: int = 1, environment: Mapping[str, str] | None = None
    ) -> Ending:
        """Run torchrun on every host; when one fails, the others end too.

        arguments: torchrun's script and its arguments, or `-m` and a module.
        environment: in addition to this process's environment.

        Output goes to this process's output. Afterwards nothing runs on the hosts.
        """
        if ranks_per_host < 1:
            raise ValueError(f"{ranks_per_host} ranks per host: there must be at least 1")
        try:
            return run_together(self.plan.run(arguments, ranks_per_host), _environment(environment or {}))
        finally:
            # torchrun's ranks have sessions of their own: had it been killed, they would not have ended with it.
            end_processes([self.plan.namespace(host) for host in range(self.plan.num_hosts)])


def congestion_control() -> str:
    """Return CUBIC, or Reno if this machine does not allow CUBIC in namespaces."""
    return CUBIC if ALLOWED.exists() and CUBIC in ALLOWED.read_text().split() else RENO


def why_not() -> str | None:
    """Make a small testbed; return why that is impossible here, or None."""
    try:
        with ended_once(), Testbed(1, "1gbit"):
            return None
    except OSError as error:
        return str(error)


def run_ranks(hosts: int, ranks_per_host: int, arguments: Sequence[str], slow: Mapping[int, str] | None = None) -> None:
    """Run a program on the hosts to its end; a signal to this process ends the ranks and removes the hosts.

    The ranks' output goes to stderr, because the calling scripts print their own tables.

    slow: hosts with another rate than RATE. Raises OSError if the program fails.
    """
    if hosts == 1:
        with _stdout_to_stderr():
            run_local_ranks(ranks_per_host, arguments)
        return
    with ended_once(), _stdout_to_stderr(), Testbed(hosts, RATE, slow or {}) as bed:
        code = bed.run(list(arguments), ranks_per_host).exit_code
    if code:
        raise OSError(f"the command on {hosts} hosts ended with exit code {code}; its output is above")


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect stdout of this process, and of processes started in the block, to stderr."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    # One thread a rank, as torchrun itself sets it for several: here the ranks of all hosts share the cores.
    # No warnings of C++: c10d has one for each connection, that the peer's address has no name.
    ours = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return {**ours, **os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, **more}


def _check_tools() -> None:
    if os.geteuid() != 0:
        raise PermissionError("a testbed makes network namespaces, which only root may: run it with sudo")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise FileNotFoundError(f"{tool} is not on the PATH: a testbed needs iproute2")


def _perform(command: Command) -> None:
    with signals_held():  # what is being made when a signal comes would be made after all is taken away
        done = run_apart(command.arguments)
    if done.returncode:
        said = "; ".join(line for line in done.stderr.splitlines() if line.strip()) or f"exit code {done.returncode}"
        raise OSError(f"cannot make {command.makes} here: {said} ({' '.join(command.arguments)})")
