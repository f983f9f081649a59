"""All exports of `ringsim` are documented, and their examples are right."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import ringsim
from tests.ringsim.commands import written
from tests.ringsim.made_logs import nccl_log
from tests.ringsim.made_probes import made_measurements

# What needs no example of its own: constants, and what others' examples make.
WITHOUT_EXAMPLE = {
    "ALGORITHMS", "Collective", "Comparison", "Explanation", "ProbeFit", "RankPlacement", "RunView",
    "ScheduleError", "Step", "Steps", "Sweep", "Timeline", "Transfer", "WorkerError", "cases_of_tables", "read_logs",
    "ring_all_gather", "ring_all_reduce", "ring_reduce_scatter",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(ringsim.__all__) - WITHOUT_EXAMPLE))
def test_it_has_an_example_that_is_right(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside one full sentence."""
    monkeypatch.chdir(tmp_path)  # some write files
    thing = getattr(ringsim, name)
    docstring = inspect.getdoc(thing)
    assert docstring
    assert docstring.split("\n\n")[0].rstrip().endswith((".", ";", "..."))
    namespace = vars(importlib.import_module(thing.__module__)).copy()
    tests = doctest.DocTestFinder(recurse=False).find(thing, name, globs=namespace)
    assert any(test.examples for test in tests), "no example"
    runner = doctest.DocTestRunner()
    for test in tests:
        runner.run(test)
    assert runner.failures == 0


def test_the_package_has_an_example() -> None:
    """Which is what a reader sees first."""
    result = doctest.testmod(ringsim)
    assert (result.failed, result.attempted > 0) == (0, True)


def test_files_are_named_by_text_or_by_path(tmp_path: Path) -> None:
    """Whatever reads or writes one takes both."""
    ring = ringsim.ring_all_reduce(4)
    network = ringsim.Network.uniform(1e-5, 1e9)
    measured, cells, trace = (tmp_path / name for name in ("m.json", "s.csv", "t.json"))
    program = written(tmp_path / "r.xml", "".join(ringsim.msccl_lines(ring)))
    log = written(tmp_path / "a.log", nccl_log("all_reduce", 4))
    for name in (str, Path):
        assert ringsim.read_msccl(name(program)).num_ranks == 4
        made_measurements(2).save(name(measured))
        assert ringsim.Measurements.load(name(measured)).num_ranks == 2
        assert len(ringsim.read_logs([name(log)])) == 1
        found = ringsim.run_sweep(ringsim.Collective.ALL_REDUCE, ["ring"], [2], [8], {"mine": network})
        found.to_csv(name(cells))
        assert ringsim.Sweep.from_csv(name(cells)).ranks == found.ranks
        ringsim.write_trace(name(trace), [("ring", ringsim.simulate(ring, network, 64))])
        assert trace.stat().st_size > 0
