"""What `ringsim` exports is documented, and its examples are right."""

import doctest
import importlib
import inspect
import pydoc
from pathlib import Path

import pytest

import ringsim

# What needs no example of its own: constants, and what others' examples make.
WITHOUT_EXAMPLE = {
    "ALGORITHMS",
    "Animation",
    "NEVER",
    "Comparison",
    "Explanation",
    "ProbeFit",
    "Overview",
    "RankPlacement",
    "ScheduleError",
    "Step",
    "Steps",
    "Sweep",
    "Timeline",
    "Transfer",
    "WorkerError",
    "Collective",
    "cases_of_tables",
    "read_logs",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
}


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


@pytest.mark.parametrize("name", ringsim.__all__)
def test_its_help_names_types_shortly(name: str) -> None:
    """Array types by our names or NumPy's own, not by what NumPy defines them as, which fills many lines."""
    shown = pydoc.plain(pydoc.render_doc(getattr(ringsim, name)))
    assert "numpy._typing" not in shown
    assert "numpy.ndarray[" not in shown
    assert max(map(len, shown.splitlines())) < 500
