"""The notebook in examples/, run cell by cell, and what results show in one."""

import ast
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure

import ringsim
from ringsim.calibration import Comparison
from ringsim.report.notebook import html_of, register
from tests.ringsim.made_networks import made_network
from tests.ringsim.made_run import made_comparison

NOTEBOOK = Path(__file__).parents[2] / "examples" / "ring.ipynb"
NETWORK = ringsim.Network.uniform(latency_s=1e-5, bandwidth_bytes_per_s=1e9)
RING = ringsim.ring_all_reduce(4)


def comparison(num_cases: int = 1) -> Comparison:
    """One of an all_reduce over 4 ranks, whose predictions are 10 % too long."""
    return replace(made_comparison([1.1] * num_cases), network="<mine>")


def failing_timeline() -> ringsim.Timeline:
    """A run that never finishes."""
    return ringsim.simulate(RING, made_network("[[failure]]\nrank = 2"), 4096)


RESULTS = {
    "Schedule(all_reduce ring over 4 ranks, 4 chunks, 6 steps)": lambda: RING,
    "Schedule(broadcast binomial_tree over 2 ranks, 1 chunk, 1 step)": lambda: ringsim.algorithm(
        "binomial_tree", 2, "broadcast"
    ),
    "Timeline(4 ranks, 24 transfers, 120 us)": lambda: ringsim.simulate(RING, NETWORK, 40_000),
    "Timeline(4 ranks, 24 transfers, never finishes)": failing_timeline,
    "Sweep(all_reduce, ring, 2-4 ranks, 8 B on one: 2 cells)": lambda: ringsim.run_sweep(
        ringsim.Collective.ALL_REDUCE, ["ring"], [2, 4], [8], {"one": NETWORK}
    ),
    "RunView(all_reduce ring over 4 ranks, 39.06 KiB, 120 us)": lambda: ringsim.RunView(RING, NETWORK, 40_000),
    "Comparison(<mine>, 1 case, median |error| 10.0%)": comparison,
    "Explanation(Timeline(4 ranks, 24 transfers, 180 us), bandwidth 67%, latency 33%, bottleneck rank0.out)": (
        lambda: ringsim.explain(RING, NETWORK, 80_000)
    ),
    "Network.uniform(latency_s=1e-05, bandwidth_bytes_per_s=1000000000.0)": lambda: NETWORK,
    "Network(gbe: hosts of one rank each on one Gigabit Ethernet switch, TCP)": lambda: ringsim.load_network("gbe"),
    "Measurements(2 ranks, box)": lambda: ringsim.Measurements(2, {"machine": "box"}),
}


@pytest.mark.parametrize("text", RESULTS)
def test_a_repr_is_one_line_with_the_essentials(text: str) -> None:
    """Not the arrays."""
    assert repr(RESULTS[text]()) == text


def test_the_repr_of_a_network_makes_it_again() -> None:
    """So that it can be copied from a message into a program."""
    network = ringsim.Network.uniform(1e-5, 1e9, reduce_bytes_per_s=2e9, gap_s=1e-6)
    assert eval(repr(network), {"Network": ringsim.Network}) == network


def displayed(value: Any) -> None:
    """Display the value of a cell as a notebook does."""
    assert repr(value)
    html = html_of(value)
    assert html is None or html.startswith("<div>")
    if isinstance(value, Figure):
        assert value._repr_png_().startswith(b"\x89PNG")


def test_the_notebook_runs() -> None:
    """Every cell, in order, with its value displayed; it is kept without outputs."""
    notebook = json.loads(NOTEBOOK.read_text())
    namespace: dict[str, Any] = {}
    pictures = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, str(NOTEBOOK), "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), namespace)
            displayed(value)
            pictures += isinstance(value, Figure)
    assert pictures == 4
    check_what_the_notebook_says_of_its_sweep(namespace["sweep"])


