"""The page of environment variables names every one that the packages read or set."""

import re

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "environment.md").read_text()
SEVERAL_WORDS = re.compile(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"')  # a constant of this form is one, but for OTHERS
ACCESS = re.compile(r'environ(?:ment)?(?:\.(?:get|pop|setdefault)\(|\[)"([A-Z]+)"')  # names of one word
OTHERS = re.compile(
    r"(O|SC|SCHED)_\w+|(KV|Q)_LEN|BLOCK_SIZE|TORCH_FUNCTION_STATE|CONSTANT_(MATCH|NUMEL_LIMIT)"
)  # of os, torch


def variables() -> dict[str, str]:
    """Return the names in the sources, each with a file that has it."""
    return {
        name: str(path.relative_to(ROOT))
        for package in ("collectives", "ringsim", "trainers")
        for path in sorted((ROOT / package).rglob("*.py"))
        for name in {*SEVERAL_WORDS.findall(path.read_text()), *ACCESS.findall(path.read_text())}
        if not OTHERS.fullmatch(name)
    }


def test_every_variable_is_explained() -> None:
    """In a table, in code."""
    assert {"COLLECTIVES_TRANSPORT", "RANK", "CXX", "SLURM_PROCID"} <= variables().keys()  # the search finds some
    assert {name: file for name, file in variables().items() if f"`{name}`" not in PAGE} == {}
