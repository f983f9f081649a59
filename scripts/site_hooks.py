"""Hooks of MkDocs for the pages of docs/ and for docstrings; mkdocs.yml names this file.

The pages are also written for GitHub. The hooks replace links to files outside docs/, and Mermaid diagrams and the
search of pages opened as files (docs/file-worker.js), for which Material would load programs from another site. They
also fill in the options of a command in place of `<!-- options: ringsim.cli:main as ringsim -->`, and the signature and
docstring of a name in place of its item in the list of public names.
"""

import posixpath
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from flow_chart import flow_chart_svg

LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)\s]+)\)")
OPTIONS = re.compile(r"^<!-- options: ([\w.]+):(\w+) as (.+) -->$", re.MULTILINE)
PUBLIC_NAME = re.compile(r"^- \[`\w+\.(\w+)`\]\(\.\./\.\./([\w/]+)\.py\): .*\n", re.MULTILINE)
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?((?:https?:)?//[^\" >]+)")
FIELD = re.compile(r"^([a-z_][\w., ]*): ")
SHIM = "https://unpkg.com/iframe-worker/shim"
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def on_startup(**_: Any) -> None:
    """Make the programs of this folder importable: griffe's extension, and the testbed for its options."""
    sys.path.append(str(Path(__file__).parent))


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Draw a page's diagrams, fill in its references and resolve its links to source files."""
    folder, repo_url = posixpath.dirname(page.file.src_uri), config.repo_url
    markdown = DIAGRAM.sub(lambda match: flow_chart_svg(match[1]), markdown)
    markdown = OPTIONS.sub(options_directive, markdown)
    if folder == "reference":
        markdown = PUBLIC_NAME.sub(docstring_directive, markdown)
    return LINK.sub(lambda match: resolved_link(match, folder, repo_url), markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Return the page with our file worker. Raises ValueError if it would load a file from another site."""
    output = output.replace(SHIM, posixpath.relpath("file-worker.js", posixpath.dirname(page.file.src_uri) or "."))
    loaded = LOADED.search(output)
    if loaded:
        raise ValueError(f"{page.file.src_uri}: loads {loaded[1]}; the site must be complete without a network")
    return output


def on_post_template(output_content: str, **_: Any) -> str:
    """Return a page that only servers show, such as 404.html, with our file worker."""
    return output_content.replace(SHIM, "/file-worker.js")


def resolved_link(link: re.Match[str], folder: str, repo_url: str | None) -> str:
    """Return a link out of docs/ as a link to the repository, or as text without an address; keep other links."""
    target = posixpath.normpath(posixpath.join("docs", folder, link[2]))
    if target.startswith("docs/"):
        return link[0]
    return f"[{link[1]}]({repo_url.rstrip('/')}/blob/main/{target})" if repo_url else link[1]


def options_directive(comment: re.Match[str]) -> str:
    """Return the directive that mkdocs-click replaces by the options of a command and its subcommands."""
    options = {"module": comment[1], "command": comment[2], "prog_name": comment[3], "depth": 1, "style": "plain"}
    return "\n".join(["::: mkdocs-click", *(f"    :{name}: {value}" for name, value in options.items())])


def docstring_directive(item: re.Match[str]) -> str:
    """Return the directive that mkdocstrings replaces by a name's docstring, found in the link's file."""
    module = item[2].removesuffix("/__init__").replace("/", ".")
    return f"::: {module}.{item[1]}\n\n"


def docstring_markdown(docstring: str) -> str:
    r"""Return a docstring as Markdown: lines such as `size_bytes: of the whole tensor` make a list, examples code.

    In a terminal such lines are read as they stand; Markdown would run them together.

        >>> print(docstring_markdown("A link.\n\nlatency_s: of a message,\nat each end.\ngap_s: between two."))
        A link.
        <BLANKLINE>
        - `latency_s`: of a message,
          at each end.
        - `gap_s`: between two.
    """
    return "\n\n".join(map(_paragraph_markdown, docstring.split("\n\n")))


def _paragraph_markdown(paragraph: str) -> str:
    if paragraph.startswith("    >>> "):
        return f"```pycon\n{textwrap.dedent(paragraph)}\n```"
    if not FIELD.match(paragraph):
        return paragraph
    lines = paragraph.split("\n")
    return "\n".join(FIELD.sub(r"- `\1`: ", line) if FIELD.match(line) else f"  {line}" for line in lines)
