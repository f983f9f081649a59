"""`page`: one self-contained HTML page, with its style, its program and its data inside it."""

import json
from html import escape
from importlib import resources
from string import Template


def page(title: str, body: str, *, style: str = "", script: str = "", data: object = None) -> str:
    """Return the text of a page that loads nothing else, in light or dark as the reader's browser has it.

    title: plain text. body: HTML, already escaped where it holds what a user wrote. style and script: CSS and
    JavaScript added to those of all pages. data: what the script finds in `pageData`; anything that JSON can hold,
    without NaN or infinities.

    Raises ValueError for data that JSON cannot hold.

    >>> "<title>2 &lt; 3</title>" in page("2 < 3", "<p>So it is.</p>")
    True
    """
    return Template(asset("page.html")).substitute(
        title=escape(title), body=body, style=asset("page.css") + style, script=script, data=_inside_a_script(data)
    )


def asset(name: str) -> str:
    """Return the text of a file that is installed beside this module."""
    return resources.files("ringsim.report.pages").joinpath(name).read_text(encoding="utf-8")


def _inside_a_script(data: object) -> str:
    """JSON in which nothing can end the script element that holds it, whatever a file or a user named something."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
