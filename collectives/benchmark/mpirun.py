"""`Mpirun`: Open MPI's program that starts ranks, as a child process that is never left behind."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import Self

PROGRAM = "mpirun"
RANK_MODULE = "collectives.benchmark.openmpi_rank"
SETTINGS = "OMPI_MCA_"  # what begins so in the environment sets parameters of Open MPI
END_S = 5.0  # how long mpirun may take to end its ranks
_VERSION_TIMEOUT_S = 30.0


def openmpi_version() -> str:
    """The version of the Open MPI whose mpirun is in PATH, such as "4.1.4".

    Raises ValueError if there is none, or mpirun is another MPI's.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise ValueError(f"--openmpi: {PROGRAM} is not in PATH: install Open MPI (Debian: apt install openmpi-bin)")
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
        said = done.stdout.strip().partition("\n")[0]
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    name, _, version = said.rpartition(" ")  # mpirun (Open MPI) 4.1.4
    if "(Open MPI)" not in name:
        raise ValueError(
            f"--openmpi: {program} is not Open MPI's, but says {said!r}: install Open MPI (Debian: apt install "
            f"openmpi-bin) and put its {PROGRAM} first in PATH"
        )
    return version


def openmpi_provenance() -> dict[str, str]:
    """The version and the parameters that are set, for a file of measurements."""
    settings = {
        name.removeprefix(SETTINGS): value for name, value in _environment().items() if name.startswith(SETTINGS)
    }
    named = " ".join(f"{name}={value}" for name, value in sorted(settings.items()))
    return {"openmpi": openmpi_version(), "openmpi_settings": named}


def _environment() -> dict[str, str]:
    """That of mpirun: ranks that wait for a message leave their core to others, unless the user sets it otherwise.

    Open MPI would do so only where ranks outnumber cores. But beside other work a rank that polls keeps its peer from a
    core until the kernel's next tick, thousands of times as long as a short message takes.
    """
    return {f"{SETTINGS}mpi_yield_when_idle": "1", **os.environ}


class Mpirun:
    """mpirun with a rank for each port, from the beginning of the context to its end."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports

    def __enter__(self) -> Self:
        self._output = tempfile.TemporaryFile()
        # In a session of its own Ctrl-C does not reach it, so that it is ended here, in order.
        self._process = subprocess.Popen(
            _command(self._ports),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_environment(),
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._wait()
        finally:  # also if Ctrl-C comes now
            self.end()
            self._output.close()

    def end(self) -> None:
        """End it and its ranks, if they have not ended."""
        try:
            if self._process.poll() is None:
                self._process.terminate()
                self._wait()
        finally:
            self._process.kill()
            self._process.wait()

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def reason(self) -> str:
        """Why it ended, in one line, as far as it says so."""
        self._wait()
        self._output.seek(0)
        said = reason_of(self._output.read().decode(errors="replace"))
        return said or f"{PROGRAM} ended with exit code {self._process.poll()} and says nothing"

    def _wait(self) -> None:
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return


def reason_of(output: str) -> str:
    """The line of what mpirun and its ranks wrote that says why they ended: an exception's, mpirun's own, the last."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" -\t")]
    errors = [line for line in lines if line.partition(":")[0].endswith("Error")]
    own = [" ".join(lines[index : index + 2]) for index, line in enumerate(lines) if line.startswith(PROGRAM)]
    return next(iter([*errors, *own, *lines[-1:]]), "")


def _command(ports: Sequence[int]) -> list[str]:
    """The command line: ranks may outnumber cores, and are bound to none, as those of torchrun are."""
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    options = ["-n", str(len(ports)), "--oversubscribe", "--bind-to", "none", *as_root]
    program = shutil.which(PROGRAM) or PROGRAM
    return [program, *options, sys.executable, "-m", RANK_MODULE, *map(str, ports)]