def check_what_the_notebook_says_of_its_sweep(sweep: ringsim.Sweep) -> None:
    """Who is ahead where, and by how much."""
    winners = {place[1:]: winner for place, winner in sweep.winners().items()}
    names = {place: winner.cell.algorithm for place, winner in winners.items()}
    assert {name for (num_ranks, _), name in names.items() if num_ranks == 2} == {"direct"}
    assert {name for (num_ranks, _), name in names.items() if num_ranks > 4} == {"two_shot"}
    assert set(names.values()) == {"direct", "two_shot"}
    assert round(winners[16, 1024].over_ring or 0) == 11
    large = [cell for cell in sweep.cells if cell.size_bytes >= 4 * 2**20]
    times = {(cell.algorithm, cell.num_ranks, cell.size_bytes): cell.time_s or 0.0 for cell in large}
    for (name, num_ranks, size), time_s in times.items():
        if name in ("two_shot", "halving_doubling"):
            assert time_s == pytest.approx(times["ring", num_ranks, size], rel=0.01)
    assert times["direct", 16, 2**26] > 5 * times["ring", 16, 2**26]


def test_results_are_drawn() -> None:
    """In the style that is asked for."""
    for result in (RING, ringsim.simulate(RING, NETWORK, 4096), failing_timeline(), comparison(3)):
        assert isinstance(ringsim.plot(result), Figure)
    figure = ringsim.plot(RING, style="dark")
    assert sum(figure.get_facecolor()[:3]) < 1
    assert sum(ringsim.plot(RING, style="light").get_facecolor()[:3]) == 3


def test_a_notebook_asks_for_html(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is IPython, its formatter knows the results."""
    formats: dict[type, Any] = {}
    formatter = SimpleNamespace(for_type=formats.__setitem__)
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": formatter}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    register()
    assert set(formats) == {ringsim.Schedule, ringsim.Timeline, ringsim.Sweep, ringsim.Comparison}
    assert formats[ringsim.Schedule](RING) == html_of(RING)


def test_a_schedule_is_shown_as_its_grid() -> None:
    """Step downwards, ranks across; a large one is cut, and says so."""
    few, many = (html_of(ringsim.ring_all_reduce(num_ranks)) for num_ranks in (4, 64))
    assert all(shown in few for shown in ("<td>0</td><td>c2 + r3</td><td>c3 + r0</td>", "c0 = r2"))
    assert all(shown in many for shown in ("and 94 more steps", ">and 48 more ranks</th>"))


def test_a_timeline_is_shown_as_its_lanes() -> None:
    """As SVG on paper of its own, also one that never begins or ends; a large one has its line alone."""
    html = str(html_of(ringsim.simulate(RING, NETWORK, 40_000)))
    assert "c3 → r1</text>" in html
    large = str(html_of(ringsim.simulate(ringsim.ring_all_reduce(100), NETWORK, 40_000)))
    assert "<svg" not in large
    assert "no timeline: it is drawn here for at most 64 ranks and 5,000 transfers" in large
    assert "nothing is sent" in str(html_of(ringsim.simulate(ringsim.ring_all_reduce(1), NETWORK, 40_000)))
    at_once = ringsim.simulate(RING, ringsim.network.read_network('host.link.bandwidth = "1GB/s"', "free.toml"), 0)
    assert "<svg" in str(html_of(at_once))
    failing = str(html_of(failing_timeline()))
    assert "never finishes" in failing
    assert not re.search(r"\b(inf|nan)\b", failing)


def test_a_sweep_is_shown_as_the_fastest_and_a_comparison_as_its_cases() -> None:
    """With names escaped, and what is left out counted."""
    sweep = html_of(RESULTS["Sweep(all_reduce, ring, 2-4 ranks, 8 B on one: 2 cells)"]())
    assert "<td>8 B</td><td>ring  20.01 us</td><td>ring  60.01 us</td>" in sweep
    for shown in ("&lt;mine&gt;", ">+10.0%</td>", "and 8 more cases"):
        assert shown in html_of(comparison(40))
