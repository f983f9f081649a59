"""The pages of a report and of a step: as text, and as a browser shows them."""

import math
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs
from syrupy.assertion import SnapshotAssertion

from ringsim.analysis import SimulatedCollective
from ringsim.report import step_page, token_facts
from ringsim.report.pages.report_page import report_page
from ringsim.report.table import DataTable, TableCell, error_cell, time_cell
from ringsim.schedule.collective import Collective
from ringsim.traces import TraceRequest
from ringsim.training_step import PredictedDdpStep, predict_trace, with_better_steps
from ringsim.verdict import JobReport, RunDirectory, judge
from ringsim.verdict.records import DdpPrediction, LogEntry, TrainingLog
from tests.ringsim.commands import run
from tests.ringsim.made_probes import made_measurements
from tests.ringsim.report.pages.headless_chromium import Browser, needs_chromium
from tests.ringsim.training_step.test_scaling import NETWORK, scaling_of, trace_of
from tests.ringsim.verdict.made_jobs import made_job, made_strategy
from tests.ringsim.verdict.test_run_directory import fill

pytestmark = pytest.mark.usefixtures("few_draws_in_module")

HOSTILE = "<b>&</script><script>throw 1</script>"


@pytest.fixture(scope="module")
def page(few_draws_in_module: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001  begins first
    """Of a directory with a file of each kind."""
    folder = tmp_path_factory.mktemp("report")
    path = folder / "page.html"
    (folder / "data").mkdir()
    result = run("report", fill(folder / "data"), "-o", path)
    assert result.stderr == f"wrote {path}\n"
    assert sum(not line.startswith(" ") for line in result.stdout.splitlines()) == 5
    return path


def column(document: str, name: str, number: int) -> list[str]:
    """The texts of a column of a table, from the top."""
    body = re.search(rf'data-name="{name}".*?<tbody>(.*?)</tbody>', document, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", body[1], re.DOTALL)
    return [unescape(re.findall(r"<td[^>]*>(.*?)</td>", row)[number]) for row in rows]


def orders(document: str) -> list[str]:
    """How columns are sorted, as their headings say."""
    return re.findall(r'<th [^>]*aria-sort="(\w+)"', document)


def test_each_kind_of_file_is_shown(page: Path, snapshot: SnapshotAssertion) -> None:
    """In its table, and with its name in that of the files; pictures have real text; nothing else is asked for."""
    text = page.read_text()
    tables = {name: column(text, name, 0) for name in re.findall(r'data-name="(\w+)"', text)}
    tables["files"].sort()
    captions = re.findall("<figcaption>(.*?)</figcaption><svg", text)
    assert {"tables": tables, "pictures": captions} == snapshot
    assert "<text " in text
    assert not re.search(r'(src|href)="(?!#)', text)
    assert "Train with <code>ring</code>: its step" in text
    assert column(text, "simulated", 4) == ["uniform", "gbe"]
    assert column(text, "runs", 6) == ["accuracy 0.5"]


def test_what_files_say_is_text() -> None:
    """A name that looks like HTML stays a name, wherever it is shown; what never finishes is said to."""
    measurements = made_measurements(2)
    measurements.provenance.update({"machine": HOSTILE, "command": HOSTILE, "torch": HOSTILE})
    del measurements.provenance["date"]
    job = JobReport.from_dict(made_job(measurements, [made_strategy(HOSTILE, 2, 0.01, 0.1)]))
    contents = RunDirectory("made", {HOSTILE: measurements}, {HOSTILE: job}, refused={HOSTILE: HOSTILE})
    hostile = {"name": HOSTILE}
    contents.simulated[HOSTILE] = SimulatedCollective(
        collective=Collective.ALL_REDUCE, algorithm=HOSTILE, num_ranks=2, num_steps=1, num_transfers=2, size_bytes=8,
        described=hostile, time_s=None, busbw_bytes_per_s=None, explained={"bottleneck": hostile},
    )  # fmt: skip
    step = PredictedDdpStep(
        num_ranks=2, cap_bytes=2**20, step_s=None, exposed_s=None, communication_s=None, single_s=1.0
    )
    contents.predicted[HOSTILE] = DdpPrediction(step, None, (), (), hostile)
    verdict = judge(contents)
    reasons = "use `ring`: x`y.json", *verdict.findings[0].reasons
    vars(verdict)["findings"] = (replace(verdict.findings[0], reasons=reasons), *verdict.findings[1:])
    text = report_page(verdict, HOSTILE)
    assert HOSTILE not in text
    assert "<li>use <code>ring</code>: x`y.json" in text  # one backtick alone is part of a name
    assert (column(text, "refused", 0), column(text, "refused", 1)) == ([HOSTILE], [HOSTILE])
    assert column(text, "simulated", 5) == column(text, "ddp", 4) == ["never finishes"]


def test_tables_are_sorted_by_numbers_not_by_their_texts() -> None:
    """Each cell has the number that it shows; errors count by their size; a text with markup stays text."""
    text = DataTable(("a", "b"), [(time_cell(0.002), error_cell(-0.5)), (time_cell(30e-6), "<i>")]).html("t")
    assert '<td class="right" data-key="0.002">2 ms</td><td data-key="0.5">-50%</td>' in text
    assert '<td class="right" data-key="3e-05">30 us</td><td>&lt;i&gt;</td>' in text
    assert 'data-key="-1e999"' in DataTable(("a",), [(TableCell("-", float("-inf")),)]).html("t")


def test_a_new_number_is_a_field_of_a_record_and_a_column() -> None:
    """Its heading, its unit and its place on the page follow from its name."""
    record = SimpleNamespace(run=SimpleNamespace(name="ring"), idle_s=0.002, idle_share=0.25, num_stops=None)
    table = DataTable.of([record, {"idle_s": math.inf}], ["run.name", "idle_s", "idle_share", "num_stops"])
    assert table.lines() == [
        "name   idle  idle share  stops",
        "ring   2 ms         25%      -",
        "-     never           -      -",
    ]


@needs_chromium
def test_the_page_runs_in_a_browser(page: Path, browser: Browser) -> None:
    """Without an error, and its address sorts a table by its numbers, up and down."""
    plain = browser.document(page)
    assert "data-error" not in plain
    assert orders(plain) == []
    sizes = column(plain, "collectives", 2)
    assert sizes == ["1 KiB", "64 KiB", "1 MiB", "16 MiB"] * 2 + ["64 B"]
    down = browser.document(page, "#sort=collectives:2:desc")
    assert "data-error" not in down
    assert column(down, "collectives", 2)[0::8] == ["16 MiB", "64 B"]
    assert orders(down) == ["descending"]


@needs_chromium
def test_a_click_sorts(page: Path, browser: Browser, tmp_path: Path) -> None:
    """Up, and once more down; a heading that is not there in an address changes nothing, nor do hostile names."""
    button = 'document.querySelector("[data-name=collectives] th:nth-child(3) button")'
    clicks = f"<script>{button}.click(); {button}.click();"
    clicked = tmp_path / "clicked.html"
    clicked.write_text(page.read_text().replace("</body>", f"{clicks}</script></body>"))
    document = browser.document(clicked, "#sort=collectives:99")
    assert "data-error" not in document
    assert column(document, "collectives", 2)[:4] == ["16 MiB", "16 MiB", "1 MiB", "1 MiB"]
    assert orders(document) == ["descending"]
    path = tmp_path / "page.html"
    path.write_text(report_page(judge(RunDirectory("made", logs={HOSTILE: TrainingLog((LogEntry(1, 2.0),))})), HOSTILE))
    document = browser.document(path)
    assert "data-error" not in document
    assert document.count("<script>") == 2


HOSTILE_CODE = "</code><script>throw 1</script>"
SCALING = scaling_of(2, 4, tokens=7)


def headings(page: str) -> list[str]:
    """The headings of the page's parts, in their order; it loads nothing."""
    assert not re.search(r"(src|href)=\"(?!#)", page)
    return re.findall(r"<h[12]>(.*?)</h[12]>", page)


def test_the_page_of_a_step() -> None:
    """Its parts in their order; what stands in them is tested by the command."""
    prediction = with_better_steps(predict_trace(trace_of(2), NETWORK))
    page = step_page(prediction, token_facts(prediction, 7))
    assert headings(page)[1:] == ["computing", "exposed", "steps", "tokens", "The step would take", "Calls"]
    assert page.count("<svg") == 1


@pytest.mark.parametrize(("slowed_s", "is_told"), [(5e-21, False), (2e-6, True)])
def test_a_rounding_error_does_not_slow_a_step(slowed_s: float, is_told: bool) -> None:
    """A real delay has a row, and the rest of a subtraction of times has none."""
    prediction = predict_trace(trace_of(2), NETWORK)
    slowed = replace(prediction, mean=prediction.mean._replace(slowed_s=slowed_s))
    assert ("slowed" in headings(step_page(slowed))) == is_told


def test_the_page_of_a_scaling() -> None:
    """The curve and its table come before the step on the most ranks."""
    page = step_page(SCALING.predictions[-1], scaling=SCALING)
    assert headings(page)[:3] == [headings(page)[0], "From 2 to 4 ranks", "The step on 4 ranks"]
    assert page.count("<svg") == 2
    assert page.index("Efficiency against number of ranks") < page.index("A step on 4 ranks")
    assert '<td class="right" data-key="2.0">2</td>' in page


def test_a_command_is_no_html() -> None:
    """The command of a trace is shown as text, also if it holds tags."""
    request = TraceRequest("train.py", (HOSTILE_CODE,), False, 4, 0, 2, 1, "")
    page = step_page(predict_trace(structs.replace(trace_of(4), request=request), NETWORK))
    assert "Recorded by <code>ringsim trace --ranks 4 " in page
    assert HOSTILE_CODE not in page


@needs_chromium
def test_the_page_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    """Nothing on it fails."""
    (tmp_path / "step.html").write_text(step_page(SCALING.predictions[-1], scaling=SCALING))
    document = browser.document(tmp_path / "step.html")
    assert "data-error" not in document
    assert document.count("</svg>") == 2
