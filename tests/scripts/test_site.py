"""The parts of the documentation site that are code of ours."""

import doctest
import importlib
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from syrupy.assertion import SnapshotAssertion

import flow_chart
import site_hooks
from flow_chart import flow_chart_svg, layers_of
from ringsim.cli import main
from tests.refusals import said_by

ROOT = Path(__file__).parents[2]
API, CLI = ROOT / "docs/reference/api.md", ROOT / "docs/reference/cli.md"


@pytest.mark.parametrize("module", [flow_chart, site_hooks])
def test_the_examples_are_right(module: object) -> None:
    """The examples in the docstrings of the scripts are right."""
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert (result.failed, result.attempted > 0) == (0, True)


def test_each_node_lies_below_all_that_point_to_it() -> None:
    """By the longest way, also where there is a shorter one."""
    assert layers_of([("a", "b"), ("b", "c"), ("a", "c"), ("d", "c")]) == [["a", "d"], ["b"], ["c"]]


UNDRAWN = ("sequenceDiagram\n", "flowchart TD\n a -.-> b\n", "flowchart TD\n a --> b\n b --> a\n")


def test_what_cannot_be_drawn_is_an_error(snapshot: SnapshotAssertion) -> None:
    """So that a strict build fails, rather than a diagram being missing."""
    assert [said_by(ValueError, flow_chart_svg, text) for text in UNDRAWN] == snapshot


def resolved(text: str, repo_url: str | None) -> str:
    """The links of a page docs/tutorials/ring.md."""
    return site_hooks.LINK.sub(lambda match: site_hooks.resolved_link(match, "tutorials", repo_url), text)


def test_links_that_leave_docs_lead_to_the_repository_or_nowhere() -> None:
    """Links within docs/ stay."""
    text = "[code](../../ringsim/units.py) and [rule](../rule.md#order)"
    assert resolved(text, None) == "code and [rule](../rule.md#order)"
    assert resolved(text, "https://host/x/") == (
        "[code](https://host/x/blob/main/ringsim/units.py) and [rule](../rule.md#order)"
    )


PAGE = SimpleNamespace(file=SimpleNamespace(src_uri="ring.md"))


LOADING = (
    '<script src="https://cdn.example/mermaid.js">', '<link rel="stylesheet" href="//fonts.example/roboto.css">',
    '<img alt="x" src=https://badge.example/x.svg>',
)  # fmt: skip


def test_a_page_that_loads_from_another_site_fails_the_build(snapshot: SnapshotAssertion) -> None:
    """Scripts, styles and pictures; the message names the page and the address."""
    assert [said_by(ValueError, site_hooks.on_post_page, tag, page=PAGE) for tag in LOADING] == snapshot


@pytest.mark.parametrize("package", ["ringsim", "collectives", "trainers"])
def test_the_reference_has_every_public_name(package: str) -> None:
    """Once, with a link to the file that defines it."""
    section = API.read_text().partition(f"\n## {package}\n")[2].partition("\n## ")[0]
    items = site_hooks.PUBLIC_NAME.findall(section)
    assert sorted(name for name, _ in items) == sorted(importlib.import_module(package).__all__)
    for name, path in items:
        defined = re.search(rf"^(class |def )?{name}\b", (ROOT / f"{path}.py").read_text(), re.MULTILINE)
        assert defined, f"{path}.py does not define {name}"


def test_the_reference_says_what_the_docstrings_say() -> None:
    """In one line for each class and function; a constant has no docstring of its own."""
    for package, name, line in re.findall(r"^- \[`(\w+)\.(\w+)`\]\([^)]*\): (.*)$", API.read_text(), re.MULTILINE):
        public = getattr(importlib.import_module(package), name)
        if inspect.isclass(public) or inspect.isroutine(public):
            assert line == (inspect.getdoc(public) or "").split("\n")[0], f"{package}.{name}"


def test_the_reference_has_every_command_of_ringsim() -> None:
    """In its table; their options are filled in on the site."""
    assert set(re.findall(r"`ringsim (\w+)`", CLI.read_text())) == set(main.commands)


def test_every_page_is_in_the_navigation() -> None:
    """Or in CONTRIBUTING, or, if it is a decision record, in their index; unlike `make docs` this needs no MkDocs."""
    docs = ROOT / "docs"
    of_contributors = re.findall(r"\]\(docs/([\w/-]+\.md)\)", (ROOT / "CONTRIBUTING.md").read_text())
    records = {path.name for path in docs.glob("decisions/0*.md")}
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", (docs / "decisions/index.md").read_text())) == records
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")} - {f"decisions/{name}" for name in records}
    named = re.findall(r"^ +- (?:[^:\n]+: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(named) == len(set(named))
    assert pages - set(named) == {"architecture.md", "testbed.md", "decisions/index.md"} <= set(of_contributors)
    assert set(named) <= pages
