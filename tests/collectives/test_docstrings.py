"""The examples in the docstrings of the public names, run on two ranks."""

import doctest
import io
import sys

import torch
import torch.distributed as dist

import collectives
import ringsim
from tests.ranks import RankPool


def reports(group: dist.ProcessGroup) -> dict[str, tuple[int, str]]:
    """For each public name how many lines of examples there are, and what is wrong with them on this rank."""
    found, rank = {}, group.rank()
    names = {"collectives": collectives, "dist": dist, "ringsim": ringsim, "sys": sys, "torch": torch, "rank": rank}
    for name in collectives.__all__:
        report, runner = io.StringIO(), doctest.DocTestRunner(verbose=False)
        text = getattr(collectives, name).__doc__
        examples = doctest.DocTestParser().get_doctest(text, names, name, None, None)
        runner.run(examples, out=report.write)
        found[name] = len(examples.examples), report.getvalue()
    return found


def test_each_public_name_has_an_example_that_runs() -> None:
    """And prints what it shows, on every rank."""
    with RankPool(2) as pool:
        for report in pool.run(reports, timeout_s=120):
            assert list(report) == collectives.__all__
            assert [name for name, (count, _) in report.items() if not count] == []
            assert "".join(failures for _, failures in report.values()) == ""
