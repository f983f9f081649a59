"""A sweep from its options or from the file of one that was interrupted, and what is kept if it is interrupted."""

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ringsim.analysis import LIBRARY, Sweep, SweepPlan, SweepRun, candidates, has
from ringsim.calibration import AS_LIBRARY
from ringsim.console import STDOUT, ended_once, message_of, progress_bar
from ringsim.files import atomic_file, file_to_replace, naming_place
from ringsim.network import AnyNetwork, Network, load_network
from ringsim.registry import needs_trust, require_trusted
from ringsim.schedule import Collective, ScheduleError
from ringsim.workers import Workers

KEEP_S = 10.0  # between two times that the cells of a sweep that goes on are written


def planned_sweep(
    collective: str,
    algorithm: Sequence[str],
    ranks: Sequence[int],
    sizes: Sequence[int],
    networks: Mapping[str, AnyNetwork],
    max_transfers: float,
) -> SweepRun:
    """Return a sweep with nothing done, from the options of `ringsim sweep`."""
    chosen = Collective(collective)
    names = [name.strip() for names in algorithm for name in names.split(",")]
    if not names:
        names = candidates(chosen, networks.values())
        names += [LIBRARY] if any(has(network, LIBRARY) for network in networks.values()) else []
    return SweepRun(SweepPlan.of(chosen, names, ranks, sizes, networks, max_transfers, AS_LIBRARY))


def resumed_sweep(source: Path, sweep: Sweep, trusted: Sequence[str]) -> SweepRun:
    """Return the sweep that `source` holds a part of.

    Raises ValueError, which names the file, if a network or an algorithm has changed since, or names a Python file
    that is not trusted.
    """
    with naming_place(source):
        assert sweep.planned
        for algorithm in sweep.planned.algorithms:
            require_trusted("the sweep names", algorithm, trusted)
        networks = {name: _network(name, facts) for name, facts in sweep.networks.items()}
        return SweepRun(SweepPlan.resumed(sweep.planned, sweep.collective, networks, AS_LIBRARY), sweep.cells)


def _network(name: str, facts: Mapping[str, Any]) -> AnyNetwork:
    """The network of that name, which must be as it was when the sweep began."""
    if "spec" not in facts:
        return Network.from_dict(facts)
    cluster = load_network(name)
    if json.loads(json.dumps(cluster.as_dict())) != facts:
        raise ValueError(f"network {name}: is another than when the sweep began: restore it, or sweep anew")
    return cluster


def finish_sweep(run: SweepRun, workers: Workers, table: Path | None) -> Sweep:
    """Simulates what is missing, with a progress line on stderr, where that is a terminal.

    table: where the cells are kept now and then, and if the sweep is interrupted.
    """
    with (
        ended_once(),
        _keeping(run, table) as keep,
        workers,
        progress_bar(run.num_cells, "simulating", done=run.num_done, delay_s=1.0) as bar,
    ):

        def on_progress(count: int) -> None:
            bar.update(count)
            keep()

        run.finish(workers, on_progress)
    return run.sweep()


@contextmanager
def _keeping(run: SweepRun, table: Path | None) -> Iterator[Any]:
    """Yield what is to be called after each cell; when the sweep is interrupted, the error says how to go on."""
    kept_at = time.monotonic()

    def keep() -> None:
        nonlocal kept_at
        if time.monotonic() > kept_at + KEEP_S:
            _write(run, table)
            kept_at = time.monotonic()

    try:
        yield keep
    except (ValueError, ScheduleError):
        raise  # the user's mistake, which would come again
    except KeyboardInterrupt:
        raise click.exceptions.Abort(f"interrupted{_write(run, table)}") from None
    except (OSError, MemoryError) as error:
        kind = OSError if isinstance(error, OSError) else MemoryError
        raise kind(f"{message_of(error)}{_write(run, table)}") from error
    except BaseException:
        _write(run, table)
        raise


def _write(run: SweepRun, table: Path | None) -> str:
    """Write the cells that there are; what to say of that."""
    if table in (None, STDOUT) or not run.num_done or run.num_done == run.num_cells:
        return ""
    if file_to_replace(table) is None:  # a FIFO, whose reader would get these cells twice
        return ""
    with atomic_file(table) as file:
        file.write(run.sweep().csv_text().encode())
    trusted = "".join(f" --trust {shlex.quote(name)}" for name in run.algorithms if needs_trust(name))
    done = f"{run.num_done} of {run.num_cells} cells are in {table}"
    return f"; {done}: ringsim sweep --from {shlex.quote(str(table))}{trusted} goes on"
