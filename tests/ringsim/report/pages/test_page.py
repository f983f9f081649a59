"""The shell of all pages."""

import json

import pytest

from ringsim.report.pages.page import page


def test_a_page_asks_for_nothing_else() -> None:
    """No address of another file or host is in it, and its policy forbids them."""
    text = page("title", "<p>body</p>", style="p {}", script="pageData;", data={"a": 1})
    assert "default-src 'none'" in text
    assert not any(word in text for word in ("http:", "https:", "src=", "@import", "url("))


def test_nothing_in_the_data_ends_the_script() -> None:
    """A name that looks like HTML stays data, with the same value."""
    name = "</script><script>alert(1)</script>\u2028"
    text = page("title", "", data={"name": name})
    assert text.count("<script>") == 2
    line = next(line for line in text.splitlines() if line.startswith("const pageData = "))
    assert json.loads(line.removeprefix("const pageData = ").removesuffix(";")) == {"name": name}


def test_a_title_is_text() -> None:
    """A user's name in the title does not become markup."""
    assert "<title>&lt;b&gt;&amp;$x</title>" in page("<b>&$x", "")


def test_what_json_cannot_hold_is_refused() -> None:
    """NaN would be a page that shows nothing."""
    with pytest.raises(ValueError, match="JSON"):
        page("title", "", data=float("nan"))
