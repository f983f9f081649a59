"""`page`: one self-contained HTML page, with its style, its program and its data inside it."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from ringsim.text_table import load_template


def page(template: str, title: str, style: str = "", script: str = "", data: object = None, **rest: Any) -> str:
    """Return the text of a page that loads nothing else, in light or dark as the reader's browser has it.

    template: beside this module; it extends page.j2, and escapes the title and `rest`, what else it is given.
    style and script: CSS and JavaScript added to those of all pages. data: what the script finds in `pageData`;
    anything that JSON can hold, without NaN or infinities.

    Raises ValueError for data that JSON cannot hold.

    >>> "<title>2 &lt; 3</title>" in page("page.j2", "2 < 3")
    True
    """
    made = load_template(Path(__file__).with_name(template), {}, autoescape=True, trim_blocks=True)
    style = asset("page.css") + style
    return made.render(title=title, style=style, script=script, data=_inside_a_script(data), **rest)


def asset(name: str) -> str:
    """Return the text of a file that is installed beside this module."""
    return resources.files("ringsim.report.pages").joinpath(name).read_text(encoding="utf-8")


def _inside_a_script(data: object) -> str:
    """JSON in which nothing can end the script element that holds it, whatever a file or a user named something."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
