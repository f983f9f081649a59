"""`page`: a self-contained HTML page."""

import json
from pathlib import Path
from typing import Any

from ringsim.text_table import html_template


def page(template: str, title: str, style: str = "", script: str = "", data: object = None, **rest: Any) -> str:
    """Return the text of a page that loads nothing else and follows the browser's light or dark mode.

    template: extends page.j2, and escapes the title and `rest`. style, script: in addition to the shared ones.
    data: `pageData` of the script. Raises ValueError for data that JSON cannot hold.

    >>> "<title>2 &lt; 3</title>" in page("page.j2", "2 < 3")
    True
    """
    made = html_template(Path(__file__).with_name(template))
    style = asset("page.css") + style
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")  # cannot end its script
    return made.render(title=title, style=style, script=script, data=text, **rest)


def asset(name: str) -> str:
    """Return the text of a file in this folder."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
