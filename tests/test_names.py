"""Names say one thing, and subpackages are used by what they export."""

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


# Importing all of these at once would load torch or matplotlib where a command only checks its options.
BY_MODULE = ("trainers.", "collectives.benchmark.", "ringsim.report.plots.", "ringsim.cli.")
UNUSED_ELSEWHERE = {"ringsim.algorithms", "ringsim.cli", "trainers.strategies", "trainers.tasks"}
LAZILY = {"collectives/__init__.py"}  # FSDP2's part of torch takes a second to import


def subpackage(module: str) -> str:
    """Return the subpackage of a module: ringsim.schedule of ringsim.schedule.verify."""
    return ".".join(module.split(".")[:2])


def imports_from_packages() -> list[tuple[str, str, str, str]]:
    """Of every import from another subpackage: the file, the module, the name, and that module's subpackage."""
    imports = []
    for path, tree in trees().items():
        own = subpackage(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not node.module or not node.module.startswith(PACKAGES):
                continue
            other = subpackage(node.module)
            if other != own and "." in other:
                imports += [(path, node.module, alias.name, other) for alias in node.names]
    return imports


def test_others_import_from_the_subpackage() -> None:
    """Not from a module in it, which may move."""
    deep = [
        f"{path}: {module}"
        for path, module, _, other in imports_from_packages()
        if module != other and not module.startswith(BY_MODULE) and path not in LAZILY
    ]
    assert deep == []


def test_what_a_subpackage_exports_is_used() -> None:
    """By another subpackage, by the package itself, or by a script."""
    used = {(module, name) for _, module, name, _ in imports_from_packages()}
    for script in (ROOT / "scripts").rglob("*.py"):
        for node in ast.walk(ast.parse(script.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                used |= {(node.module, alias.name) for alias in node.names}
    exported = [
        (path.removesuffix("/__init__.py").replace("/", "."), name.name)
        for path, tree in trees().items()
        if path.endswith("/__init__.py") and path.count("/") == 2
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(path.split("/")[0] + ".")
        for name in node.names
    ]
    assert len(exported) > 100
    assert [pair for pair in exported if pair not in used and pair[0] not in UNUSED_ELSEWHERE] == []
