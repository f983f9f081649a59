"""The shell of all pages."""

import json

from ringsim.report.pages import page


def test_a_page_asks_for_nothing_else() -> None:
    """No address of another file or host is in it, and its policy forbids them."""
    text = page("page.j2", "title", style="p {}", script="pageData;", data={"a": 1})
    assert "default-src 'none'" in text
    assert not any(word in text for word in ("http:", "https:", "src=", "@import", "url("))


def test_what_is_given_stays_data() -> None:
    """A name that looks like HTML keeps its value and does not become markup."""
    name = "</script><script>alert(1)</script>\u2028"
    text = page("page.j2", "<b>&{{ x }}", data={"name": name})
    assert text.count("<script>") == 2
    line = next(line for line in text.splitlines() if line.startswith("const pageData = "))
    assert json.loads(line.removeprefix("const pageData = ").removesuffix(";")) == {"name": name}
    assert "<title>&lt;b&gt;&amp;{{ x }}</title>" in text
