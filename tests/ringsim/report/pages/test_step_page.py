"""The page of a recorded step: what stands on it, and that nothing of a file becomes HTML."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from ringsim.report import step_page, token_facts
from ringsim.traces import TraceRequest
from ringsim.training_step import predict_trace, with_better_steps
from tests.ringsim.report.pages.headless_chromium import Browser, needs_chromium
from tests.ringsim.training_step.test_scaling import NETWORK, scaling_of, trace_of

HOSTILE = "</code><script>throw 1</script>"
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
    request = TraceRequest("train.py", (HOSTILE,), False, 4, 0, 2, 1, "")
    page = step_page(predict_trace(structs.replace(trace_of(4), request=request), NETWORK))
    assert "Recorded by <code>ringsim trace --ranks 4 " in page
    assert HOSTILE not in page


@needs_chromium
def test_the_page_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    """Nothing on it fails."""
    (tmp_path / "step.html").write_text(step_page(SCALING.predictions[-1], scaling=SCALING))
    document = browser.document(tmp_path / "step.html")
    assert "data-error" not in document
    assert document.count("</svg>") == 2
