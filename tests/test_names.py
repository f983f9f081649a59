"""Names say one thing."""

import ast
import collections
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("ringsim", "collectives", "trainers")
FILLERS = {"each", "found", "what"}


def trees() -> dict[str, ast.Module]:
    """Every module of the three packages."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def test_no_two_classes_have_one_name() -> None:
    """So that a name in a sentence, or in a search, means one thing."""
    places = collections.defaultdict(list)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    assert len(places) > 100
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_variables_are_nouns() -> None:
    """Names that say nothing of what they hold."""
    fillers = [
        f"{path}:{node.lineno}: {node.id}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in FILLERS
    ]
    assert fillers == []
